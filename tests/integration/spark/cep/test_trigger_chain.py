"""From RegisterTrigger to a subscriber and to the gateway: relay, the driver's host and its process, without Kafka."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from dexorder_common.clock import SystemClock
from dexorder_common.kafka.page_record import page_value
from dexorder_common.model.page import Candle, Kind, PageHeaders
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_common.rpc.trigger_messages import decode_event
from dexorder_protos.dexorder.events.v1 import event_service_pb2 as epb
from dexorder_protos.dexorder.events.v1 import event_service_pb2_grpc as erpc
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as user
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import trigger_service_pb2 as pb
from dexorder_spark.cep.host import TriggerHost
from tests.fakes.source_server import FakeSource, RunningSource
from tests.unit.services.relay.harness import TICKER, Suite, suite
from tests.unit.services.relay.realtime.worker import RawWorker

MINUTE_NS = 60 * SECOND_NS
HOSTILE = (
    "SELECT * FROM ohlc MATCH_RECOGNIZE (PARTITION BY ticker ORDER BY ts MEASURES LAST(A.close) AS a PATTERN (A B* C) "
    "DEFINE B AS SUM(B.close) + AVG(B.close) + MAX(B.close) > 0, C AS C.close > 1000)"
)
CANDLES = 400
SQL = "SELECT ticker, `close` FROM ohlc WHERE `close` > 100"


class Yesterday(SystemClock):
    """Clock of a relay at which triggers were registered before the candles of the test were closed."""

    def wall_ns(self) -> int:
        return super().wall_ns() - 24 * 60 * MINUTE_NS


class Gateway(erpc.EventPublisherServiceServicer):
    """Gateway that takes everything."""

    def __init__(self) -> None:
        self.events: list[user.UserEvent] = []

    async def Publish(self, request: epb.PublishRequest, context: Any) -> epb.PublishResponse:
        self.events.append(request.event)
        return epb.PublishResponse(ack=user.EventAck(event_id=request.event.event_id, status=user.QUEUED))

    def PublishMany(self, request_iterator: Any, context: Any) -> Any:
        raise NotImplementedError


class Markets:
    """Closed candles of a dispatch that the relay has issued, at the source."""

    def __init__(self, source: FakeSource, dispatch_id: str) -> None:
        self._source = source
        self._dispatch_id = dispatch_id
        self._page = 0

    def close(self, open_ns: int, *prices: float) -> None:
        """Produce candles of a minute."""
        candles = [Candle(open_ns + n * MINUTE_NS, price, price, price, price, 1.0) for n, price in enumerate(prices)]
        span = TimeRange(open_ns, open_ns + len(candles) * MINUTE_NS)
        headers = PageHeaders(Kind.PAGE, TICKER, 60, self._dispatch_id, self._page, span, span.end_ns)
        self._page += 1
        self._source.add(0, page_value("r", candles), TICKER, headers.encode())


async def registered(s: Suite, trigger_id: str, sql: str = SQL, **outer: Any) -> None:
    parameters = {"fire": "level"} if sql == SQL else {}
    trigger = ingest.CEPTriggerRequest(trigger_id=trigger_id, sql_pattern=sql, tickers=[TICKER], parameters=parameters)
    answer = (await s.relay.trigger.RegisterTrigger(pb.RegisterTriggerRequest(trigger=trigger, **outer))).ack
    assert answer.status == ingest.CEPTriggerAck.REGISTERED, answer


async def running(s: Suite) -> None:
    async with asyncio.timeout(90):
        while (  # noqa: ASYNC110 - it happens in the relay
            not (found := (await s.relay.trigger.ListTriggers(pb.ListTriggersRequest())).triggers)
            or any(each.state != pb.TRIGGER_STATE_RUNNING for each in found)
        ):
            await asyncio.sleep(0.05)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - it happens in the relay
            await asyncio.sleep(0.02)


async def is_suspended_and_known(s: Suite, gateway: Gateway) -> None:
    """Check that list, events and the user say why the hostile trigger has ended; the other has missed no candle."""
    states = {
        each.trigger.trigger_id: each
        for each in (await s.relay.trigger.ListTriggers(pb.ListTriggersRequest())).triggers
    }
    assert (states["t"].state, states["t"].firings) == (pb.TRIGGER_STATE_RUNNING, 1 + CANDLES)
    assert states["hostile"].state == pb.TRIGGER_STATE_SUSPENDED
    assert "a row costs more than" in states["hostile"].reason
    call = s.relay.trigger.WatchTriggerEvents(pb.WatchTriggerEventsRequest(trigger_id="hostile"), timeout=60)
    assert (await call.read()).HasField("opened")
    answer = (await call.read()).event
    call.cancel()
    assert answer.kind == pb.TRIGGER_EVENT_KIND_SUSPENDED
    assert answer.event.context["reason"] == states["hostile"].reason
    (told,) = [each for each in gateway.events if each.user_id == "mallory"]
    assert told.event_type == user.ALERT_DELETED
    assert json.loads(told.payload)["reason"] == states["hostile"].reason


@pytest.mark.smoke
async def test_a_candle_becomes_an_event_and_an_alert_and_a_costly_trigger_is_suspended_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, server = Gateway(), grpc.aio.server()
    erpc.add_EventPublisherServiceServicer_to_server(gateway, server)
    gateway_address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    source, stop = RunningSource(FakeSource(1)), threading.Event()
    async with suite(tmp_path, Yesterday(), gateway=gateway_address) as s:
        for name, value in {
            "SPARK_SOURCE": source.address,
            "SPARK_RELAY": s.running.address,
            "SPARK_TRIGGER_FOLDER": str(tmp_path / "triggers"),
            "CATALOG_URI": f"sqlite:///{tmp_path}/catalog.db",
            "CATALOG_WAREHOUSE": f"file://{tmp_path}/warehouse",
        }.items():
            monkeypatch.setenv(f"DEXORDER_{name}", value)
        host = threading.Thread(target=TriggerHost(s.running.address, stop).run)
        host.start()
        try:
            await registered(s, "t", alert=pb.TriggerAlert(user_id="alice"))
            await registered(s, "hostile", HOSTILE, alert=pb.TriggerAlert(user_id="mallory"))
            worker = RawWorker(s.context, s.running.broker_address)
            s.opened.callback(worker.socket.close)
            await worker.ready()
            markets = Markets(source.fake, (await worker.job()).job_id)  # of the trigger's own subscription
            await running(s)
            first_ns = (time.time_ns() // MINUTE_NS - CANDLES - 2) * MINUTE_NS
            markets.close(first_ns, 99.0)
            markets.close(first_ns + MINUTE_NS, 101.0)
            call = s.relay.trigger.WatchTriggerEvents(pb.WatchTriggerEventsRequest(trigger_id="t"), timeout=60)
            assert (await call.read()).HasField("opened")
            answer = (await call.read()).event
            call.cancel()
            event = decode_event(answer.event)
            assert (event.rows, event.time_ns) == (((TICKER, 101.0),), first_ns + 2 * MINUTE_NS)
            assert event.columns == (("ticker", "STRING"), ("close", "DOUBLE"))
            await until(lambda: bool(gateway.events))
            (alert,) = gateway.events
            assert (alert.user_id, alert.event_id, alert.event_type) == ("alice", answer.event_id, user.ALERT_TRIGGERED)
            markets.close(first_ns + 2 * MINUTE_NS, *[102.0] * CANDLES)
            await until(lambda: len(gateway.events) == 1 + CANDLES + 1)
            await is_suspended_and_known(s, gateway)
        finally:
            stop.set()
            await asyncio.to_thread(host.join)
    source.stop()
    await server.stop(None)
