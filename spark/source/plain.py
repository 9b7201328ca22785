"""Any source of source.v1, at least once: the planner reads, keeps and acks; tasks get records inside their partition.

What Spark 4.1 does, in this order (MicroBatchExecution and, for Trigger.AvailableNow, its wrapper of our stream):

1. ``latestOffset``. The same offset as before: nothing to do, asked again at the next poll.
2. The offset log gets the batch; only then ``commit`` of the batch before.
3. ``partitions``, tasks, sink; then the commit log gets the batch, and it begins again at 1.

So whatever ``partitions`` was asked for is in the commit log when ``latestOffset`` is asked next, by the same
planner: there its records are acked, also while idle, and also for sources that give nothing new before all is acked,
for which ``commit`` would never come. A batch that fails ends the query and its planner, and nobody is asked again.

A restarted query begins with ``partitions(end, end)`` and repeats the batch that the commit log misses. Its records
went with the old planner; nothing of it was acked, so the source gives them again and they come with the next batch.

Trigger.AvailableNow has a wrapper for streams like ours, if spark.sql.streaming.triggerAvailableNowWrapper.enabled is
set. It asks ``latestOffset`` once for its end, before anything else, and again ahead of each batch and at the end, for
its metrics. Reading then would take records that no batch will have, so once the trigger is known, nothing more is
read. It is known by what no other does: ``partitions(end, end)`` of a checkpoint comes after ``latestOffset``, or
``latestOffset`` comes again when ``initialOffset`` was asked, or a batch offered, but nothing planned. Its last
question comes behind the commit log, so everything is acked when the query ends.

Without the wrapper, which is Spark's default, Trigger.AvailableNow is Trigger.Once: one batch, and no question behind
it. That batch is acked by nobody.
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

from services.common.model.errors import Unavailable
from spark.source.client import SourceRefuses
from spark.source.in_flight import BatchOffset, InFlight, RecordId, records_to_request
from spark.source.options import SourceOptions
from spark.source.records import Result, to_batch
from spark.source.streams import AckRefused, PlainStreams

log = logging.getLogger(__name__)
_IDLE_WAIT_S = 0.5
_MORE_TIMEOUT_MS = 50
"""How long a read behind the first of a batch may wait: what is there already goes ahead."""
_RECORD_BYTES = 100
"""What a record costs beside its message, about."""
_REFUSALS = 3
"""Refused acks of a batch after which it is given up: the source has been read in between, it does not know it."""


@dataclass
class RecordsPartition(InputPartition):
    """Records of one task, an Arrow stream."""

    stream: bytes

    def read(self) -> Iterator[pa.RecordBatch]:
        """The records, in a worker."""
        if not self.stream:
            return
        with pa.ipc.open_stream(self.stream) as reader:
            yield from reader


class PlainPlanner:
    """The stream's planner; see the module."""

    def __init__(self, options: SourceOptions) -> None:
        """Take the options; nothing is opened yet.

        Raises:
            InvalidRequest: They ask for what only a source that can replay can do.
        """
        options.check_plain()
        self._options = options
        self._in_flight = InFlight(secrets.token_hex(8))
        self._streams = PlainStreams(options.address, answer_seconds=options.retry_seconds)
        self._reader = Reader(options, self._streams, self._in_flight)
        self._planned: BatchOffset | None = None
        self._awaits_plan = self._asked = self._is_end_fixed = self._reached = False
        self._refused: dict[int, int] = {}

    def initial_offset(self) -> dict[str, Any]:
        """Before the first batch of this run."""
        self._awaits_plan = True
        return BatchOffset(self._in_flight.run, 0).to_json()

    def latest_offset(self) -> dict[str, Any]:
        """Ack what is committed, read, and offer what came.

        A source that goes away later means nothing new, with a warning: a query outlives a restart of its source.

        Raises:
            Unavailable: The source was never there, for retrySeconds.
            SourceRefuses: It refuses to be read.
            SourceBroken: A record can't be read; see ``streams``.
        """
        if self._planned is not None:
            self._in_flight.commit(self._planned)
            self._planned = None
        if self._awaits_plan:
            self._fix_end()
        self._ack()
        if not self._is_end_fixed:
            self._read()
        before, offered = self._in_flight.end, self._in_flight.offer()
        self._asked = True
        self._awaits_plan = self._awaits_plan or offered != before
        return offered.to_json()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """The records of a batch, cut for tasks; one task without any for a batch of an older run."""
        first, last = BatchOffset.from_json(start), BatchOffset.from_json(end)
        self._awaits_plan = False
        if first != last:
            self._planned = last
        elif last.run != self._in_flight.run:
            self._in_flight.resume(last)
            if self._asked:
                self._fix_end()
        return [RecordsPartition(_stream(table)) for table in self._in_flight.parts(first, last)] or [
            RecordsPartition(b"")
        ]

    def commit(self, end: Mapping[str, Any]) -> None:
        """Ack the batch, if that was not done before."""
        self._in_flight.commit(BatchOffset.from_json(end))
        self._ack()

    def stop(self) -> None:
        """End the calls; what is not acked comes again to the next planner."""
        self._streams.close()

    def _fix_end(self) -> None:
        if not self._is_end_fixed:
            log.info("udsource: this is Trigger.AvailableNow: what came so far is all that this query reads")
        self._is_end_fixed = True

    def _ack(self) -> None:
        for batch, ids in list(self._in_flight.to_ack.items()):
            try:
                self._streams.ack(ids)
            except Unavailable as error:
                log.warning("udsource: ack postponed: %s", error)
                return
            except AckRefused as error:
                self._refused[batch] = self._refused.get(batch, 0) + 1
                if self._refused[batch] < _REFUSALS:
                    log.warning("udsource: ack postponed: %s", error)
                    return
                log.warning("udsource: the source may give %d records again: %s", len(ids), error)
            self._refused.pop(batch, None)
            self._in_flight.settle(batch)

    def _read(self) -> None:
        give_up_s = time.monotonic() + self._options.retry_seconds
        while True:
            try:
                self._reader.fill(self._options.drain)
                self._reached = True
                return
            except SourceRefuses:
                raise
            except Unavailable as error:
                if not self._reached and time.monotonic() >= give_up_s:
                    raise
                log.warning("udsource: no new records: %s", error)
                time.sleep(_IDLE_WAIT_S)
                if self._reached:
                    return


