"""A relay whose file is replaced by an older copy, and one that deletes what is old, as its clients see them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dexorder_common.clock import ManualClock
from dexorder_common.model.times import SECOND_NS
from dexorder_common.rpc.trigger_messages import encode_event
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import common_pb2
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as hpb
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as ppb
from dexorder_protos.dexorder.relay.v1 import trigger_service_pb2 as tpb
from dexorder_relay import engine
from tests.unit.services.relay.harness import EARLIER, TICKER, Suite, at, page, suite

DAY_NS = 86_400 * SECOND_NS


class Stream(NamedTuple):
    """First message of a stream, and its items: name and cursor."""

    first: Any
    items: dict[str, common_pb2.Cursor]

    @property
    def is_reset(self) -> bool:
        return bool(self.first.HasField("reset"))


async def taken(call: Any, count: int, item: Callable[[Any], tuple[str, common_pb2.Cursor]]) -> Stream:
    found = Stream(await call.read(), dict([item(await call.read()) for _ in range(count)]))
    call.cancel()
    return found


class Notifications:
    """Stream of a client's notifications."""

    @staticmethod
    async def append(s: Suite, names: Sequence[str]) -> None:
        for name in names:
            await s.queued(name, 0, 10, client_id="me")
            await s.finished(name)

    @staticmethod
    async def take(s: Suite, count: int, after: common_pb2.Cursor | None = None) -> Stream:
        request = hpb.WatchNotificationsRequest(topic="RESPONSE:me", after=after)
        call = s.relay.history.WatchNotifications(request, timeout=30)
        return await taken(call, count, lambda m: (m.notification.ready.request_id, m.notification.cursor))


class TriggerEvents:
    """Stream of a trigger's events."""

    @staticmethod
    async def append(s: Suite, names: Sequence[str]) -> None:
        known = (await changes(s)).changes[0]
        message = encode_event("t", at(1), [("close", "DOUBLE")], [(9.5,)], {})
        events = [
            ppb.ReportedTriggerEvent(
                event_id=name,
                registration=known.registration,
                kind=tpb.TRIGGER_EVENT_KIND_FIRED,
                ticker=TICKER,
                event=message,
            )
            for name in names
        ]
        await s.pipeline.stub.ReportTriggerEvents(ppb.ReportTriggerEventsRequest(events=events))

    @staticmethod
    async def take(s: Suite, count: int, after: common_pb2.Cursor | None = None) -> Stream:
        request = tpb.WatchTriggerEventsRequest(trigger_id="t", after=after)
        call = s.relay.trigger.WatchTriggerEvents(request, timeout=30)
        return await taken(call, count, lambda m: (m.event.event_id, m.event.cursor))


Kind = type[Notifications] | type[TriggerEvents]
both = pytest.mark.parametrize("kind", [Notifications, TriggerEvents])


async def register(s: Suite, trigger_id: str) -> None:
    trigger = ingest.CEPTriggerRequest(
        trigger_id=trigger_id, sql_pattern="SELECT * FROM ohlc WHERE `close` > 5", tickers=[TICKER]
    )
    answer = (await s.relay.trigger.RegisterTrigger(tpb.RegisterTriggerRequest(trigger=trigger))).ack
    assert answer.status == ingest.CEPTriggerAck.REGISTERED


async def changes(s: Suite, after: common_pb2.Cursor | None = None) -> ppb.WatchTriggersResponse:
    call = s.pipeline.stub.WatchTriggers(ppb.WatchTriggersRequest(after=after), timeout=30)
    answer: ppb.WatchTriggersResponse = await call.read()
    call.cancel()
    return answer


async def prepared(s: Suite) -> None:
    """Let requests end at once, and register the trigger."""
    await s.pipeline.report(pages=[page(EARLIER, 0, 100, empty=[(0, 100)])])
    await register(s, "t")


@both
async def test_a_client_of_a_restored_relay_sees_a_reset_and_misses_nothing(tmp_path: Path, kind: Kind) -> None:
    file, copy = tmp_path / "relay.db", tmp_path / "copy.db"
    async with suite(tmp_path) as s:
        await prepared(s)
        await kind.append(s, ["1", "2", "3"])
    shutil.copyfile(file, copy)
    async with suite(tmp_path) as s:
        await kind.append(s, ["4", "5", "6"])
        before = await kind.take(s, 6)
        assert list(before.items) == ["1", "2", "3", "4", "5", "6"]
    shutil.copyfile(copy, file)
    async with suite(tmp_path) as s:
        await kind.append(s, ["7", "8", "9"])
        for number, (name, cursor) in enumerate(before.items.items(), 1):
            if number <= 3:
                found = await kind.take(s, 6 - number, cursor)
                assert not found.is_reset and found.first.opened.cursor == cursor
                assert list(found.items) == ["1", "2", "3", "7", "8", "9"][number:]
            else:
                found = await kind.take(s, 6, cursor)
                assert found.is_reset, name
                assert 0 < found.first.reset.oldest_sequence <= before.items["1"].sequence
                assert list(found.items) == ["1", "2", "3", "7", "8", "9"]
                new = {each.sequence for name, each in found.items.items() if name in "789"}
                assert not new & {each.sequence for each in before.items.values()}, "a sequence is given twice"
                again = await kind.take(s, 6, found.first.reset.cursor)
                assert not again.is_reset and again.items == found.items


@both
async def test_a_client_whose_next_items_retention_has_deleted_sees_a_reset_with_the_oldest_that_exists(
    tmp_path: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "FORGET_SECONDS", 0.01)
    clock = ManualClock()
    async with suite(tmp_path, clock, retention_days=10, request_timeout_seconds=1e9) as s:
        await prepared(s)
        await kind.append(s, ["1", "2"])
        clock.advance(6 * DAY_NS)
        await kind.append(s, ["3"])
        before = await kind.take(s, 3)
        clock.advance(5 * DAY_NS)

        async def deleted() -> bool:
            return list((await kind.take(s, 1)).items) == ["3"]

        while not await deleted():  # the relay deletes in its own time
            pass
        missed = await kind.take(s, 1, before.items["1"])
        assert missed.is_reset
        oldest = missed.first.reset.oldest_sequence  # that of another topic has the same request
        assert before.items["2"].sequence < oldest <= before.items["3"].sequence
        assert missed.items == {"3": before.items["3"]}
        none = await kind.take(s, 1, before.items["2"])
        assert not none.is_reset and none.items == missed.items, "nothing after it was deleted"


async def test_the_pipeline_of_a_restored_relay_gets_all_triggers_that_it_has(tmp_path: Path) -> None:
    file, copy = tmp_path / "relay.db", tmp_path / "copy.db"
    async with suite(tmp_path) as s:
        await register(s, "t")
        await register(s, "gone")
        await s.relay.trigger.DeleteTrigger(tpb.DeleteTriggerRequest(trigger_id="gone"))
    shutil.copyfile(file, copy)
    async with suite(tmp_path) as s:
        await register(s, "lost")
        followed = (await changes(s)).cursor
        lost = {each.registration for each in (await changes(s)).changes if each.trigger.trigger_id == "lost"}
    shutil.copyfile(copy, file)
    async with suite(tmp_path) as s:
        await register(s, "new")
        answer = await changes(s, followed)
        assert answer.HasField("reset") and [each.trigger.trigger_id for each in answer.changes] == ["t", "new"]
        assert not lost & {each.registration for each in answer.changes}, "a registration is given twice"
        assert (await changes(s, answer.cursor)).HasField("opened")
