"""Mutated messages to every method of relay, gateway and udsource: refused as bad input, never a fault of ours.

    DEXORDER_SOAK_PROTOBUFS=20000   # for each method

A method that streams without an end is asked less often, since every message that happens to be sound costs a wait;
so is one whose every sound message is a question to Kafka.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest

from dexorder_common.model.datasets import CANDLES
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2
from dexorder_protos.dexorder.relay.v1 import common_pb2 as common_pb
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as history_pb
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2, pipeline_service_pb2
from dexorder_protos.dexorder.relay.v1 import rows_service_pb2 as rows_pb
from dexorder_protos.kafkapixy import kafkapixy_pb2 as pixy
from dexorder_protos.source.v1 import source_pb2 as source
from tests.nightly.broker_fuzz import mutated
from tests.rig.oracle import minutes
from tests.rig.suite import Suite, running_suite
from tests.series_messages import series

MESSAGES = int(os.environ.get("DEXORDER_SOAK_PROTOBUFS", "20000"))
STREAM_SHARE = 20
CALLERS = 16
CALL_SECONDS, STREAM_SECONDS = 20.0, 0.05
SPAN = minutes(0, 10)
TIME: dict[str, Any] = {"start_time": SPAN.start_ns, "end_time": SPAN.end_ns}
"""Of messages of the ingest protocol."""
TIME_NS: dict[str, Any] = {"start_ns": SPAN.start_ns, "end_ns": SPAN.end_ns}
RANGE = common_pb.TimeRange(**TIME_NS)
OURS = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.DATA_LOSS}
"""Codes that would be a fault of the server here; and INTERNAL, where it is not one that the protocol asks for."""
UNEXPECTED = "internal error"
RELAY = "/dexorder.relay.v1."
METHODS: dict[str, tuple[str, Any]] = {
    RELAY + "HistoryService/SubmitHistorical": (
        "relay",
        ingest_pb2.SubmitHistoricalRequest(
            request_id="r", ticker="BTC/USDT.SIM", period_seconds=60, limit=5, client_id="c", **TIME
        ),
    ),
    RELAY + "HistoryService/GetRequest": ("relay", history_pb.GetRequestRequest(request_id="r")),
    RELAY + "HistoryService/ListRequests": (
        "relay",
        history_pb.ListRequestsRequest(
            client_id="c", state=history_pb.REQUEST_STATE_QUEUED, page_size=5, page_token="9"
        ),
    ),
    RELAY + "HistoryService/CancelRequest": ("relay", history_pb.CancelRequestRequest(request_id="x")),
    RELAY + "HistoryService/ListInstruments": ("relay", history_pb.ListInstrumentsRequest(exchange="SIM")),
    RELAY + "RowsService/GetCatalog": ("relay", rows_pb.GetCatalogRequest()),
    RELAY + "IngestorService/ReportPage": (
        "relay",
        ingestor_service_pb2.ReportPageRequest(job_id="j", candles=10, empty=[RANGE], **TIME_NS),
    ),
    RELAY + "IngestorService/ReportDelay": (
        "relay",
        ingestor_service_pb2.ReportDelayRequest(
            job_id="j", delay=history_pb.Delay(reason="no answer", retries=2, next_attempt_ns=1, banned_until_ns=2)
        ),
    ),
    RELAY + "IngestorService/ReportInstruments": (
        "relay",
        ingestor_service_pb2.ReportInstrumentsRequest(
            exchange="SIM", fetched_ns=1, instruments=[history_pb.Instrument(ticker="BTC/USDT.SIM", active=True)]
        ),
    ),
    RELAY + "PipelineService/ReportJobs": (
        "relay",
        pipeline_service_pb2.ReportJobsRequest(
            snapshot_id=1,
            finals=[pipeline_service_pb2.FinalResult(job_id="j")],
            pages=[
                pipeline_service_pb2.PageResult(
                    job_id="j", series=series("XRP/USDT.SIM", 60), rows=3, empty=[RANGE], **TIME_NS
                )
            ],
        ),
    ),
    "/KafkaPixy/Produce": (
        "gateway",
        pixy.ProdRq(
            topic=CANDLES.topic,
            key_value=b"k",
            message=b"m",
            async_mode=True,
            headers=[pixy.RecordHeader(key="h", value=b"v")],
        ),
    ),
    "/KafkaPixy/Ack": ("gateway", pixy.AckRq(topic=CANDLES.topic, group="g", partition=1, offset=2)),
    "/source.v1.Source/NackFn": (
        "udsource",
        source.NackRequest(request=source.NackRequest.Request(offsets=[source.Offset(offset=b"1", partition_id=1)])),
    ),
}
_GROUP: dict[str, Any] = {"topic": CANDLES.topic, "group": "g"}
QUESTIONS: dict[str, tuple[str, Any]] = {
    "/KafkaPixy/GetOffsets": ("gateway", pixy.GetOffsetsRq(**_GROUP)),
    "/KafkaPixy/SetOffsets": (
        "gateway",
        pixy.SetOffsetsRq(
            offsets=[pixy.PartitionOffset(partition=p, offset=0, metadata="BB") for p in range(2)], **_GROUP
        ),
    ),
    "/KafkaPixy/ListTopics": ("gateway", pixy.ListTopicRq(with_partitions=True)),
    "/KafkaPixy/ListConsumers": ("gateway", pixy.ListConsumersRq(**_GROUP)),
    "/KafkaPixy/GetTopicMetadata": (
        "gateway",
        pixy.GetTopicMetadataRq(topic=CANDLES.topic, with_partitions=True),
    ),
}
STREAMS: dict[str, tuple[str, Any]] = {
    RELAY + "HistoryService/WatchProgress": ("relay", history_pb.WatchProgressRequest(request_id="r")),
    RELAY + "HistoryService/WatchNotifications": (
        "relay",
        history_pb.WatchNotificationsRequest(topic="HISTORY_READY:r", after=common_pb.Cursor(epoch="e", sequence=3)),
    ),
    RELAY + "HistoryService/SubmitHistoricalBatch": (
        "relay",
        history_pb.SubmitHistoricalBatchRequest(
            requests=[
                ingest_pb2.SubmitHistoricalRequest(
                    request_id=each, ticker="BTC/USDT.SIM", period_seconds=60, client_id="c", **TIME
                )
                for each in ("b1", "b2")
            ],
            with_progress=True,
        ),
    ),
    RELAY + "HistoryService/StreamOhlc": (
        "relay",
        history_pb.StreamOhlcRequest(
            request=ingest_pb2.OHLCRequest(request_id="f", ticker="BTC/USDT.SIM", period_seconds=60, limit=5, **TIME)
        ),
    ),
}
PING = RELAY + "RowsService/GetCatalog"
pytestmark = [pytest.mark.soak, pytest.mark.timeout(len(METHODS) * MESSAGES // 100 + 900)]


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suite]:
    folder: Path = tmp_path_factory.mktemp("fuzz") / "state"
    with running_suite(folder, "--only", "kafka,relay,gateway,udsource") as running:
        yield running


@pytest.mark.parametrize("method", [*METHODS, *QUESTIONS, *STREAMS])
async def test_mutated_messages_are_bad_input_and_nothing_else(suite: Suite, method: str) -> None:
    part, sample = {**METHODS, **QUESTIONS, **STREAMS}[method]
    streams = method in STREAMS
    before = suite.pid(part)
    async with grpc.aio.insecure_channel(suite.address(part)) as channel:
        seen = await flood(channel, method, sample.SerializeToString(), streams, Random(method))
    assert suite.pid(part) == before, suite.logs()
    async with grpc.aio.insecure_channel(suite.relay) as channel:
        ping: Any = channel.unary_unary(PING)
        await ping(b"", timeout=CALL_SECONDS)
    print(
        f"\n| {method[1:]} | {sum(seen.values()):,} | {', '.join(f'{c.name} {n:,}' for c, n in seen.most_common())} |"
    )
    assert not OURS & set(seen), seen


async def flood(channel: Any, method: str, sample: bytes, streams: bool, random: Random) -> Counter[Any]:
    """Answers by code, to so many mutations from several callers."""
    seen: Counter[Any] = Counter()
    left = iter(range(MESSAGES if method in METHODS else MESSAGES // STREAM_SHARE))

    async def caller() -> None:
        for _ in left:
            seen[await ask(channel, method, mutated(sample, random), streams)] += 1

    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return seen


async def ask(channel: Any, method: str, message: bytes, streams: bool) -> grpc.StatusCode:
    """The answer's code; OK too for a stream that has answered, or has nothing to say yet."""
    try:
        if streams:
            await channel.unary_stream(method)(message, timeout=STREAM_SECONDS).read()
        else:
            await channel.unary_unary(method)(message, timeout=CALL_SECONDS)
    except grpc.aio.AioRpcError as error:
        if streams and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return grpc.StatusCode.OK
        unexpected = (error.details() or "").startswith(UNEXPECTED)
        return grpc.StatusCode.UNKNOWN if unexpected else error.code()
    return grpc.StatusCode.OK
