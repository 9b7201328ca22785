"""PauseTrigger and ResumeTrigger: what is stored, whom the pipeline hears of it, and who may."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc

from dexorder_protos.dexorder.relay.v1 import trigger_service_pb2 as pb
from tests.unit.services.relay.harness import TICKER, suite
from tests.unit.services.relay.realtime.worker import listed as listed_realtime
from tests.unit.services.relay.test_access_rpc import code_of, guarded
from tests.unit.services.relay.triggers.test_trigger_access import register as register_at
from tests.unit.services.relay.triggers.test_trigger_rpc import changes, event, listed, register, report

CODE = grpc.StatusCode
PAUSED, WAITING, RUNNING = pb.TRIGGER_STATE_PAUSED, pb.TRIGGER_STATE_WAITING, pb.TRIGGER_STATE_RUNNING


async def pause(stub: Any, trigger_id: str) -> tuple[grpc.StatusCode, str]:
    return await code_of(stub.trigger.PauseTrigger(pb.PauseTriggerRequest(trigger_id=trigger_id)))


async def resume(stub: Any, trigger_id: str) -> tuple[grpc.StatusCode, str]:
    return await code_of(stub.trigger.ResumeTrigger(pb.ResumeTriggerRequest(trigger_id=trigger_id)))


async def test_a_pause_is_on_disk_and_one_change_for_the_pipeline(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        await register(s, "t")
        first = await changes(s)
        (registered,) = first.changes
        assert (registered.paused, registered.changed_ns) == (False, 0)
        assert registered.registered_sequence == first.cursor.sequence
        assert (await pause(s.relay, "t"))[0] is CODE.OK
        assert (await pause(s.relay, "t"))[0] is CODE.OK, "it stays paused"
        assert [each.state for each in await listed(s)] == [PAUSED]
        second = await changes(s, first.cursor)
        (paused,) = second.changes
        assert (paused.registration, paused.paused, paused.changed_ns > 0) == (registered.registration, True, True)
        assert paused.trigger == registered.trigger and paused.registered_ns == registered.registered_ns
        assert paused.registered_sequence == registered.registered_sequence
        assert second.cursor.sequence == first.cursor.sequence + 1
        await report(s, [event("late", 1)])
        assert [each.firings for each in await listed(s)] == [1], "a firing of before the pause"
    async with suite(tmp_path) as s:
        assert [each.state for each in await listed(s)] == [PAUSED]
        reset = (await changes(s)).changes
        assert [each.paused for each in reset] == [True]
        assert TICKER in str(await listed_realtime(s)), "it takes rows"
        assert (await resume(s.relay, "t"))[0] is CODE.OK
        assert (await resume(s.relay, "t"))[0] is CODE.OK
        assert [each.state for each in await listed(s)] == [WAITING]
        (resumed,) = (await changes(s, second.cursor)).changes
        assert not resumed.paused and resumed.changed_ns >= paused.changed_ns
        assert (await register(s, "t")).status == 1, "it is the same trigger"


async def test_pauses_are_told_to_the_pipeline_until_it_has_them(tmp_path: Path) -> None:
    async def told(s: Any) -> list[tuple[int, int]]:
        (change,) = (await changes(s)).changes
        return [(each.start_ns, each.end_ns) for each in change.pauses]

    async with suite(tmp_path) as s:
        await register(s, "t")
        for _ in range(2):
            await pause(s.relay, "t")
            await resume(s.relay, "t")
        first, second = await told(s)
        assert 0 < first[0] <= first[1] <= second[0] <= second[1]
    async with suite(tmp_path) as s:
        assert await told(s) == [first, second]
        for _ in range(7):
            await pause(s.relay, "t")
            await resume(s.relay, "t")
        found = await told(s)
        assert len(found) == 8 and found[0] == (first[0], second[1]), "the oldest two are one"
        await report(s, [], applied=(await changes(s)).cursor)
        await pause(s.relay, "t")
        assert await told(s) == [], "it has those"
        await resume(s.relay, "t")
        assert len(await told(s)) == 1


async def test_a_trigger_that_has_ended_is_neither_paused_nor_resumed(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        await register(s, "t")
        await report(s, [event("e", 1, kind=pb.TRIGGER_EVENT_KIND_SUSPENDED, reason="too much")])
        for call in (pause, resume):
            code, text = await call(s.relay, "t")
            assert code is CODE.INVALID_ARGUMENT and "trigger_id 't' is SUSPENDED: too much; delete it" in text
            assert (await call(s.relay, "u")) == (CODE.NOT_FOUND, "trigger_id 'u' is not known")


async def test_only_its_client_pauses_a_trigger(tmp_path: Path) -> None:
    async with guarded(tmp_path) as s:
        desk, other, boss = [await s.stub(name) for name in ("desk", "other", "boss")]
        await register_at(desk, "t")
        for call in (pause, resume):
            assert (await call(other, "t")) == (CODE.NOT_FOUND, "trigger_id 't' is not known")
            assert (await call(desk, "t"))[0] is CODE.OK and (await call(boss, "t"))[0] is CODE.OK
