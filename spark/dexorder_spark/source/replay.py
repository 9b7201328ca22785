"""Planner for a source that can replay, exactly once: it uses the log's offsets, and each task reads its range.

``plain`` lists Spark's calls in order. Here too the batch of a ``partitions`` call is acked at the next
``latestOffset``, so the last batch is acked while the query is idle; ``commit`` acks it if that failed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from dexorder_common.model.errors import InvalidRequest, Unavailable
from dexorder_spark.source import offsets as rules
from dexorder_spark.source.client import PendingUnknown, SourceBroken, SourceClient, SourceRefuses
from dexorder_spark.source.options import SourceOptions
from dexorder_spark.source.records import to_batch

log = logging.getLogger(__name__)
_RECORDS_PER_LIST = 128
_IDLE_WAIT_S = 0.5


@dataclass
class RangePartition(InputPartition):
    """Offsets ``[start, end)`` of one partition for one task; None for a task without records."""

    part: rules.OffsetRange | None

    def read(self, options: SourceOptions) -> Iterator[pa.RecordBatch]:
        """Yield the records of the range, in a worker.

        Raises:
            Unavailable: The source was unavailable for retrySeconds.
            SourceBroken: A record cannot be read. Both name the address, the partition and the offset.
        """
        if self.part is None:
            return
        client = SourceClient(options.address)
        for results in client.read(self.part, limit=_RECORDS_PER_LIST, retry_seconds=options.retry_seconds):
            yield to_batch(results)


class ReplayPlanner:
    """Planner of a stream: plans ranges of offsets and acks the committed ones."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._client = SourceClient(options.address, options.group)
        self._initial: dict[int, int] | None = None
        self._epochs: rules.Offsets = {}  # of the leaders who had all records before the end of the last batch
        self._last: dict[str, Any] | None = None  # end of the last batch, from which the next one is limited
        self._is_new = True  # no batch is planned yet
        self._planned: dict[int, int] | None = None  # not acked yet
        self._acked: dict[int, int] | None = None

    def initial_offset(self) -> dict[str, Any]:
        """Return the offsets at which a new query starts; errors of ``first_state`` and ``offsets.initial``."""
        return rules.start_json(self._start())

    def latest_offset(self) -> dict[str, Any]:
        """Ack the committed batch and return the end of the next one, limited here as Spark 4.1 does not limit it.

        While the server cannot be reached the end stays: a query survives a restart of its source.
        SourceRefuses if the source denies access, SourceBroken if the log went back and failOnDataLoss is true.
        """
        if self._last is None:
            self._last = rules.to_json(self._start(), self._start())
        try:
            state = self._client.state()
            if rules.lost_logs(self._last, state):  # or this replica does not know the newest records yet
                time.sleep(_IDLE_WAIT_S)
                state = self._client.state()
            lost = self._client.lost_logs(self._last, self._epochs, state)
        except SourceRefuses:
            raise
        except Unavailable as error:
            log.warning("udsource: no new records while the source is unavailable: %s", error)
            time.sleep(_IDLE_WAIT_S)
            return self._last
        if lost:
            self._planned = None  # its offsets belong to another log
        self._ack_planned(state)
        restart = self._restart(state, lost)
        before = rules.from_json(self._last) if restart is None else restart
        limit = rules.batch_limit(self._options.max_records, self._options.max_bytes, state.record_bytes)
        end = rules.cap(before, state.ends, None if self._options.drain else limit)
        if end != before or restart is not None:
            start = (self._start() if restart is None else restart) if self._is_new else None
            self._last = rules.to_json(end, start, restart=restart, topic_id=state.topic_id, epochs=state.epochs)
        self._epochs = state.epochs
        return self._last

    def end_of_log(self) -> rules.Offsets:
        """Return the next offset of each partition, without a plan; the last batch's while it is unavailable."""
        try:
            return self._client.state().ends
        except Unavailable:
            return rules.from_json(self._last or {})

    def _restart(self, state: rules.SourceState, lost: Mapping[int, str]) -> dict[int, int] | None:
        """Return where the next batch starts if records were lost, and the query may continue; else None."""
        assert self._last is not None
        before = rules.from_json(self._last)
        if self._options.fail_on_data_loss:
            if lost:
                raise self._went_back(lost)
            return None
        restart = {p: first if p in lost else max(first, before.get(p, first)) for p, first in state.starts.items()}
        if not lost and all(restart.get(p) == offset for p, offset in before.items()):
            return None
        reason = next(iter(lost.values()), "removed by retention")
        log.error("udsource: records were lost, continuing at %s: %s", restart, reason)
        return restart

    def _went_back(self, lost: Mapping[int, str]) -> SourceBroken:
        reason = next(iter(lost.values()))
        return SourceBroken(
            f"source {self._options.address}: {reason}: the topic was created again or lost records; to continue at the"
            " beginning of its log, set option failOnDataLoss=false or use a new checkpoint"
        )

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch; for equal offsets one task without records.

        InvalidRequest if an end is before its start.
        """
        first, last = rules.bounds(start, end)
        if self._last is None:
            self._last = dict(end)
            self._epochs = rules.epochs_of(end)
        self._is_new = False
        self._planned = last  # even a checkpoint's end: the query that stopped there may not have acked it
        try:
            # A batch that may be of another log by now is read as it is only where lost records are allowed.
            epochs = rules.epochs_of(end) if self._options.fail_on_data_loss else None
            parts = rules.plan(first, last, self._options.min_partitions, epochs)
        except InvalidRequest as error:
            if lost := rules.lost_logs(start, self._client.state()):
                raise self._went_back(lost) from error
            raise InvalidRequest(
                f"{error}: a query that continues its checkpoint with Trigger.AvailableNow needs option drain=true"
            ) from error
        return [RangePartition(part) for part in parts] or [RangePartition(None)]

    def commit(self, end: Mapping[str, Any]) -> None:
        """Ack everything before ``end``, which is in Spark's commit log. The next ack includes one that is lost."""
        last = rules.from_json(end)
        if last == self._acked or not self._options.ack:
            return
        try:
            ack_before(self._client, last)
        except Unavailable as error:
            log.warning("udsource: ack postponed: %s", error)

    def stop(self) -> None:
        """Do nothing: the channel ends with the process."""

    def _start(self) -> dict[int, int]:
        if self._initial is None:
            state = first_state(self._client, self._options.retry_seconds)
            self._initial = rules.initial(state, self._options.start)
            if self._last is None:
                self._epochs = rules.initial_epochs(state, self._options.start)
        return self._initial

    def _ack_planned(self, state: rules.SourceState) -> None:
        if self._planned is None or not self._options.ack:
            return
        try:
            self._client.ack(rules.to_ack(self._planned, state))
        except Unavailable as error:
            log.warning("udsource: ack postponed: %s", error)
            time.sleep(_IDLE_WAIT_S)
        else:
            self._acked = self._planned
            self._planned = None


def first_state(client: SourceClient, seconds: float, *, wait_unknown: bool = True) -> rules.SourceState:
    """Return the source's state; wait while it is unavailable, and with ``wait_unknown`` while its offsets are unknown.

    Raises:
        Unavailable: The source was unavailable for that time.
        PendingUnknown: The source does not know its offsets.
        SourceRefuses: The source denies access.
        NotImplementedError: The source cannot replay.
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
    """Return the tasks of a batch read, from startingOffsets to endingOffsets; InvalidRequest if outside the log."""
    end = dict(state.ends) if isinstance(options.ending, str) else dict(options.ending)
    beyond = {p: offset for p, offset in end.items() if offset > state.ends.get(p, 0)}
    if beyond:
        raise InvalidRequest(f"endingOffsets {beyond} are after the ends {dict(state.ends)}")
    parts = rules.plan(rules.initial(state, options.start), end, options.min_partitions)
    return [RangePartition(part) for part in parts] or [RangePartition(None)]


def ack_before(client: SourceClient, end: rules.Offsets) -> None:
    """Ack everything before ``end`` that is not committed yet; Unavailable if the source cannot be reached."""
    client.ack(rules.to_ack(end, client.state()))
