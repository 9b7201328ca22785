"""Triggers with identity on: whose they are, and how many a client may have."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import grpc

from dexorder_protos.dexorder.events.v1 import user_events_pb2 as events_pb
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as ppb
from dexorder_protos.dexorder.relay.v1 import trigger_service_pb2 as pb
from tests.unit.services.relay.harness import TICKER
from tests.unit.services.relay.test_access_rpc import callers_file, code_of, guarded

CODE = grpc.StatusCode


async def register(stub: Any, name: str, *, padding: int = 0, **outer: Any) -> ingest.CEPTriggerAck:
    sql = "SELECT `close` FROM ohlc WHERE `close` > 5" + " " * padding
    trigger = ingest.CEPTriggerRequest(trigger_id=name, sql_pattern=sql, tickers=[TICKER], callback_id="shared")
    answer = await stub.trigger.RegisterTrigger(pb.RegisterTriggerRequest(trigger=trigger, **outer))
    return cast(ingest.CEPTriggerAck, answer.ack)


async def listed(stub: Any) -> Any:
    return (await stub.trigger.ListTriggers(pb.ListTriggersRequest())).triggers


async def ids(stub: Any) -> list[tuple[str, str]]:
    return [(each.trigger.trigger_id, each.client_id) for each in await listed(stub)]


async def test_triggers_and_their_events_belong_to_their_client(tmp_path: Path) -> None:
    async with guarded(tmp_path) as suite:
        desk, other, boss = [await suite.stub(name) for name in ("desk", "other", "boss")]
        assert (await register(desk, "d")).status == ingest.CEPTriggerAck.REGISTERED
        assert (await register(other, "o")).status == ingest.CEPTriggerAck.REGISTERED
        assert (await register(other, "d")).status == ingest.CEPTriggerAck.ERROR
        refused = await register(other, "x", client_id="desk")
        assert refused.status == ingest.CEPTriggerAck.ERROR and "is not the caller's" in refused.error_message
        assert await ids(desk) == [("d", "desk")] and await ids(other) == [("o", "other")]
        assert await ids(boss) == [("d", "desk"), ("o", "other")]
        for name in ("o", "never"):
            code, text = await code_of(desk.trigger.DeleteTrigger(pb.DeleteTriggerRequest(trigger_id=name)))
            assert (code, text) == (CODE.NOT_FOUND, f"trigger_id '{name}' is not known")

        numbers = {each.trigger.trigger_id: each.registration for each in await listed(boss)}
        events = [
            ppb.ReportedTriggerEvent(
                event_id=f"e{number}",
                registration=numbers[name],
                kind=pb.TRIGGER_EVENT_KIND_FIRED,
                ticker=TICKER,
                event=ingest.CEPTriggerEvent(trigger_id=name, timestamp=1),
            )
            for number, name in ((1, "d"), (2, "o"))
        ]
        await suite.pipeline.stub.ReportTriggerEvents(ppb.ReportTriggerEventsRequest(events=events))
        for stub, wanted in ((desk, "e1"), (other, "e2")):
            call = stub.trigger.WatchTriggerEvents(pb.WatchTriggerEventsRequest(callback_id="shared"), timeout=20)
            assert (await call.read()).HasField("opened")
            assert (await call.read()).event.event_id == wanted
            call.cancel()
        call = other.trigger.WatchTriggerEvents(pb.WatchTriggerEventsRequest(trigger_id="d"), timeout=20)
        assert (await call.read()).HasField("opened")
        reading = asyncio.ensure_future(call.read())
        await asyncio.sleep(0.2)
        assert not reading.done(), "it is another client's event"
        call.cancel()
        await asyncio.wait([reading])


async def test_an_alert_goes_to_users_of_the_callers_entry_only(tmp_path: Path) -> None:
    tokens = callers_file(tmp_path / "callers.yaml", {"desk": {"users": ["ann"]}, "other": {"users": "*"}})
    async with guarded(tmp_path, tokens=tokens) as suite:
        desk, other, boss = [await suite.stub(name) for name in ("desk", "other", "boss")]
        critical = events_pb.DeliverySpec(priority=events_pb.CRITICAL)

        async def alert(stub: Any, name: str, user_id: str) -> tuple[Any, str]:
            return await code_of(register(stub, name, alert=pb.TriggerAlert(user_id=user_id, delivery=critical)))

        code, text = await alert(desk, "a", "bob")
        assert code is CODE.PERMISSION_DENIED
        assert text.startswith("alert.user_id 'bob' is not one of the users of client_id 'desk'")
        trigger = ingest.CEPTriggerRequest(
            trigger_id="many", sql_pattern="SELECT `close` FROM ohlc", tickers=[TICKER], callback_id="shared"
        )
        to_bob = pb.RegisterTriggerRequest(trigger=trigger, alert=pb.TriggerAlert(user_id="bob", delivery=critical))
        (ack,) = (await desk.trigger.RegisterTriggers(pb.RegisterTriggersRequest(triggers=[to_bob]))).acks
        assert (ack.status, ack.error_message) == (ingest.CEPTriggerAck.ERROR, text)
        for stub, name, user_id in ((desk, "b", "ann"), (other, "c", "bob"), (boss, "d", "bob")):
            assert (await alert(stub, name, user_id))[0] is CODE.OK
        assert [name for name, _ in await ids(boss)] == ["b", "c", "d"]


async def test_triggers_of_a_client_are_limited(tmp_path: Path) -> None:
    tokens = callers_file(tmp_path / "callers.yaml", desk={"triggers": 2})
    async with guarded(tmp_path, tokens=tokens) as suite:
        desk, other = await suite.stub("desk"), await suite.stub("other")
        for name in ("a", "b"):
            await register(desk, name)
        code, text = await code_of(register(desk, "c"))
        assert code is CODE.RESOURCE_EXHAUSTED
        assert text == "triggers would be 3, 2 are allowed for client_id 'desk'; delete another one first"
        assert (await register(desk, "a")).status == ingest.CEPTriggerAck.ALREADY_REGISTERED
        assert (await register(other, "c")).status == ingest.CEPTriggerAck.REGISTERED


async def test_bytes_of_a_clients_triggers_are_limited_and_no_trick_gives_more(tmp_path: Path) -> None:
    tokens = callers_file(tmp_path / "callers.yaml", desk={"trigger_bytes": 3_000})

    def trigger(name: str, *tickers: str, padding: int = 0) -> pb.RegisterTriggerRequest:
        sql = f"SELECT `close` FROM ohlc WHERE `close` > 5{' ' * padding}"
        names = tickers or (TICKER,)
        return pb.RegisterTriggerRequest(
            trigger=ingest.CEPTriggerRequest(trigger_id=name, sql_pattern=sql, tickers=names, callback_id="c")
        )

    async with guarded(tmp_path, tokens=tokens) as suite:
        desk, other = await suite.stub("desk"), await suite.stub("other")
        new = desk.trigger.RegisterTrigger
        answers = await asyncio.gather(*(code_of(new(trigger(f"t{n}", padding=900))) for n in range(9)))
        taken = [f"t{n}" for n, (code, _) in enumerate(answers) if code is CODE.OK]
        refused = [text for code, text in answers if code is CODE.RESOURCE_EXHAUSTED]
        assert (len(taken), len(refused)) == (3, 6), "calls at the same time get no more together"
        assert "3000 are allowed for client_id 'desk'; delete another one first" in refused[0]
        many = [f"A{n}/B{n}.{TICKER.rpartition('.')[2]}" for n in range(60)]
        assert (await code_of(new(trigger("wide", *many))))[0] is CODE.RESOURCE_EXHAUSTED, "tickers count"
        again = await new(trigger(taken[0], padding=900))
        assert again.ack.status == ingest.CEPTriggerAck.ALREADY_REGISTERED
        assert (await code_of(other.trigger.RegisterTrigger(trigger("o", padding=5_000))))[0] is CODE.OK
        batch = pb.RegisterTriggersRequest(triggers=[trigger(f"b{n}", padding=900) for n in range(5)])
        acks = (await desk.trigger.RegisterTriggers(batch)).acks
        assert {each.status for each in acks} == {ingest.CEPTriggerAck.ERROR}, "a batch has no room of its own"
        gone = pb.DeleteTriggerRequest(trigger_id=taken[0])
        await asyncio.gather(*(code_of(desk.trigger.DeleteTrigger(gone)) for _ in range(5)))
        answers = await asyncio.gather(*(code_of(new(trigger(f"u{n}", padding=900))) for n in range(3)))
        assert [code for code, _ in answers].count(CODE.OK) == 1, "a trigger that is deleted many times makes room once"

    async with guarded(tmp_path, tokens=tokens) as suite:
        desk = await suite.stub("desk")
        code, _ = await code_of(desk.trigger.RegisterTrigger(trigger("v", padding=900)))
        assert code is CODE.RESOURCE_EXHAUSTED, "a restart forgets nothing"