class Reader:
    """Fills the open batch of what is held."""

    def __init__(self, options: SourceOptions, streams: PlainStreams, in_flight: InFlight) -> None:
        self._options = options
        self._streams = streams
        self._in_flight = in_flight
        self._records = self._bytes = 0

    def fill(self, drain: bool, *, whole: bool = False) -> None:
        """Read until the source has nothing, or the batch is full.

        Args:
            drain: Only maxBytesPerBatch makes it full; and each read waits as long as the first for something to come.
            whole: A source that is lost on the way is an error; else what came is a batch.

        Raises:
            Unavailable: The source failed or was lost, before anything came if not ``whole``.
            SourceRefuses: It refuses to be read.
            SourceBroken: A record can't be read.
        """
        timeout_ms, copies = self._options.read_timeout_ms, 0
        while (most := self._room(drain)) > 0:
            try:
                results = self._streams.read(most, timeout_ms)
            except Unavailable as error:
                if whole or not self._in_flight.open_records or isinstance(error, SourceRefuses):
                    raise
                log.warning("udsource: the batch ends early: %s", error)
                return
            if not results:
                return
            copies += len(results) - self._hold(results)
            # Each comes once more on a new stream. This source gives the unacked whenever it is asked.
            if copies > self._in_flight.records:
                return
            if not drain and self._in_flight.open_records:
                timeout_ms = min(timeout_ms, _MORE_TIMEOUT_MS)
        if drain:
            log.warning(
                "udsource: maxBytesPerBatch ended the batch at %d records; the rest comes with the next",
                self._in_flight.open_records,
            )

    def _room(self, drain: bool) -> int:
        left_bytes = self._options.max_bytes - self._in_flight.open_bytes
        left = self._options.max_records - (0 if drain else self._in_flight.open_records)
        if left_bytes <= 0 or left <= 0:
            return 0
        return records_to_request(left, left_bytes, self._bytes / self._records if self._records else 0)

    def _hold(self, results: Sequence[Result]) -> int:
        ids: list[RecordId] = [(r.offset.partition_id, r.offset.offset) for r in results]
        sizes = [r.ByteSize() + _RECORD_BYTES for r in results]
        self._records = self._records + len(sizes)
        self._bytes = self._bytes + sum(sizes)
        new = self._in_flight.fresh(ids)
        if new:
            rows = to_batch([results[index] for index in new])
            self._in_flight.add(rows, [ids[index] for index in new], [sizes[index] for index in new])
        return len(new)


def read_now(options: SourceOptions) -> list[RecordsPartition]:
    """For a batch read: what the source has until it has nothing, or maxBytesPerBatch of it. Nothing is acked.

    Raises:
        InvalidRequest: An option asks for what only a source that can replay can do.
        Unavailable: The source can't be read.
        SourceBroken: A record can't be read.
    """
    options.check_plain()
    streams, in_flight = PlainStreams(options.address, answer_seconds=options.retry_seconds), InFlight("")
    try:
        Reader(options, streams, in_flight).fill(drain=True, whole=True)
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
