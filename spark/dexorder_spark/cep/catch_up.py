"""Where a trigger starts in a topic: at the records of its registration's time, even if its process reads them later.

A record says when it was settled, by the clock of its producer. Reading starts some seconds earlier, so that the engine
has the rows between the tables' rows and the registration. The engine does not fire for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import structlog

from dexorder_common.kafka.joined_record import records_in
from dexorder_common.lake.market_rows import Row
from dexorder_common.model.instrument import Series
from dexorder_common.model.times import SECOND_NS
from dexorder_spark.cep.journal import TopicPosition
from dexorder_spark.records.selection import stamp_of
from dexorder_spark.source.offsets import OffsetRange, SourceState, begun_anew, resume
from dexorder_spark.source.records import Result

log = structlog.get_logger(__name__)
LOOK_BACK_NS = 30 * SECOND_NS
"""Time before a registration from which records are read."""
OLDEST_NS = 3_600 * SECOND_NS
"""Age of a registration that is too old to be new: the journal was lost, and its events were published long ago."""
_PROBED = 8
"""Records by which the time of a place is known; more than one, as any producer can write a wrong time."""
_FIRST_STEP, _STEPS_GROW = 64, 4
_CHUNK = 2_000

Read = Callable[[OffsetRange], Sequence[Result]]


def start_of(
    before: TopicPosition | None, state: SourceState, topic: str, registered_ns: Iterable[int], read: Read, now_ns: int
) -> dict[int, int]:
    """Return where reading continues: behind the last batch, or at the start of another log.

    A topic that was not read before starts at the time of the first new registration, or without one at its end.

    Args:
        registered_ns: Times of the registrations that read the topic.
        read: Returns records.
    """
    if before is None:
        at_ns = start_ns(registered_ns, now_ns)
        return dict(state.ends) if at_ns is None else since(state, at_ns, read)
    lost = begun_anew(before.offsets, state, before.topic_id)
    if lost:
        log.error("the topic is another log than before; it is read from its start", topic=topic)
    return resume({p: o for p, o in before.offsets.items() if p not in lost}, replace(state, committed={}))


def start_ns(registered_ns: Iterable[int], now_ns: int) -> int | None:
    """Return the time from which records count for registrations; None if all are too old to be new."""
    new = [each for each in registered_ns if each > now_ns - OLDEST_NS]
    return min(new) - LOOK_BACK_NS if new else None


def since(state: SourceState, at_ns: int, read: Read) -> dict[int, int]:
    """Return a place in each partition before which no record was settled after ``at_ns``, found in few reads."""
    return {partition: _since(partition, state, at_ns, read) for partition in state.ends}


def _since(partition: int, state: SourceState, at_ns: int, read: Read) -> int:
    first, place, step = state.starts.get(partition, 0), state.ends[partition], _FIRST_STEP
    end = place
    while place > first:
        place, step = max(first, place - step), step * _STEPS_GROW
        stamps = [*map(_stamp, read(OffsetRange(partition, place, min(place + _PROBED, end))))]
        if stamps and max(stamps) < at_ns:
            break
    return place


def _stamp(result: Result) -> int:
    return max((stamp_of(result, headers) for headers, _ in records_in(result.headers, result.payload)), default=0)


def chunks(parts: Iterable[OffsetRange]) -> Iterator[OffsetRange]:
    """Yield ranges in parts that fit into memory."""
    for each in parts:
        for start in range(each.start, each.end, _CHUNK):
            yield replace(each, start=start, end=min(start + _CHUNK, each.end))


def known_by(series: Series, rows: Sequence[Row], time_ns: int) -> list[Row]:
    """Return the rows that were known by a time: candles that were closed, trades before it."""
    period_ns = series.period_seconds * SECOND_NS
    return [row for row in rows if (row[0] + period_ns <= time_ns if period_ns else row[0] < time_ns)]
