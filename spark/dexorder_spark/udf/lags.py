"""Ends of the topics that UDFs read. A separate thread reads them, so the lag of a UDF is known at any time.

A UDF that takes minutes for a batch, or is being started or waited for, does not look at topics itself, and a source
that does not answer blocks only this thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Protocol

import structlog

from dexorder_common.model.errors import Unavailable
from dexorder_spark.source.client import SourceClient
from dexorder_spark.source.offsets import SourceState

log = structlog.get_logger(__name__)
LOOK_SECONDS = 0.5
_LOOKS = 60
"""Looks at a topic after the last question about it."""


class Source(Protocol):
    """Methods of `SourceClient` that are used."""

    def state(self) -> SourceState:
        """Return the end of each partition."""


class TopicEnds:
    """Ends by address of the topic. Any thread may ask; the first question adds a topic to the ones that are read."""

    def __init__(self, open_source: Callable[[str], Source] = SourceClient) -> None:
        self._open_source = open_source
        self._ends: dict[str, Mapping[int, int]] = {}
        self._wanted: dict[str, int] = {}

    def lag(self, address: str, done: Mapping[int, int]) -> int | None:
        """Return the number of records of a topic after a place; None while its ends are not known."""
        self._wanted[address] = _LOOKS
        ends = self._ends.get(address)
        return None if ends is None else sum(max(0, end - done.get(each, 0)) for each, end in ends.items())

    def look(self) -> None:
        """Look at all topics once. A topic without an answer keeps its ends; a topic of no running UDF is forgotten."""
        for address, left in list(self._wanted.items()):
            if not left:
                self._ends.pop(address, None)
                del self._wanted[address]
                continue
            self._wanted[address] = left - 1
            try:
                self._ends[address] = self._open_source(address).state().ends
            except (Unavailable, NotImplementedError) as error:
                log.debug("the end of a topic is not known", source=address, error=str(error))

    def run(self, stop: threading.Event) -> None:
        """Look until ``stop``."""
        while not stop.wait(LOOK_SECONDS):
            self.look()
