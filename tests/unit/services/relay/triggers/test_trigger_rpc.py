"""Triggers through a real relay: registration, the pipeline's changes and reports, events, alerts, backtests."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog

from dexorder_common.model.cursor import Cursor as CursorValue
from dexorder_common.model.times import iso
from dexorder_common.rpc.trigger_messages import decode_value, encode_event
from dexorder_protos.dexorder.events.v1 import event_service_pb2 as epb
from dexorder_protos.dexorder.events.v1 import event_service_pb2_grpc as erpc
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as user
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as ppb
from dexorder_protos.dexorder.relay.v1 import realtime_service_pb2 as realtime_pb2
from dexorder_protos.dexorder.relay.v1 import trigger_service_pb2 as pb
from dexorder_protos.dexorder.relay.v1.common_pb2 import Cursor
from dexorder_relay.requests import queries
from dexorder_relay.service import triggers as trigger_rpcs
from dexorder_spark.cep.relay import TriggerRelay
from tests.fakes.mesh_proxy import ResettingProxy
from tests.paths import ROOT
from tests.unit.services.relay.harness import TICKER, Suite, at, refused, suite
from tests.unit.services.relay.realtime.worker import listed as listed_realtime

SQL = "SELECT * FROM ohlc WHERE `close` > 5"
REGISTERED, ALREADY, INVALID_SQL, ERROR = 0, 1, 2, 3
WAITING, RUNNING, SUSPENDED = pb.TRIGGER_STATE_WAITING, pb.TRIGGER_STATE_RUNNING, pb.TRIGGER_STATE_SUSPENDED
FIRED = pb.TRIGGER_EVENT_KIND_FIRED


async def register(s: Suite, trigger_id: str, sql: str = SQL, **fields: Any) -> ingest.CEPTriggerAck:
    given = {"tickers": [TICKER], **fields}
    outer = {name: given.pop(name) for name in ("client_id", "alert") if name in given}
    trigger = ingest.CEPTriggerRequest(trigger_id=trigger_id, sql_pattern=sql, **given)
    answer: ingest.CEPTriggerAck = (
        await s.relay.trigger.RegisterTrigger(pb.RegisterTriggerRequest(trigger=trigger, **outer))
    ).ack
    return answer


async def listed(s: Suite, **fields: Any) -> list[pb.RegisteredTrigger]:
    return list((await s.relay.trigger.ListTriggers(pb.ListTriggersRequest(**fields))).triggers)


async def changes(s: Suite, after: Cursor | None = None) -> ppb.WatchTriggersResponse:
    call = s.pipeline.stub.WatchTriggers(ppb.WatchTriggersRequest(after=after), timeout=20)
    answer: ppb.WatchTriggersResponse = await call.read()
    call.cancel()
    return answer


def event(name: str, registration: int, trigger_id: str = "t", kind: Any = FIRED, **context: str) -> Any:
    rows = [(9.5,)] if kind == FIRED else []
    given = encode_event(trigger_id, at(1), [("close", "DOUBLE")], rows, context)
    return ppb.ReportedTriggerEvent(event_id=name, registration=registration, kind=kind, ticker=TICKER, event=given)


async def report(s: Suite, events: Sequence[Any], applied: Cursor | None = None) -> None:
    """Report events whose registrations count from 1; the relay's begin at the time of its start."""
    first = min((each.registration for each in (await changes(s)).changes), default=1)
    for each in events:
        each.registration += first - 1
    await s.pipeline.stub.ReportTriggerEvents(ppb.ReportTriggerEventsRequest(events=events, applied=applied))


async def take(s: Suite, count: int, **fields: Any) -> list[pb.TriggerEvent]:
    call = s.relay.trigger.WatchTriggerEvents(pb.WatchTriggerEventsRequest(**fields), timeout=20)
    assert (await call.read()).HasField("opened")
    found = [(await call.read()).event for _ in range(count)]
    call.cancel()
    return found


