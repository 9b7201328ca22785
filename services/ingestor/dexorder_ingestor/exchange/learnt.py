"""Knowledge of an exchange that a host's ingestors share: shares of untrue answers, and the shape of its answers.

It is kept in a small file beside the exchange's rate limit, so it survives restarts and ingestors share it. Each
process adds the answers that it counted since it last read the file. No result depends on the file: one that is
damaged, locked for long, or cannot be written only costs the few calls in which an exchange gets known again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import structlog

from dexorder_common.model.times import MAX_TIME_NS, SECOND_NS
from dexorder_ingestor.exchange.agreement import Agreement, Counted
from dexorder_ingestor.exchange.answer_shape import AnswerShapes, Shape
from dexorder_ingestor.exchange.rate_limiter import lock, open_shared

log = structlog.get_logger(__name__)
SHAPE_AGE_NS = 86_400 * SECOND_NS
"""Age from which on a shape is forgotten; learning it again takes three answers."""
_MAX_COUNTED = 1e6
_MAX_BYTES = 4_096


class LearntRecord(NamedTuple):
    """Content of the file.

    Attributes:
        at_ns: Wall clock time of the counts.
        shape_ns: Time at which the shape was learnt, or 0.
    """

    at_ns: int = 0
    incomplete: Counted = Counted()
    foreign: Counted = Counted()
    shape: Shape = Shape()
    shape_ns: int = 0

    def encode(self) -> bytes:
        """Return the record as JSON."""
        return json.dumps(self, separators=(",", ":")).encode()


def decode(data: bytes, *, now_ns: int) -> LearntRecord:
    """Return the record of a file, aged to now; an empty one if it is damaged or from the future."""
    with suppress(ValueError, TypeError, RecursionError):
        at_ns, incomplete, foreign, shape, shape_ns = json.loads(data)
        limit, *flags = shape
        times_ns, counts = (at_ns, shape_ns), (Counted(*incomplete), Counted(*foreign))
        whole = all(type(value) is int and 0 <= value <= now_ns for value in times_ns)
        whole = whole and all(
            type(value) in (int, float) and 0 <= value <= _MAX_COUNTED for count in counts for value in count
        )
        whole = whole and all(count.untrue <= count.answers for count in counts)
        if whole and type(limit) is int and limit >= 0 and all(type(flag) is bool for flag in flags):
            known = Shape(limit, *flags) if now_ns - shape_ns < SHAPE_AGE_NS else Shape()
            old, other = (count.aged(now_ns - at_ns) for count in counts)
            return LearntRecord(now_ns, old, other, known, shape_ns if known != Shape() else 0)
    return LearntRecord(min(now_ns, MAX_TIME_NS))


class Learnt:
    """Knowledge of this process about an exchange, and its file."""

    def __init__(self, path: Path) -> None:
        """Leave the file unread until `share`."""
        self.agreement = Agreement()
        self.shapes = AnswerShapes()
        self._path = path
        self._shared_shape = Shape()

    def share(self, *, now_ns: int) -> None:
        """Add this process's knowledge to the file, and take the additions of other processes."""
        try:
            with _locked(self._path) as file:
                record = self._join(decode(os.pread(file, _MAX_BYTES, 0), now_ns=now_ns))
                data = record.encode()
                os.pwrite(file, data, 0)
                os.ftruncate(file, len(data))
        except OSError as error:
            log.warning("evidence is not shared", file=str(self._path), problem=str(error))

    def _join(self, record: LearntRecord) -> LearntRecord:
        """Take the record of other processes; return it with this process's knowledge since the last call."""
        agreement = self.agreement
        agreement.advance(record.at_ns)
        for share, shared in ((agreement.incomplete, record.incomplete), (agreement.foreign, record.foreign)):
            share.share(shared)
        shape, shape_ns = record.shape, record.shape_ns
        if self.shapes.shape != self._shared_shape:
            shape, shape_ns = self.shapes.shape, record.at_ns
        elif shape != self._shared_shape:
            self.shapes.adopt(shape)
        self._shared_shape = self.shapes.shape
        return LearntRecord(record.at_ns, agreement.incomplete.counted, agreement.foreign.counted, shape, shape_ns)


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Open and lock the file.

    Raises:
        OSError: It can't be opened, or is locked for 50 ms.
    """
    file = open_shared(path)
    try:
        if not lock(file):
            raise BlockingIOError("another process holds its lock")
        yield file
    finally:
        os.close(file)
