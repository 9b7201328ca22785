"""Report of a driver to the relay's registry of UDFs: the lines that wait for it, and its parts."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as pb
from dexorder_protos.dexorder.udf.v1 import udf_registry_service_pb2 as udf_pb

MAX_PART_BYTES = 1024 * 1024
"""Bytes of the entries of a part, of which one alone may have more."""
MAX_WAITING = 500
"""Lines that wait of one UDF."""
MAX_LINE = 4_096
Line = tuple[int, str]
"""Time in nanoseconds and text."""


class LogBook:
    """Lines by UDF; any thread may add, one thread takes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[Line]] = {}

    def add(self, name: str, text: str) -> None:
        """Keep a line."""
        with self._lock:
            self._waiting.setdefault(name, deque(maxlen=MAX_WAITING)).append((time.time_ns(), text[:MAX_LINE]))

    def take(self) -> dict[str, list[Line]]:
        """Return the lines that wait, oldest first, and forget them."""
        with self._lock:
            found, self._waiting = self._waiting, {}
        return {name: list(lines) for name, lines in found.items()}

    def put_back(self, taken: dict[str, list[Line]]) -> None:
        """Keep lines again that were not delivered, before newer ones."""
        with self._lock:
            for name, lines in taken.items():
                newer = self._waiting.get(name, ())
                self._waiting[name] = deque([*lines, *newer], maxlen=MAX_WAITING)


class _Parts:
    """Parts that are being filled, one after the other."""

    def __init__(self, most_bytes: int) -> None:
        self.made = deque([pb.SyncUdfsRequest()])
        self._most_bytes = most_bytes
        self._bytes = 0

    def with_room(self, size: int) -> pb.SyncUdfsRequest:
        """Return the part that takes an entry of a size."""
        if self._bytes and self._bytes + size > self._most_bytes:
            self.made[-1].more = True
            self.made.append(pb.SyncUdfsRequest(part=len(self.made)))
            self._bytes = 0
        self._bytes += size
        return self.made[-1]


def report_parts(
    declared: Iterable[udf_pb.Udf],
    statuses: Iterable[udf_pb.UdfStatus],
    lines: Mapping[str, Sequence[Line]],
    most_bytes: int = MAX_PART_BYTES,
) -> deque[pb.SyncUdfsRequest]:
    """Return the parts of a report, at least one, in the order in which the relay takes them."""
    parts = _Parts(most_bytes)
    for definition in declared:
        parts.with_room(definition.ByteSize()).declared.append(definition)
    for status in statuses:
        parts.with_room(status.ByteSize()).statuses.append(status)
    for name, found in lines.items():
        for time_ns, text in found:
            line = udf_pb.UdfLogLine(time_ns=time_ns, text=text)
            part = parts.with_room(line.ByteSize() + len(name))
            if not part.logs or part.logs[-1].name != name:
                part.logs.add(name=name)
            part.logs[-1].lines.append(line)
    return parts.made


def lines_of(parts: Iterable[pb.SyncUdfsRequest]) -> dict[str, list[Line]]:
    """Return the lines of parts, for `LogBook.put_back`."""
    found: dict[str, list[Line]] = {}
    for part in parts:
        for each in part.logs:
            found.setdefault(each.name, []).extend((line.time_ns, line.text) for line in each.lines)
    return found
