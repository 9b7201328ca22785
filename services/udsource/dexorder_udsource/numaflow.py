"""Contract of a Numaflow source container: the server-info file, and the end of a process that fails unexpectedly.

Numaflow learns from the file that a container listens and which contract it speaks. After an unexpected failure
Numaflow's own servers answer INTERNAL with ``UDF_EXECUTION_ERROR(container)`` and exit with status 1; this service does
the same, so that its container restarts. An answer alone would leave the vertex waiting forever, because the
dataplane does not check the status of a batch.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from dexorder_common.storage.whole_file import replace_text

log = structlog.get_logger(__name__)

END_MARKER = "U+005C__END__"
"""The reader polls until the file ends with this text; it would wait forever for a file that ends with a newline."""

# The dataplane depends on language and version, and calls NackFn only for Python since 0.11.0. This is the version of
# the Python SDK that this service imitates, because its own would be refused; "-z" means the stable release.
CONTRACT = {
    "protocol": "uds",
    "language": "python",
    "minimum_numaflow_version": "1.4.0-z",
    "version": "0.14.0",
    "metadata": {},
}


def write_server_info(path: Path) -> None:
    """Write the file atomically; call once the socket listens."""
    replace_text(path, json.dumps(CONTRACT) + END_MARKER)


def remove_server_info(path: Path) -> None:
    """Remove the file of an earlier process; call before the socket listens."""
    path.unlink(missing_ok=True)


PREFIX = "UDF_EXECUTION_ERROR(udsource)"
"""The dataplane files the error under the container's name in the first parentheses of the text."""
MAX_CHARACTERS = 500
"""Longest text of an answer; it travels in a trailer of at most 8 KiB, where a character takes up to 12 bytes."""
EXIT_STATUS = 1


class FatalFailure:
    """First unexpected failure of this process; ``error`` is None until then."""

    def __init__(self, on_first: Callable[[], None] = lambda: None) -> None:
        self._on_first = on_first
        self.error: BaseException | None = None

    def note(self, place: str, error: BaseException) -> str:
        """Keep the failure of a method or task, if it is the first; return the text for the caller of the RPC."""
        if self.error is None:
            self.error = error
            log.error("unexpected failure; this process ends", place=place, exc_info=error)
            self._on_first()
        reason = f"{PREFIX}: {place} raised {type(error).__name__}: {error}"
        return f"{reason[:MAX_CHARACTERS]}; udsource ends with status {EXIT_STATUS} so that its container restarts"

    async def guard(self, place: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run a background task; note its failure, so that the process ends in the same way as for an RPC's."""
        try:
            await work()
        except Exception as error:
            self.note(place, error)


def exit_after(seconds: float) -> None:
    """End the process after ``seconds``, even if something hangs, for example a thread that waits in librdkafka."""
    timer = threading.Timer(seconds, os._exit, (EXIT_STATUS,))
    timer.daemon = True
    timer.start()
