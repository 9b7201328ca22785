"""``spark.readStream.format("udsource")``: records of a source.v1 server, exactly once where it can replay.

Spark calls the planner's methods (offsets, partitions, commit) in one process beside the driver and ``read`` in pooled
workers, which get a pickled reader: so nothing here holds a channel across a pickle. Order of its calls (4.1):
a new query asks latestOffset before initialOffset; a restarted one calls partitions(end, end) first, with the last
end it planned; commit(end of batch N) comes after latestOffset of batch N + 1.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from services.common.errors import InvalidRequest, Unavailable
from spark.schema import MICROS, RAW, RAW_DDL
from spark.source import offsets as rules
from spark.source.client import Result, SourceClient
from spark.source.options import SourceOptions

log = logging.getLogger(__name__)
_RECORDS_PER_LIST = 128
_IDLE_WAIT_S = 0.5


@dataclass
class RangePartition(InputPartition):
    """Offsets ``[start, end)`` of one partition, read by one task; None reads nothing."""

    part: rules.OffsetRange | None


class UdSource(DataSource):
    """Registered under its name by ``spark.session``; options are in ``spark.source.options``."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return "udsource"

    def schema(self) -> str:
        """Columns of a record."""
        return RAW_DDL

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        """For ``readStream``."""
        return UdStreamReader(SourceOptions.parse(self.options))

    def reader(self, schema: Any) -> DataSourceReader:
        """For ``read``: one look at the log, without commits."""
        return UdBatchReader(SourceOptions.parse(self.options))


class UdStreamReader(DataSourceStreamReader):
    """Plans ranges of offsets and reads them."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._planned: dict[int, int] | None = None  # end of the last batch; what the next one is capped against
        self._initial: dict[int, int] | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Where a new query begins."""
        if self._initial is None:
            self._initial = rules.initial(self._first_state(), self._options.starting)
        return rules.to_json(self._initial)

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:  # noqa: N802
        """The end of the next batch, capped here since Spark 4.1 does not cap it.

        While the server is out of reach there is nothing new: a query outlives a restart of its source.
        """
        if self._planned is None:
            self._planned = rules.from_json(self.initialOffset())
        try:
            ends = self._client().state().ends
        except Unavailable as error:
            log.warning("udsource: no new records while the source is away: %s", error)
            time.sleep(_IDLE_WAIT_S)
            return rules.to_json(self._planned)
        self._planned = rules.cap(self._planned, ends, None if self._options.drain else self._options.max_records)
        return rules.to_json(self._planned)

    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> Sequence[InputPartition]:
        """One task a partition that has records; equal ends give one that reads nothing."""
        last = rules.from_json(end)
        if self._planned is None:
            self._planned = last
        return [RangePartition(part) for part in rules.plan(rules.from_json(start), last)] or [RangePartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one range, in a worker."""
        return read_range(self._options, partition)

    def commit(self, end: Mapping[str, int]) -> None:
        """Ack what lies before ``end``: its batch is in Spark's commit log. A lost ack is made good by the next."""
        try:
            ack_before(self._client(), rules.from_json(end))
        except Unavailable as error:
            log.warning("udsource: ack postponed: %s", error)

    def stop(self) -> None:
        """Nothing to release; the channel ends with the process."""

    def _client(self) -> SourceClient:
        return SourceClient(self._options.address)

    def _first_state(self) -> rules.SourceState:
        deadline = time.monotonic() + self._options.retry_seconds
        while True:
            try:
                return self._client().state()
            except Unavailable:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_IDLE_WAIT_S)


class UdBatchReader(DataSourceReader):
    """Reads from startingOffsets to endingOffsets as they are at planning."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """One task a partition that has records."""
        state = SourceClient(self._options.address).state()
        end = dict(state.ends) if isinstance(self._options.ending, str) else dict(self._options.ending)
        beyond = {p: offset for p, offset in end.items() if offset > state.ends.get(p, 0)}
        if beyond:
            raise InvalidRequest(f"endingOffsets {beyond} are beyond the ends {dict(state.ends)}")
        parts = rules.plan(rules.initial(state, self._options.starting), end)
        return [RangePartition(part) for part in parts] or [RangePartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one range, in a worker."""
        return read_range(self._options, partition)


def read_range(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Arrow batches of one task's range."""
    assert isinstance(partition, RangePartition)
    if partition.part is None:
        return
    client = SourceClient(options.address)
    for results in client.read(partition.part, most=_RECORDS_PER_LIST, retry_seconds=options.retry_seconds):
        yield to_batch(results)


def ack_before(client: SourceClient, end: rules.Offsets) -> None:
    """Ack everything before ``end`` that is not committed yet.

    Raises:
        Unavailable: The source is away.
    """
    client.ack(rules.to_ack(end, client.state()))


def to_batch(results: Sequence[Result]) -> pa.RecordBatch:
    """Records as Arrow, in the columns of ``spark.schema.RAW``."""
    return pa.record_batch(
        [
            pa.array([r.payload for r in results], pa.binary()),
            pa.array([r.keys[0] if r.keys else None for r in results], pa.string()),
            pa.array([list(r.headers.items()) for r in results], RAW.field("headers").type),
            pa.array([r.event_time.ToMicroseconds() for r in results], pa.int64()).cast(MICROS),
            pa.array([r.offset.partition_id for r in results], pa.int32()),
            pa.array([int(r.offset.offset) for r in results], pa.int64()),
        ],
        schema=RAW,
    )