async def test_a_trigger_is_registered_once_and_its_id_is_free_after_its_deletion(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        assert (await register(s, "t")).status == REGISTERED
        assert (await register(s, "t")).status == ALREADY
        other = await register(s, "t", "SELECT * FROM ohlc WHERE `close` > 6")
        assert other.status == ERROR and "in use for another trigger" in other.error_message
        bad = await register(s, "u", "SELECT *\nFROM ohlc WHERE ((")
        assert bad.status == INVALID_SQL and bad.error_message.startswith("line ")
        assert (await register(s, "u", tickers=["nonsense"])).status == ERROR
        assert (await register(s, "u", tickers=[])).status == ERROR
        assert (await register(s, "x" * 129)).status == ERROR
        (found,) = await listed(s)
        assert (found.trigger.trigger_id, found.state) == ("t", WAITING)
    async with suite(tmp_path) as s:  # all of it is on disk
        assert (await register(s, "t")).status == ALREADY
        await s.relay.trigger.DeleteTrigger(pb.DeleteTriggerRequest(trigger_id="t"))
        with refused(grpc.StatusCode.NOT_FOUND):
            await s.relay.trigger.DeleteTrigger(pb.DeleteTriggerRequest(trigger_id="t"))
        assert await listed(s) == []
        assert (await register(s, "t", "SELECT * FROM ohlc WHERE `close` > 6")).status == REGISTERED
        (again,) = await listed(s)
        assert again.registration > found.registration


async def test_the_pipeline_gets_changes_after_the_last_one_it_has_and_all_if_the_database_is_older(
    tmp_path: Path,
) -> None:
    async with suite(tmp_path) as s:
        await register(s, "t")
        await register(s, "u")
        first = await changes(s)
        number = first.changes[0].registration
        assert [(c.registration, c.trigger.trigger_id) for c in first.changes] == [(number, "t"), (number + 1, "u")]
        assert first.opened.cursor.sequence == 0 and first.cursor.epoch == first.opened.cursor.epoch
        await s.relay.trigger.DeleteTrigger(pb.DeleteTriggerRequest(trigger_id="t"))
        second = await changes(s, first.cursor)
        assert [(c.registration, c.HasField("trigger")) for c in second.changes] == [(number, False)]
        assert second.opened.cursor == first.cursor and second.cursor.sequence > first.cursor.sequence
        for lost in (
            Cursor(epoch=first.cursor.epoch, sequence=second.cursor.sequence + 1),
            Cursor(epoch="another", sequence=second.cursor.sequence),
        ):
            await report(s, [], lost)
            assert [each.state for each in await listed(s)] == [WAITING if lost.epoch == "another" else RUNNING]
            reset = await changes(s, lost)
            assert reset.HasField("reset") and [c.trigger.trigger_id for c in reset.changes] == ["u"]
            assert reset.cursor == second.cursor
        await report(s, [], second.cursor)
        assert [each.state for each in await listed(s)] == [RUNNING]


async def test_a_report_of_too_many_events_is_refused_and_an_invalid_event_takes_no_other_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trigger_rpcs, "MAX_EVENTS", 3)
    async with suite(tmp_path) as s:
        await register(s, "t")
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "events has 4 entries; at most 3 are allowed"):
            await report(s, [event(f"many-{n}", 1) for n in range(4)])
        bad = [event("x" * 257, 1), event("kind", 1, kind=99)]
        with structlog.testing.capture_logs() as logs:
            await report(s, [bad[0], event("good", 1), bad[1]])
        assert [each["event"] for each in logs] == ["event of a trigger ignored"] * 2
        assert [each.event_id for each in await take(s, 1, trigger_id="t")] == ["good"], "of the four none is stored"


