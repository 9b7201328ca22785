from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import grpc
import pytest
from prometheus_client import CollectorRegistry

from dexorder_common.kafka.page_record import page_value
from dexorder_common.model.errors import Unavailable
from dexorder_common.model.page import Kind, PageHeaders
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.metrics import IngestorMetrics
from dexorder_ingestor.publisher import IngestorPublisher
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2_grpc as relay_rpc
from dexorder_protos.kafkapixy import kafkapixy_pb2_grpc as pixy_rpc
from tests.unit.services.ingestor.conftest import FAST, minutes
from tests.unit.services.ingestor.fakes import FakeGateway, FakeRelay, grpc_peer

PAGE = PageHeaders(Kind.PAGE, "BTC/USDT.SIM", 60, "j1", 0, minutes(0, 10), 7, empty=(minutes(2, 3),), trace="t")


@dataclass
class Stage:
    gateway: FakeGateway
    relay: FakeRelay
    publisher: IngestorPublisher


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    gateway = FakeGateway()
    relay = FakeRelay(gateway)
    async with (
        grpc_peer(lambda s: pixy_rpc.add_KafkaPixyServicer_to_server(gateway, s)) as gateway_at,
        grpc_peer(lambda s: relay_rpc.add_IngestorServiceServicer_to_server(relay, s)) as relay_at,
        grpc.aio.insecure_channel(gateway_at) as one,
        grpc.aio.insecure_channel(relay_at) as two,
    ):
        yield Stage(
            gateway,
            relay,
            IngestorPublisher(one, two, IngestorSettings(**FAST), IngestorMetrics(CollectorRegistry())),
        )


async def test_record_and_report_carry_the_page(stage: Stage) -> None:
    await stage.publisher.produce(PAGE, page_value("r1", []))
    (record,) = stage.gateway.records
    assert (record.key, record.control, record.value.request_id) == (b"j1", PAGE, "r1")
    assert await stage.publisher.report_page(PAGE, 4, 7)
    (report,) = stage.relay.reports
    assert (report.job_id, report.start_ns, report.end_ns, report.candles) == (
        "j1",
        PAGE.span.start_ns,
        PAGE.span.end_ns,
        4,
    )
    assert [(r.start_ns, r.end_ns) for r in report.empty] == [(minutes(2, 3).start_ns, minutes(2, 3).end_ns)]
    stage.relay.fenced.add("j1")
    assert not await stage.publisher.report_page(PAGE, 4, 7)


# The gateway of this test sends no details, as a proxy: what forbids the call or has no route may let it through later.
FINAL = frozenset(
    grpc.StatusCode[name]
    for name in (
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "FAILED_PRECONDITION",
        "OUT_OF_RANGE",
    )
)


@pytest.mark.parametrize(
    "code", [c for c in grpc.StatusCode if c is not grpc.StatusCode.OK], ids=lambda code: code.name
)
async def test_codes_that_may_pass_are_tried_again_and_final_ones_are_not(stage: Stage, code: grpc.StatusCode) -> None:
    stage.gateway.trouble = [code]
    if code in FINAL:
        with pytest.raises(Unavailable, match=f"Produce failed: {code.name}: as the test wants it"):
            await stage.publisher.produce(PAGE, b"")
    else:
        await stage.publisher.produce(PAGE, b"")
    assert len(stage.gateway.records) == (code not in FINAL)
