"""``spark.readStream.format("udsource")``: records of any source.v1 server; exactly once where it can replay.

Spark calls the planner's methods (offsets, partitions, commit) in one process beside the driver and ``read`` in pooled
workers, which get a pickled reader: so nothing here holds a channel across a pickle. ``replay`` and ``plain`` are the
two ways to plan; docs/spark-source.md has the options and what each way guarantees.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from services.common.model.errors import InvalidRequest
from spark.pipeline.columns import RECORD_DDL
from spark.source.client import PendingUnknown, SourceClient
from spark.source.in_flight import is_batch_offset
from spark.source.offsets import SourceState
from spark.source.options import SourceOptions
from spark.source.plain import PlainPlanner, RecordsPartition, read_now
from spark.source.replay import RangePartition, ReplayPlanner, ack_before, first_state, ranges_now

__all__ = ["UdSource", "ack_before"]


class Planner(Protocol):
    """What the planner process of a stream does; offsets are JSON objects."""

    def initial_offset(self) -> dict[str, Any]:
        """Where a new query begins."""

    def latest_offset(self) -> dict[str, Any]:
        """The end of the next batch; the last one's while there is nothing new."""

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch."""

    def commit(self, end: Mapping[str, Any]) -> None:
        """Everything up to ``end`` is in Spark's commit log."""

    def stop(self) -> None:
        """The query has ended."""


class UdSource(DataSource):
    """Registered under its name by ``spark.runtime.session``; options are in ``spark.source.options``."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return "udsource"

    def schema(self) -> str:
        """Columns of a record."""
        return RECORD_DDL

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        """For ``readStream``."""
        return UdStreamReader(SourceOptions.parse(self.options))

    def reader(self, schema: Any) -> DataSourceReader:
        """For ``read``: one look, without acks."""
        return UdBatchReader(SourceOptions.parse(self.options))


class UdStreamReader(DataSourceStreamReader):
    """Hands Spark's calls to the planner that fits the source, or the checkpoint."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._planner: Planner | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without the planner: workers read, they do not plan."""
        return {"_options": self._options, "_planner": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a new query begins."""
        return self._plan().initial_offset()

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch."""
        return self._plan().latest_offset()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch."""
        return self._plan(end).partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task, in a worker."""
        return read_partition(self._options, partition)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Everything up to ``end`` is in Spark's commit log."""
        self._plan(end).commit(end)

    def stop(self) -> None:
        """End the planner."""
        if self._planner is not None:
            self._planner.stop()

    def _plan(self, checkpoint: Mapping[str, Any] | None = None) -> Planner:
        """The planner; which one, the first offset of a checkpoint says, else the options and the server.

        Raises:
            InvalidRequest: The checkpoint was begun the other way, or the options do not fit the server.
            Unavailable: The server was away for retrySeconds.
        """
        if self._planner is None:
            if checkpoint is not None:
                can_replay = not is_batch_offset(checkpoint)
            else:
                can_replay = replayed_from(self._options, self._options.retry_seconds) is not None
            self._planner = ReplayPlanner(self._options) if can_replay else PlainPlanner(self._options)
        if checkpoint is not None:
            self._check(checkpoint)
        return self._planner

    def _check(self, checkpoint: Mapping[str, Any]) -> None:
        plain = isinstance(self._planner, PlainPlanner)
        unwanted = self._options.replay == ("always" if plain else "never")
        if is_batch_offset(checkpoint) != plain or unwanted:
            kind, other = ("without", "with") if is_batch_offset(checkpoint) else ("with", "without")
            raise InvalidRequest(
                f"the checkpoint was begun {kind} replay, and {self._options.address} is read {other} it now "
                f"(option replay={self._options.replay}): set replay as it was, or begin a new checkpoint"
            )


class UdBatchReader(DataSourceReader):
    """One look at the source as it is at planning."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks."""
        state = replayed_from(self._options, 0)
        return read_now(self._options) if state is None else ranges_now(self._options, state)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task, in a worker."""
        return read_partition(self._options, partition)


def read_partition(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Arrow batches of one task, in the columns of ``spark.pipeline.columns.RECORD``."""
    if isinstance(partition, RecordsPartition):
        return partition.read()
    assert isinstance(partition, RangePartition)
    return partition.read(options)


def replayed_from(options: SourceOptions, seconds: float) -> SourceState | None:
    """The server's state if it is to be replayed, None if it is to be read plainly.

    Raises:
        InvalidRequest: It cannot replay, and must.
        Unavailable: It was away for so long.
        SourceRefuses: It does not let us in.
    """
    if options.replay == "never":
        return None
    try:
        return first_state(SourceClient(options.address), seconds, wait_unknown=options.replay == "always")
    except NotImplementedError as error:
        if options.replay == "always":
            raise InvalidRequest(f"option replay=always: {error}") from error
        return None
    except PendingUnknown:
        if options.replay == "always":
            raise
        return None
