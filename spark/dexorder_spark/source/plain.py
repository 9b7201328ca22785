"""Planner for any source.v1 server, at least once: it reads, keeps and acks the records; tasks only hand them on.

Spark 4.1 makes these calls in this order (MicroBatchExecution):

1. ``latestOffset``. The same offset as before means no new records; the next poll calls it again.
2. Spark writes the batch to the offset log, then calls ``commit`` for the batch before.
3. ``partitions``, tasks, sink; then Spark writes the batch to the commit log and continues with step 1.

So the batch of the last ``partitions`` call is in the commit log when ``latestOffset`` is called next, in the same
planner. Its records are acked there, even while the query is idle. Some sources send new records only after all records
were acked; for them ``commit`` would never be called. A batch that fails ends the query and its planner.

A restarted query starts with ``partitions(end, end)`` and repeats the batch that is missing in the commit log. Its
records were lost with the old planner, unacked, so the source sends them again and the next batch has them.

A query of one batch (Trigger.Once, Trigger.AvailableNow) has no call after it, so that batch is never acked.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from dexorder_common.model.errors import Unavailable
from dexorder_spark.source.client import SourceRefuses
from dexorder_spark.source.in_flight import BatchOffset, InFlight, RecordId, records_to_request
from dexorder_spark.source.options import SourceOptions
from dexorder_spark.source.records import Result, to_batch
from dexorder_spark.source.streams import AckRefused, PlainStreams

log = logging.getLogger(__name__)
_IDLE_WAIT_S = 0.5
_FIRST_RECORDS, _MOST_RECORDS = 600, 10_000
"""Largest number of records in a read, before their size is known and after; also of a batch, unless an option says."""
_MORE_TIMEOUT_MS = 50
"""Timeout of every read of a batch but the first: a batch does not wait for more records."""
_RECORD_BYTES = 100
"""Approximate memory of a record in addition to its message."""
_REFUSALS = 3
"""Refused acks of a batch after which it is dropped: the source was read in between and does not know the batch."""


@dataclass
class RecordsPartition(InputPartition):
    """Records of one task as an Arrow stream."""

    stream: bytes

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the records, in a worker."""
        if not self.stream:
            return
        with pa.ipc.open_stream(self.stream) as reader:
            yield from reader


class PlainPlanner:
    """Planner of a stream; see the module."""

    def __init__(self, options: SourceOptions) -> None:
        """Check the options; InvalidRequest if one needs replay. No call is opened yet."""
        options.check_plain()
        self._options = options
        self._in_flight = InFlight(secrets.token_hex(8))
        self._streams = PlainStreams(options.address, answer_seconds=options.retry_seconds)
        self._reader = Reader(options, self._streams, self._in_flight)
        self._planned: BatchOffset | None = None
        self._was_reached = False
        self._refusals: dict[int, int] = {}

    def initial_offset(self) -> dict[str, Any]:
        """Return the offset before the first batch of this run."""
        return BatchOffset(self._in_flight.run, 0).to_json()

    def latest_offset(self) -> dict[str, Any]:
        """Ack committed records, read, and return the end of a batch with the new records.

        If the source becomes unavailable later, a warning is logged and the end stays: a query survives a restart of
        its source.

        Raises:
            Unavailable: The source was unavailable for retrySeconds since the start.
            SourceRefuses: The source denies access.
            SourceBroken: A record cannot be read; see ``streams``.
        """
        if self._planned is not None:
            self._in_flight.commit(self._planned)
            self._planned = None
        self._ack()
        self._read()
        return self._in_flight.offer().to_json()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """Return the records of a batch, cut for tasks; one task without records for a batch of an older run."""
        first, last = BatchOffset.from_json(start), BatchOffset.from_json(end)
        if first != last:
            self._planned = last
        elif last.run != self._in_flight.run:
            self._in_flight.resume(last)
        return [RecordsPartition(_stream(table)) for table in self._in_flight.parts(first, last)] or [
            RecordsPartition(b"")
        ]

    def commit(self, end: Mapping[str, Any]) -> None:
        """Ack the batch unless it is acked already."""
        self._in_flight.commit(BatchOffset.from_json(end))
        self._ack()

    def stop(self) -> None:
        """End the calls; the source sends unacked records again to the next planner."""
        self._streams.close()

    def _ack(self) -> None:
        for batch, ids in list(self._in_flight.to_ack.items()):
            try:
                self._streams.ack(ids)
            except Unavailable as error:
                log.warning("udsource: ack postponed: %s", error)
                return
            except AckRefused as error:
                self._refusals[batch] = self._refusals.get(batch, 0) + 1
                if self._refusals[batch] < _REFUSALS:
                    log.warning("udsource: ack postponed: %s", error)
                    return
                log.warning("udsource: the source may send %d records again: %s", len(ids), error)
            self._refusals.pop(batch, None)
            self._in_flight.settle(batch)

    def _read(self) -> None:
        give_up_s = time.monotonic() + self._options.retry_seconds
        while True:
            try:
                self._reader.fill()
                self._was_reached = True
                return
            except SourceRefuses:
                raise
            except Unavailable as error:
                if not self._was_reached and time.monotonic() >= give_up_s:
                    raise
                log.warning("udsource: no new records: %s", error)
                time.sleep(_IDLE_WAIT_S)
                if self._was_reached:
                    return