async def test_changes_that_do_not_fit_into_a_message_come_in_parts_and_are_applied_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triggers with long texts do not keep the pipeline from all others, also where a proxy resets the streams."""
    monkeypatch.setattr(queries, "MAX_PAGE_BYTES", 100)
    async with suite(tmp_path) as s, AsyncExitStack() as stack:
        for name in ("t", "u", "v"):
            await register(s, name)
        pages = [page async for page in _pages(s)]
        assert pages == [["t"], ["u"], ["v"]]
        stop = threading.Event()
        proxy = ResettingProxy(int(s.running.address.rpartition(":")[2]))
        proxy.after = [1, 2]
        port = await stack.enter_async_context(proxy.listening(0))
        relay = TriggerRelay(f"127.0.0.1:{port}", stop)

        def take(after: CursorValue | None) -> tuple[list[str], bool, CursorValue]:
            follower = relay.follow(after)
            found = next(follower)
            follower.close()  # type: ignore[attr-defined]
            given = [each.trigger.trigger_id for each in found.changes if each.trigger]
            return given, found.is_reset, found.cursor

        names, is_reset, cursor = await asyncio.to_thread(take, None)
        assert (names, is_reset, proxy.resets) == (["t", "u", "v"], False, 2)
        again = await asyncio.to_thread(take, cursor._replace(epoch="another"))
        assert again == (["t", "u", "v"], True, cursor)
        stop.set()
        relay.close()


async def _pages(s: Suite) -> AsyncIterator[list[str]]:
    token = "first"
    while token:
        answer = await s.relay.trigger.ListTriggers(
            pb.ListTriggersRequest(page_token="" if token == "first" else token)
        )
        yield [each.trigger.trigger_id for each in answer.triggers]
        token = answer.next_page_token


async def test_a_restart_resumes_behind_a_change_and_another_copy_lists_only_what_runs(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        for name in ("t", "u"):
            await register(s, name)
        await report(s, [event("end", 1, kind=pb.TRIGGER_EVENT_KIND_ENDED, reason="it fires once")])
        known = (await changes(s)).cursor
    after = Cursor(epoch=known.epoch, sequence=known.sequence + 1)  # a number that no start of this copy has given
    for _ in range(2):
        async with suite(tmp_path) as s:
            resumed = await changes(s, known)
            assert resumed.opened.cursor == resumed.cursor == known and not resumed.changes
            lost = await changes(s, after)
            assert lost.HasField("reset") and [each.trigger.trigger_id for each in lost.changes] == ["u"]


async def test_a_follower_is_told_of_a_registration_at_once(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        call = s.pipeline.stub.WatchTriggers(ppb.WatchTriggersRequest(), timeout=20)
        assert not (await call.read()).changes
        await register(s, "t")
        assert len((await call.read()).changes) == 1
        call.cancel()


async def test_an_event_is_stored_once_and_streams_resume_by_cursor(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        await register(s, "t", callback_id="desk")
        await report(s, [event("a", 1), event("b", 1)])
        await report(s, [event("b", 1), event("c", 1), event("lost", 99)])
        found = await take(s, 3, trigger_id="t")
        assert [each.event_id for each in found] == ["a", "b", "c"]
        assert [decode_value(found[0].event.rows[0].values[0])] == [9.5]
        assert found[0].event.schema.column_types == ["DOUBLE"]
        after = await take(s, 1, callback_id="desk", after=found[1].cursor)
        assert [each.event_id for each in after] == ["c"]
        (known,) = await listed(s)
        assert (known.firings, known.last_fired_ns) == (3, at(1))

        call = s.relay.trigger.WatchTriggerEvents(
            pb.WatchTriggerEventsRequest(trigger_id="t", after=found[-1].cursor), timeout=20
        )
        assert (await call.read()).opened.cursor == found[-1].cursor
        waiting = asyncio.ensure_future(call.read())
        await asyncio.sleep(0.05)
        await report(s, [event("end", 1, kind=pb.TRIGGER_EVENT_KIND_SUSPENDED, reason="2,001 partial matches")])
        assert (await waiting).event.kind == pb.TRIGGER_EVENT_KIND_SUSPENDED
        call.cancel()
        (known,) = await listed(s)
        assert (known.state, known.reason) == (SUSPENDED, "2,001 partial matches")
    async with suite(tmp_path) as s:
        assert [each.event_id for each in await take(s, 4, trigger_id="t")] == ["a", "b", "c", "end"]
        with pytest.raises(grpc.aio.AioRpcError, match="trigger_id and callback_id are empty; name one of them"):
            await take(s, 1)


async def test_a_trigger_brings_its_own_subscription(tmp_path: Path) -> None:
    async def subscribed(wanted: list[list[int]]) -> None:
        async with asyncio.timeout(20):
            while (  # noqa: ASYNC110 - it happens in the relay
                sorted(
                    list(each.subscription.params.ohlc_period_seconds)
                    for each in (await listed_realtime(s)).subscriptions
                )
                != wanted
            ):
                await asyncio.sleep(0.02)

    async with suite(tmp_path) as s:
        await register(s, "t")
        await subscribed([[60]])
        (own,) = (await listed_realtime(s)).subscriptions
        with pytest.raises(grpc.aio.AioRpcError, match="while a trigger watches"):
            request = realtime_pb2.StopRealtimeRequest(subscription_id=own.subscription.subscription_id)
            await s.relay.realtime.StopRealtime(request)
        await register(s, "u")
        await s.relay.trigger.DeleteTrigger(pb.DeleteTriggerRequest(trigger_id="t"))
        await subscribed([[60]])
        await report(s, [event("end", 2, kind=pb.TRIGGER_EVENT_KIND_ENDED, reason="it fires once")])
        await subscribed([])


class Gateway(erpc.EventPublisherServiceServicer):
    """Gateway that fails first."""

    def __init__(self) -> None:
        self.failures = 1
        self.events: list[user.UserEvent] = []

    async def Publish(self, request: epb.PublishRequest, context: Any) -> epb.PublishResponse:
        self.events.append(request.event)
        if self.failures:
            self.failures -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "as the test says")
        return epb.PublishResponse(ack=user.EventAck(event_id=request.event.event_id, status=user.QUEUED))

    def PublishMany(self, request_iterator: Any, context: Any) -> Any:
        raise NotImplementedError


async def test_a_firing_is_handed_to_the_gateway_until_it_is_taken_and_never_again(tmp_path: Path) -> None:
    gateway, server = Gateway(), grpc.aio.server()
    erpc.add_EventPublisherServiceServicer_to_server(gateway, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    delivery = user.DeliverySpec(priority=user.CRITICAL, channels=[user.ChannelPreference(channel=user.TELEGRAM)])
    async with suite(tmp_path, gateway=address) as s:
        await register(s, "t", alert=pb.TriggerAlert(user_id="alice", delivery=delivery))
        await report(s, [event("a", 1)])
        async with asyncio.timeout(20):
            while len(gateway.events) < 2:  # noqa: ASYNC110 - it happens in the relay
                await asyncio.sleep(0.02)
        first, second = gateway.events
        assert first == second
        assert (first.user_id, first.event_id, first.delivery) == ("alice", "a", delivery)
        assert first.event_type == user.ALERT_TRIGGERED
        assert json.loads(first.payload) == {
            "alert_id": "t",
            "symbol": TICKER,
            "condition": SQL,
            "triggered_price": "9.5",
            "timestamp": at(1) // 1_000_000,
        }
        await report(s, [event("a", 1)])
        await report(s, [event("b", 1, message="over 9")])
        async with asyncio.timeout(20):
            while len(gateway.events) < 3:  # noqa: ASYNC110 - it happens in the relay
                await asyncio.sleep(0.02)
        assert [each.event_id for each in gateway.events] == ["a", "a", "b"]
        assert json.loads(gateway.events[2].payload)["message"] == "over 9"
    await server.stop(None)


async def test_a_backtest_finds_the_stored_candles_at_which_a_trigger_fires(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        s.pipeline.write(range(10))  # a candle closes at its minute + 1
        trigger = ingest.CEPTriggerRequest(sql_pattern=SQL, tickers=[TICKER], parameters={"fire": "level"})
        request = pb.BacktestTriggerRequest(trigger=trigger, start_ns=at(0), end_ns=at(8))
        answers = [each async for each in s.relay.trigger.BacktestTrigger(request, timeout=60)]
        assert [each.event.timestamp for answer in answers for each in answer.events] == [at(6), at(7), at(8)]
        (market,) = answers[-1].markets
        assert (market.ticker, market.rows, market.firings, answers[-1].period_seconds) == (TICKER, 8, 3, 60)
        request.trigger.sql_pattern = "nonsense"
        with pytest.raises(grpc.aio.AioRpcError, match="sql_pattern: line 1"):
            [each async for each in s.relay.trigger.BacktestTrigger(request, timeout=60)]


async def test_the_command_draws_where_a_trigger_would_have_fired(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        s.pipeline.write(range(10))
        words = (SQL, "-t", TICKER, "-p", "fire=level", "--since", iso(at(0)), "--until", iso(at(8)))
        shown = await command(s, "test", *words)
        assert iso(at(6)) in shown, "the table"
        assert "fires, 3 times" in shown, "the chart"
        assert "3 firings in 8 stored candles" in shown


async def command(s: Suite, *words: str) -> str:
    """Run ``dexorder trigger``; return its output."""
    arguments = ("-m", "dexorder", "trigger", *words, "--relay", s.running.address)
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, problems = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, problems.decode()
    return output.decode()
