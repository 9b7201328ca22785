"""``spark.readStream.format("udsource")``: records of any source.v1 server; exactly once if it can replay.

Spark calls the planner's methods (offsets, partitions, commit) in one process beside the driver, and ``read`` in pooled
workers, which receive a pickled reader; so no object here keeps a channel when it is pickled. ``replay`` and ``plain``
are the two planners; docs/spark-source.md has the options and the guarantee of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from json import dumps
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from dexorder_common.model.errors import InvalidRequest
from dexorder_spark.source.client import PendingUnknown, SourceClient
from dexorder_spark.source.in_flight import is_batch_offset
from dexorder_spark.source.offsets import OffsetRange, SourceState, to_json
from dexorder_spark.source.options import SourceOptions
from dexorder_spark.source.plain import PlainPlanner, RecordsPartition, read_now
from dexorder_spark.source.records import RECORD_DDL
from dexorder_spark.source.replay import RangePartition, ReplayPlanner, first_state, ranges_now

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Planner: TypeAlias = ReplayPlanner | PlainPlanner
"""Planner process of a stream; offsets are JSON objects."""
Decode: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Converts the records of a task."""


class UdSource(DataSource):
    """Data source; ``dexorder_spark.runtime.session`` registers it, docs/spark-source.md lists its options."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "udsource"

    def schema(self) -> str:
        """Return the columns of a record."""
        return RECORD_DDL

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader for ``readStream``."""
        return UdStreamReader(SourceOptions.parse(self.options))

    def reader(self, schema: Any) -> DataSourceReader:
        """Return the reader for ``read``, which never acks."""
        return UdBatchReader(SourceOptions.parse(self.options))


class UdStreamReader(DataSourceStreamReader):
    """Reader that delegates to the planner for this source, or for the checkpoint."""

    def __init__(self, options: SourceOptions, decode: Decode | None = None) -> None:
        self._options = options
        self._decode = decode
        self._planner: Planner | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the planner: workers do not plan."""
        return vars(self) | {"_planner": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the offset at which a new query starts."""
        return self._plan().initial_offset()

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch."""
        return self._plan().latest_offset()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch."""
        return self._plan(end).partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one task, in a worker."""
        return read_partition(self._options, partition, self._decode)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Handle that everything up to ``end`` is in Spark's commit log."""
        self._plan(end).commit(end)

    def stop(self) -> None:
        """Stop the planner."""
        if self._planner is not None:
            self._planner.stop()

    def _plan(self, checkpoint: Mapping[str, Any] | None = None) -> Planner:
        """Return the planner. A checkpoint's first offset decides which one; without one, the options and the server.

        Raises:
            InvalidRequest: The checkpoint belongs to the other planner, or the options do not fit the server.
            Unavailable: The server was unavailable for retrySeconds.
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
                f"the checkpoint was started {kind} replay, but {self._options.address} is now read {other} replay "
                f"(option replay={self._options.replay}); restore the option, or use a new checkpoint"
            )


class UdBatchReader(DataSourceReader):
    """Reader of the records that the source has when the query is planned."""

    def __init__(self, options: SourceOptions, decode: Decode | None = None) -> None:
        self._options = options
        self._decode = decode

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks."""
        state = replayed_from(self._options, 0)
        return read_now(self._options) if state is None else ranges_now(self._options, state)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one task, in a worker."""
        return read_partition(self._options, partition, self._decode)


def decoding_source(name: str, ddl: str, decode: Decode) -> type[DataSource]:
    """Return a data source that decodes records where they are read, to be registered before ``format(name)``.

    A record is then not sent from Python to Java and back, unlike with ``mapInArrow``.

    Args:
        ddl: Columns of the decoded rows.
        decode: Turns batches of ``RECORD`` into batches of these columns; runs in the workers, once for each task.
    """

    class DecodingSource(UdSource):
        """Data source of decoded rows; otherwise ``udsource``."""

        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> str:
            return ddl

        def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
            return UdStreamReader(SourceOptions.parse(self.options), decode)

        def reader(self, schema: Any) -> DataSourceReader:
            return UdBatchReader(SourceOptions.parse(self.options), decode)

    return DecodingSource


def read_partition(
    options: SourceOptions, partition: InputPartition, decode: Decode | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the Arrow batches of one task, in the columns ``RECORD`` or as ``decode`` returns them."""
    if isinstance(partition, RecordsPartition):
        batches = partition.read()
    else:
        assert isinstance(partition, RangePartition)
        batches = partition.read(options)
    return decode(batches) if decode else batches


def replayed_from(options: SourceOptions, seconds: float) -> SourceState | None:
    """Return the server's state for a read with replay, None for a read without.

    InvalidRequest if the server cannot replay, but the option demands it; else errors of ``first_state``.
    """
    if options.replay == "never":
        return None
    must_replay = options.replay == "always"
    try:
        return first_state(SourceClient(options.address, options.group), seconds, wait_unknown=must_replay)
    except NotImplementedError as error:
        if must_replay:
            raise InvalidRequest(f"option replay=always: {error}") from error
    except PendingUnknown:
        if must_replay:
            raise
    return None


def read_ranges(session: SparkSession, address: str, ranges: Sequence[OffsetRange]) -> DataFrame:
    """Return the records of some ranges, one of a partition at most, of a source that can replay."""
    nothing = dict(SourceClient(address).state().starts)
    start = nothing | {each.partition: each.start for each in ranges}
    end = nothing | {each.partition: each.end for each in ranges}
    reader = session.read.format(UdSource.name()).option("address", address).option("replay", "always")
    return reader.option("startingOffsets", dumps(to_json(start))).option("endingOffsets", dumps(to_json(end))).load()
