"""Windows of tables that streams have read and not sent, in a fixed number of bytes for all streams together.

A stream with a slow client waits in the middle of a window. If others need the memory, its window is dropped; when the
client reads again, the stream reads the window again, at the same snapshot. Messages share a budget, too: gRPC holds
one for each stream.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

MAX_HELD_BYTES = 8 << 20
"""Bytes of all windows; the one that was used last may exceed it alone."""
MAX_MESSAGES_BYTES = 1 << 20
"""Bytes of the messages of all streams: each may have its share, at least `MIN_MESSAGE_BYTES`."""
MIN_MESSAGE_BYTES = 4 << 10


class HeldWindow:
    """A window of one stream; ``table`` is None after it was dropped."""

    __slots__ = ("table",)

    def __init__(self) -> None:
        self.table: pa.Table | None = None


class HeldWindows:
    """Windows and messages of all streams of one event loop."""

    def __init__(self) -> None:
        self._used: OrderedDict[int, HeldWindow] = OrderedDict()
        self._bytes = 0
        self._streams = 0

    @contextmanager
    def stream(self) -> Iterator[HeldWindow]:
        """Count an open stream, and give the place of its window."""
        window = HeldWindow()
        self._streams += 1
        try:
            yield window
        finally:
            self._streams -= 1
            self._drop(window)

    def hold(self, window: HeldWindow, table: pa.Table) -> None:
        """Keep the window of a stream, and drop the least recently used windows if the budget is exceeded."""
        self._drop(window)
        window.table = table
        self._used[id(window)] = window
        self._bytes += table.nbytes
        while self._bytes > MAX_HELD_BYTES and len(self._used) > 1:
            self._drop(next(iter(self._used.values())))

    def used(self, window: HeldWindow) -> None:
        """Note that a stream has sent a part of its window."""
        if window.table is not None:
            self._used.move_to_end(id(window))

    def message_rows(self, table: pa.Table, limit: int) -> int:
        """Return how many rows a message may have, at most ``limit``."""
        share = max(MAX_MESSAGES_BYTES // max(self._streams, 1), MIN_MESSAGE_BYTES)
        return int(min(limit, max(1, share * table.num_rows // max(table.nbytes, 1))))

    def _drop(self, window: HeldWindow) -> None:
        if window.table is not None:
            del self._used[id(window)]
            self._bytes -= window.table.nbytes
            window.table = None
