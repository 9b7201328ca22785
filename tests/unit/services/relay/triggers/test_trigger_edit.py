"""EditTrigger: what is stored, what the pipeline hears of it, what is refused, and who may."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner

from dexorder import AsyncClient
from dexorder.cli.live.trigger import app
from dexorder.client.triggers import TriggerEdited
from dexorder.errors import RequestRefused
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import trigger_service_pb2 as pb
from tests.unit.services.relay.harness import TICKER, Suite, suite
from tests.unit.services.relay.realtime.worker import listed as listed_realtime
from tests.unit.services.relay.test_access_rpc import callers_file, code_of, guarded
from tests.unit.services.relay.triggers.test_trigger_access import register as register_at
from tests.unit.services.relay.triggers.test_trigger_pause import pause
from tests.unit.services.relay.triggers.test_trigger_rpc import changes, event, listed, register, report

CODE = grpc.StatusCode
PAUSED, WAITING, RUNNING = pb.TRIGGER_STATE_PAUSED, pb.TRIGGER_STATE_WAITING, pb.TRIGGER_STATE_RUNNING
OTHER = "SELECT `close` FROM ohlc WHERE `close` > 6"


async def edit(stub: Any, trigger_id: str = "t", **fields: Any) -> pb.EditTriggerResponse:
    answer: pb.EditTriggerResponse = await stub.trigger.EditTrigger(
        pb.EditTriggerRequest(trigger_id=trigger_id, **fields)
    )
    return answer


async def test_an_edit_is_on_disk_and_one_change_for_the_pipeline(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        await register(s, "t", parameters={"cooldown": "5", "message": "old"})
        first = await changes(s)
        (registered,) = first.changes
        assert registered.revision == 1
        answer = await edit(s.relay, sql_pattern=OTHER, parameters={"cooldown": "9"}, removed_parameters=["message"])
        assert (answer.revision, answer.taken) == (2, False)
        second = await changes(s, first.cursor)
        (edited,) = second.changes
        assert (edited.trigger.sql_pattern, dict(edited.trigger.parameters)) == (OTHER, {"cooldown": "9"})
        assert (edited.revision, edited.registration) == (2, registered.registration)
        assert edited.registered_ns == registered.registered_ns and edited.trigger.tickers == registered.trigger.tickers
        again = await edit(s.relay, sql_pattern=OTHER, parameters={"cooldown": "9"}, removed_parameters=["message"])
        assert again.revision == 2 and (await changes(s, first.cursor)).cursor == second.cursor, "it changes nothing"
        waiting = asyncio.ensure_future(edit(s.relay, parameters={"fire": "level"}, wait_ms=20_000))
        for _ in range(1_000):
            if (third := await changes(s, first.cursor)).cursor != second.cursor:
                break
            await asyncio.sleep(0.01)
        await report(s, [], second.cursor)
        await report(s, [event("late", 1)], third.cursor)
        assert await waiting == pb.EditTriggerResponse(revision=3, taken=True)
        await pause(s.relay, "t")
        assert not (await edit(s.relay, parameters={"fire": "edge"}, wait_ms=1)).taken
        assert [(each.state, each.revision, each.firings) for each in await listed(s)] == [(PAUSED, 4, 1)]
    async with suite(tmp_path) as s:
        (found,) = await listed(s)
        assert (found.state, found.revision, found.trigger.sql_pattern) == (PAUSED, 4, OTHER)
        (reset,) = (await changes(s)).changes
        assert reset.paused and (reset.revision, reset.trigger.parameters["fire"]) == (4, "edge")


async def test_what_cannot_keep_the_state_is_refused_and_reset_begins_again(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        await register(s, "t")
        first = await changes(s)
        for fields, text in (
            (
                {"sql_pattern": "price > 5"},
                "can't keep its state, which depends on parts that the edit changes: FROM, period",
            ),
            ({"parameters": {"delay_ms": "5"}}, "the edit changes: delay_ms; give reset to start without the state"),
            ({"sql_pattern": "close > "}, "sql_pattern: line 1"),
            ({"parameters": {"cooldown": "x"}}, "cooldown: 'x' is not a whole number"),
            ({"parameters": {"unused": "5"}}, "'unused' is not a parameter"),
            ({"parameters": {"fire": "level"}, "removed_parameters": ["fire"]}, "removed_parameters has 'fire'"),
            ({"parameters": {f"n{n}": "1" for n in range(40)}}, "parameters has 40 entries"),
            ({"wait_ms": 30_001}, "wait_ms"),
        ):
            code, found = await code_of(edit(s.relay, **fields))
            assert code is CODE.INVALID_ARGUMENT and text in found, found
        assert (await changes(s)).cursor == first.cursor, "nothing was stored"
        await pause(s.relay, "t")
        answer = await edit(s.relay, sql_pattern="SELECT * FROM ohlc_5m WHERE `close` > 5", reset=True)
        assert answer.revision == 2
        deleted, registered = (await changes(s, first.cursor)).changes
        assert not deleted.HasField("trigger") and deleted.registration == first.changes[0].registration
        assert registered.registration > deleted.registration and registered.paused, "it stays paused"
        assert registered.registered_sequence > first.cursor.sequence
        (again,) = await listed(s)
        assert (again.state, again.revision, again.registration) == (PAUSED, 2, registered.registration)
        for _ in range(200):
            if "300" in (live := str(await listed_realtime(s))) and ": 60" not in live:
                break
            await asyncio.sleep(0.01)
        assert TICKER in live and "300" in live, "its new data is subscribed to"


async def test_a_trigger_that_has_ended_is_not_edited(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        await register(s, "t")
        await report(s, [event("e", 1, kind=pb.TRIGGER_EVENT_KIND_SUSPENDED, reason="too much")])
        for reset in (False, True):
            code, text = await code_of(edit(s.relay, sql_pattern=OTHER, reset=reset))
            assert code is CODE.INVALID_ARGUMENT and "trigger_id 't' is SUSPENDED: too much; delete it" in text
        assert await code_of(edit(s.relay, "u", sql_pattern=OTHER)) == (CODE.NOT_FOUND, "trigger_id 'u' is not known")


async def test_edits_at_the_same_time_follow_each_other_or_are_refused(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        await register(s, "t")
        calls = [edit(s.relay, parameters={"cooldown": str(n + 1)}) for n in range(6)]
        answers = await asyncio.gather(*map(code_of, calls))
        done = [code for code, _ in answers].count(CODE.OK)
        assert {code for code, _ in answers} <= {CODE.OK, CODE.UNAVAILABLE} and done
        assert [each.revision for each in await listed(s)] == [1 + done], "none is lost behind another one"


async def test_edits_give_no_more_room_and_no_more_calls_and_no_others_trigger(tmp_path: Path) -> None:
    """An attacker edits instead of registering: bytes and calls are counted as those of registrations."""
    limits = {"trigger_bytes": 1_500, "submissions_per_minute": 30}
    tokens = callers_file(tmp_path / "callers.yaml", desk=limits)
    sql = "SELECT `close` FROM ohlc WHERE `close` > 5"

    async with guarded(tmp_path, tokens=tokens) as s:
        desk, other, boss = [await s.stub(name) for name in ("desk", "other", "boss")]
        await register_at(desk, "t")
        assert await code_of(edit(other, sql_pattern=OTHER)) == (CODE.NOT_FOUND, "trigger_id 't' is not known")
        assert (await code_of(edit(boss, sql_pattern=OTHER)))[0] is CODE.OK
        wide = [edit(desk, sql_pattern=f"{sql}{' ' * 1_200}") for _ in range(4)]
        answers = await asyncio.gather(*map(code_of, wide))
        assert CODE.OK in {code for code, _ in answers}
        code, text = await code_of(edit(desk, sql_pattern=f"{sql}{' ' * 1_500}"))
        assert code is CODE.RESOURCE_EXHAUSTED and "1500 are allowed for client_id 'desk'" in text
        code, _ = await code_of(register_at(desk, "u", padding=300))
        assert code is CODE.RESOURCE_EXHAUSTED, "the edited text is counted"
        await edit(desk, sql_pattern=sql)
        assert (await register_at(desk, "u", padding=300)).status == ingest.CEPTriggerAck.REGISTERED
        code, _ = await code_of(edit(desk, sql_pattern=f"{sql}{' ' * 1_200}"))
        assert code is CODE.RESOURCE_EXHAUSTED, "and makes room once"
        code, text = CODE.OK, ""
        for n in range(40):
            code, text = await code_of(edit(desk, parameters={"cooldown": str(n + 1)}))
            if code is not CODE.OK:
                break
        assert code is CODE.RESOURCE_EXHAUSTED and "submissions" in text


async def test_the_command_and_the_client_edit_a_trigger(tmp_path: Path) -> None:
    async with suite(tmp_path) as s, AsyncClient(s.running.address) as client:
        await client.triggers.add("t", OTHER, [TICKER], {"cooldown": "5", "message": "m"})
        assert await client.triggers.edit("t", None, {"fire": "level"}, wait_seconds=0) == TriggerEdited(2, False)
        for wait_seconds in (-1, 31):
            with pytest.raises(RequestRefused, match=f"wait_seconds {wait_seconds} is not from 0 to 30"):
                await client.triggers.edit("t", OTHER, wait_seconds=wait_seconds)
        file = tmp_path / "new.sql"
        file.write_text(OTHER.replace("6", "7"))
        words = ("edit", "t", "--text", f"@{file}", "-p", "cooldown=9", "--unset", "message", "--relay")
        taking = asyncio.ensure_future(take_all(s))
        result = await asyncio.to_thread(CliRunner().invoke, app, [*words, s.running.address])
        taking.cancel()
        assert (result.exit_code, result.stdout) == (0, "t has revision 3\n")
        (found,) = await client.triggers.list()
        assert (found.revision, found.as_json()["revision"]) == (3, 3)
        assert found.trigger.sql.endswith("> 7") and found.trigger.parameters == {"cooldown": "9", "fire": "level"}


async def take_all(s: Suite) -> None:
    """Take the changes as the pipeline does."""
    while True:
        await report(s, [], (await changes(s)).cursor)
        await asyncio.sleep(0.02)
