"""What nobody foresaw ends the process, so that its container starts anew; nothing stays up that can read no more.

Numaflow's own servers do the same: INTERNAL with ``UDF_EXECUTION_ERROR(container)``, then exit status 1. The dataplane
looks at no status of a batch, so an answer alone would leave its vertex waiting for ever.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable

import structlog

log = structlog.get_logger(__name__)

PREFIX = "UDF_EXECUTION_ERROR(udsource)"
"""The dataplane files the error under the container's name in the first parentheses of the text."""
MOST_CHARACTERS = 500
"""Longest text of an answer; it travels in a trailer of at most 8 KiB, where a character takes up to 12 bytes."""
EXIT_STATUS = 1


class FatalFailure:
    """The first thing of this process that nobody foresaw.

    Attributes:
        error: It; none as long as all is well.
    """

    def __init__(self, on_first: Callable[[], None] = lambda: None) -> None:
        self._on_first = on_first
        self.error: BaseException | None = None

    def note(self, place: str, error: BaseException) -> str:
        """Remember it, if it is the first; returns the text for a caller.

        Args:
            place: The method or the task that raised it.
        """
        if self.error is None:
            self.error = error
            log.error("failed; this process ends", place=place, exc_info=error)
            self._on_first()
        reason = f"{PREFIX}: {place} raised {type(error).__name__}: {error}"
        return f"{reason[:MOST_CHARACTERS]}; udsource ends with status {EXIT_STATUS} so that its container starts anew"

    async def guard(self, place: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do what runs in the background; what it raises is noted, so that there is one way in which all ends."""
        try:
            await work()
        except Exception as error:
            self.note(place, error)


def end_within(seconds: float) -> None:
    """Whatever hangs then, for example a thread that waits in librdkafka, keeps the process no longer."""
    timer = threading.Timer(seconds, os._exit, (EXIT_STATUS,))
    timer.daemon = True
    timer.start()