class Reader:
    """Reads records into the open batch."""

    def __init__(self, options: SourceOptions, streams: PlainStreams, in_flight: InFlight) -> None:
        self._options = options
        self._streams = streams
        self._in_flight = in_flight
        self._records = 0
        self._bytes = 0

    def fill(self, *, drain: bool = False) -> None:
        """Read until the source is empty or the batch is full.

        Args:
            drain: The batch is limited by maxBytesPerBatch only, and every read waits as long as the first. Raise if
                the source is lost after some records; else they form the batch.

        Raises:
            Unavailable: The source failed or was lost; unless ``drain``, before any record.
            SourceRefuses: The source denies access.
            SourceBroken: A record cannot be read.
        """
        timeout_ms, copies = self._options.read_timeout_ms, 0
        while (limit := self._room(drain)) > 0:
            try:
                results = self._streams.read(limit, timeout_ms)
            except Unavailable as error:
                if drain or not self._in_flight.open_records or isinstance(error, SourceRefuses):
                    raise
                log.warning("udsource: the batch ends early: %s", error)
                return
            if not results:
                return
            copies += len(results) - self._add(results)
            # A new stream sends each record once again. This source sends unacked records at every read.
            if copies > self._in_flight.records:
                return
            if not drain and self._in_flight.open_records:
                timeout_ms = min(timeout_ms, _MORE_TIMEOUT_MS)
        if drain:
            log.warning(
                "udsource: maxBytesPerBatch ended the read at %d records; the source has more",
                self._in_flight.open_records,
            )

    def _room(self, drain: bool) -> int:
        left_bytes = self._options.max_bytes - self._in_flight.open_bytes
        limit = self._options.max_records or _MOST_RECORDS
        left = limit - (0 if drain else self._in_flight.open_records)
        if left_bytes <= 0 or left <= 0:
            return 0
        if not self._records:
            return min(left, _FIRST_RECORDS)
        return records_to_request(left, left_bytes, self._bytes / self._records)

    def _add(self, results: Sequence[Result]) -> int:
        ids: list[RecordId] = [(r.offset.partition_id, r.offset.offset) for r in results]
        sizes = [r.ByteSize() + _RECORD_BYTES for r in results]
        self._records += len(sizes)
        self._bytes += sum(sizes)
        new = self._in_flight.fresh(ids)
        if new:
            rows = to_batch([results[index] for index in new])
            self._in_flight.add(rows, [ids[index] for index in new], [sizes[index] for index in new])
        return len(new)


def read_now(options: SourceOptions) -> list[RecordsPartition]:
    """Return the tasks of a batch read: all records the source has, at most maxBytesPerBatch. Records are not acked.

    InvalidRequest if an option needs replay; else errors of ``Reader.fill``.
    """
    options.check_plain()
    streams, in_flight = PlainStreams(options.address, answer_seconds=options.retry_seconds), InFlight("")
    try:
        Reader(options, streams, in_flight).fill(drain=True)
    finally:
        streams.close()
    return [RecordsPartition(_stream(table)) for table in in_flight.parts(in_flight.end, in_flight.offer())] or [
        RecordsPartition(b"")
    ]


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())
