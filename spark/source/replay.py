"""A source that can replay, exactly once: offsets are the log's own, tasks read their range themselves.

What Spark calls when is told in ``plain``. Here, too, what ``partitions`` was asked for is acked when ``latestOffset``
is asked next, so the last batch is acked while the query is idle; ``commit`` is for what that could not do.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from services.common.model.errors import InvalidRequest, Unavailable
from spark.source import offsets as rules
from spark.source.client import PendingUnknown, SourceClient, SourceRefuses
from spark.source.options import SourceOptions
from spark.source.records import to_batch

log = logging.getLogger(__name__)
_RECORDS_PER_LIST = 128
_IDLE_WAIT_S = 0.5


@dataclass
class RangePartition(InputPartition):
    """Offsets ``[start, end)`` of one partition, read by one task; None reads nothing."""

    part: rules.OffsetRange | None

    def read(self, options: SourceOptions) -> Iterator[pa.RecordBatch]:
        """The records of the range, in a worker.

        Raises:
            Unavailable: The source was away for retrySeconds.
            SourceBroken: A record can't be read. Both name the address, the partition and the offset.
        """
        if self.part is None:
            return
        client = SourceClient(options.address)
        for results in client.read(self.part, most=_RECORDS_PER_LIST, retry_seconds=options.retry_seconds):
            yield to_batch(results)


class ReplayPlanner:
    """The stream's planner: plans ranges of offsets, and acks those that are committed."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._client = SourceClient(options.address)
        self._next: dict[int, int] | None = None  # end of the last batch; what the next one is capped against
        self._initial: dict[int, int] | None = None
        self._offered: dict[int, int] | None = None  # told to Spark, not planned yet
        self._planned: dict[int, int] | None = None  # not acked yet
        self._acked: dict[int, int] | None = None
        self._warned = False

    def initial_offset(self) -> dict[str, Any]:
        """Where a new query begins.

        Raises:
            Unavailable: The source was away for retrySeconds.
            SourceRefuses: It does not let us in.
            InvalidRequest: startingOffsets do not fit the log.
        """
        if self._initial is None:
            state = first_state(self._client, self._options.retry_seconds)
            self._initial = rules.initial(state, self._options.starting)
        return rules.to_json(self._initial)

    def latest_offset(self) -> dict[str, Any]:
        """Ack what is committed; the end of the next batch, capped here since Spark 4.1 does not cap it.

        While the server is out of reach there is nothing new: a query outlives a restart of its source.

        Raises:
            SourceRefuses: It does not let us in any more.
        """
        if self._next is None:
            self._next = rules.from_json(self.initial_offset())
        try:
            state = self._client.state()
        except SourceRefuses:
            raise
        except Unavailable as error:
            log.warning("udsource: no new records while the source is away: %s", error)
            time.sleep(_IDLE_WAIT_S)
            return rules.to_json(self._next)
        self._ack_planned(state)
        end = rules.cap(self._next, state.ends, None if self._options.drain else self._options.max_records)
        self._warn_of_available_now(end)
        if end != self._next:
            self._offered = end
        self._next = end
        return rules.to_json(end)

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """One task a partition that has records; equal ends give one that reads nothing.

        Raises:
            InvalidRequest: An end is before its start.
        """
        first, last = rules.from_json(start), rules.from_json(end)
        if self._next is None:
            self._next = last
        if first != last:
            self._offered = None
        self._planned = last  # also the end of a checkpoint: whoever stopped there may not have acked it
        try:
            parts = rules.plan(first, last)
        except InvalidRequest as error:
            raise InvalidRequest(
                f"{error}: a query that goes on from its checkpoint with Trigger.AvailableNow needs option drain=true"
            ) from error
        return [RangePartition(part) for part in parts] or [RangePartition(None)]

    def commit(self, end: Mapping[str, Any]) -> None:
        """Ack what lies before ``end``: its batch is in Spark's commit log. A lost ack is made good by the next."""
        last = rules.from_json(end)
        if last == self._acked:
            return
        try:
            ack_before(self._client, last)
        except Unavailable as error:
            log.warning("udsource: ack postponed: %s", error)

    def stop(self) -> None:
        """Nothing to release; the channel ends with the process."""

    def _ack_planned(self, state: rules.SourceState) -> None:
        if self._planned is None:
            return
        try:
            self._client.ack(rules.to_ack(self._planned, state))
        except Unavailable as error:
            log.warning("udsource: ack postponed: %s", error)
            time.sleep(_IDLE_WAIT_S)
        else:
            self._acked = self._planned
            self._planned = None

    def _warn_of_available_now(self, end: Mapping[int, int]) -> None:
        """Spark takes the end of Trigger.AvailableNow from one question and asks again before it plans anything."""
        if self._offered is not None and end != self._next and not self._options.drain and not self._warned:
            self._warned = True
            log.warning(
                "udsource: with Trigger.AvailableNow this query reads up to %s, one batch; option drain=true reads all",
                rules.to_json(self._offered),
            )


def first_state(client: SourceClient, seconds: float, *, wait_unknown: bool = True) -> rules.SourceState:
    """The source's state, waiting for it if need be.

    Args:
        client: Of the source.
        seconds: How long to wait.
        wait_unknown: Also for a source that answers but does not know its offsets.

    Raises:
        Unavailable: It was away for so long.
        PendingUnknown: It does not know its offsets.
        SourceRefuses: It does not let us in.
        NotImplementedError: It cannot replay.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return client.state()
        except Unavailable as error:
            is_answer = isinstance(error, SourceRefuses) or (isinstance(error, PendingUnknown) and not wait_unknown)
            if is_answer or time.monotonic() >= deadline:
                raise
            time.sleep(_IDLE_WAIT_S)


def ranges_now(options: SourceOptions, state: rules.SourceState) -> list[RangePartition]:
    """For a batch read: from startingOffsets to endingOffsets as they are now.

    Raises:
        InvalidRequest: The options do not fit the log.
    """
    end = dict(state.ends) if isinstance(options.ending, str) else dict(options.ending)
    beyond = {p: offset for p, offset in end.items() if offset > state.ends.get(p, 0)}
    if beyond:
        raise InvalidRequest(f"endingOffsets {beyond} are beyond the ends {dict(state.ends)}")
    parts = rules.plan(rules.initial(state, options.starting), end)
    return [RangePartition(part) for part in parts] or [RangePartition(None)]


def ack_before(client: SourceClient, end: rules.Offsets) -> None:
    """Ack everything before ``end`` that is not committed yet.

    Raises:
        Unavailable: The source is away.
    """
    client.ack(rules.to_ack(end, client.state()))
