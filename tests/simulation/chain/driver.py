"""One life of the pipeline's driver: the product's decoding, admission and place, over the model of the table."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
from google.protobuf.message import Message

from dexorder_common.model.history import IssuedDispatch
from dexorder_common.rpc.history_messages import decode_issued_dispatch
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as pb
from dexorder_spark.pipeline.controls import DECODED, Rules
from dexorder_spark.pipeline.decode import decode_record
from dexorder_spark.pipeline.decoded import Decoded
from dexorder_spark.pipeline.place import SourcePlace
from dexorder_spark.records.admission import Place, RecordRefusal, refusal
from dexorder_spark.records.relay_client import CALL_TIMEOUT_S, may_succeed
from dexorder_spark.records.reporter import MAX_REPORT_BYTES, split_report, to_request
from dexorder_spark.source.offsets import SourceState, resume
from dexorder_spark.tables.ohlc import CANDLES
from tests.simulation.chain.parts import Parts
from tests.simulation.kafka import Record
from tests.simulation.loop import Process
from tests.simulation.network import CallFailed
from tests.simulation.table import TableBatch

SOURCE = "udsource"
_SERVICE = "/dexorder.relay.v1.PipelineService/"
MOST_RECORDS = 20
_FIELDS = [field.name for field in DECODED.field("control").type]


class Driver:
    """A life of a driver. Two may run at the same time, as when one is believed to be dead."""

    def __init__(self, parts: Parts, process: Process) -> None:
        self.parts = parts
        self.process = process
        self._clock = parts.run.clock(process)
        self._random = parts.supervisor.generator(process)

    async def live(self) -> None:
        """Process batches until the end."""
        parts = self.parts
        await parts.table.pause()
        place = SourcePlace(SOURCE, "topic", position=self._start())
        while True:
            await parts.log.wait(place.position)
            await asyncio.sleep(self._random.uniform(0.2, 2.0))
            await self._process(place, parts.log.after(place.position, MOST_RECORDS))

    def _start(self) -> dict[int, int]:
        starts = dict.fromkeys(range(len(self.parts.log.partitions)), 0)
        return resume(self.parts.table.current.state.position(SOURCE), SourceState(starts, {}, {}))

    async def _process(self, place: SourcePlace, records: list[Record]) -> None:
        rows = list[pa.RecordBatch]()
        decoded = self._decode(records, rows.append, Rules(self._clock.wall_ns()))
        if refused := await self._refusals(decoded):
            rows.clear()
            decoded = self._decode(records, rows.append, Rules(self._clock.wall_ns(), refused))
        pages, finals = decoded.pages(), decoded.finals()
        good = {at: page for at, page in pages.items() if page.refused is None}
        await self._pass("before it commits")
        table = TableBatch(self.parts.table, rows, self._clock.wall_ns())
        snapshot_id = await place.commit(table, good, decoded.ends())
        if snapshot_id is not None:
            self.parts.run.note(f"{self.process.name} commits {len(good)} pages, {len(refused)} records refused")
        await self._pass("when rows are committed, before the report")
        if pages or finals:
            report = to_request(snapshot_id or self.parts.table.current.number, list(pages.values()), finals)
            for part in split_report(report, MAX_REPORT_BYTES):
                await self.repeat("ReportJobs", part)
        await self._pass("when it has reported, before it goes on")
        place.reported(decoded.ends())

    async def repeat(self, method: str, request: Message) -> Any:
        """Call the relay until it answers OK."""
        wait = 0.1
        while True:
            try:
                return await self.call(method, request)
            except CallFailed as error:
                if not may_succeed(error):
                    raise
            await asyncio.sleep(wait + self._random.uniform(0.0, 0.2))
            wait = min(2 * wait, 2.0)

    async def call(self, method: str, request: Message) -> Any:
        """Call the relay once."""
        return await self.parts.run.network.call("relay", _SERVICE + method, request, timeout=CALL_TIMEOUT_S)

    def _decode(self, records: list[Record], take: Any, rules: Rules) -> Decoded:
        rows = []
        for each in records:
            given = {
                "payload": each.payload,
                "headers": each.headers,
                "partition": each.partition,
                "offset": each.offset,
            }
            for row in decode_record(CANDLES, given, take, rules):
                control = SimpleNamespace(**(dict.fromkeys(_FIELDS) | row["control"]))
                rows.append(
                    SimpleNamespace(kind=row["kind"], control=control, partition=each.partition, offset=each.offset)
                )
        return Decoded(CANDLES, cast(Any, rows))

    async def _refusals(self, decoded: Decoded) -> dict[Place, RecordRefusal]:
        candidates = decoded.candidates()
        wanted = sorted({each.dispatch_id for each in candidates})
        if not wanted:
            return {}
        answer: pb.DescribeDispatchesResponse = await self.repeat(
            "DescribeDispatches", pb.DescribeDispatchesRequest(job_ids=wanted)
        )
        issued: dict[str, IssuedDispatch] = {each.job_id: decode_issued_dispatch(each) for each in answer.dispatches}
        now_ns, found = self._clock.wall_ns(), dict[Place, RecordRefusal]()
        for each in candidates:
            why = refusal(each.dispatch_id, each.series, each.span, issued, is_page=each.is_page, now_ns=now_ns)
            if why is not None:
                found[each.place] = why
        return found

    async def _pass(self, what: str) -> None:
        await self.parts.supervisor.moment(self.process, what)
