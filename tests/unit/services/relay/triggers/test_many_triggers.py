"""RegisterTriggers: one commit for a batch, an ack each, and what a hostile batch can do."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
from typer.testing import CliRunner

from dexorder.cli.live.trigger import app
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import trigger_service_pb2 as pb
from tests.unit.services.relay.harness import TICKER, suite
from tests.unit.services.relay.test_access_rpc import callers_file, code_of, guarded
from tests.unit.services.relay.triggers.test_trigger_rpc import SQL, changes, listed, register

REGISTERED, ALREADY, INVALID_SQL, ERROR = 0, 1, 2, 3


def entry(trigger_id: str, sql: str = SQL, **fields: Any) -> pb.RegisterTriggerRequest:
    outer = {name: fields.pop(name) for name in ("client_id", "alert") if name in fields}
    given = {"tickers": [TICKER], **fields}
    trigger = ingest.CEPTriggerRequest(trigger_id=trigger_id, sql_pattern=sql, **given)
    return pb.RegisterTriggerRequest(trigger=trigger, **outer)


async def register_many(stub: Any, entries: Iterable[pb.RegisterTriggerRequest]) -> list[ingest.CEPTriggerAck]:
    return list((await stub.trigger.RegisterTriggers(pb.RegisterTriggersRequest(triggers=entries))).acks)


async def test_each_trigger_has_its_ack_in_order_and_a_refused_one_stops_no_other(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        await register(s, "known")
        entries = [
            entry("known"),
            entry("a"),
            entry("text", "SELECT clos FROM ohlc"),
            entry("known", "SELECT * FROM ohlc WHERE `close` > 6"),
            entry("market", tickers=["nonsense"]),
            entry("b", parameters={"fire": "level"}),
            entry("a"),
            entry("a", "SELECT * FROM ohlc WHERE `close` > 7"),
            entry("period", parameters={"period": "61"}),
            entry("c"),
        ]
        acks = await register_many(s.relay, entries)
        assert [each.trigger_id for each in acks] == [each.trigger.trigger_id for each in entries]
        assert [each.status for each in acks] == [
            *(ALREADY, REGISTERED, INVALID_SQL, ERROR, ERROR, REGISTERED),
            *(ALREADY, ERROR, INVALID_SQL, REGISTERED),
        ]
        reasons = {n: each.error_message for n, each in enumerate(acks) if each.error_message}
        assert "'clos' does not exist" in reasons[2] and "in use for another trigger" in reasons[3]
        assert "nonsense" in reasons[4] and "in use for another trigger" in reasons[7] and "'61'" in reasons[8]
        found = [each.trigger.trigger_id for each in await listed(s)]
        assert found == ["known", "a", "b", "c"]
        assert [each.trigger.trigger_id for each in (await changes(s)).changes] == found
        again = await register_many(s.relay, entries)
        assert [each.status for each in again] == [ALREADY if s == REGISTERED else s for s in (a.status for a in acks)]
    async with suite(tmp_path) as s:
        assert [each.trigger.trigger_id for each in await listed(s)] == found, "all of it is on disk"


def commits(folder: Path) -> int:
    """Return the number of commits of the relay's database."""
    with closing(sqlite3.connect(folder / "relay.db")) as connection:
        return int(connection.execute("SELECT value FROM meta WHERE name = 'generation'").fetchone()[0])


async def test_a_batch_is_one_commit(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        before = commits(tmp_path)
        await register_many(s.relay, [entry(f"t{n}") for n in range(200)])
        assert commits(tmp_path) - before <= 10, "one, and a few of the subscription that brings the rows"
        assert len(await listed(s, page_size=1000)) == 200


async def test_a_batch_has_a_limit_and_counts_against_the_quotas_of_its_client(tmp_path: Path) -> None:
    tokens = callers_file(
        tmp_path / "callers.yaml", {"desk": {"users": ["ann"]}}, desk={"triggers": 3, "submissions_per_minute": 8}
    )
    async with guarded(tmp_path, tokens=tokens) as s:
        desk, other = await s.stub("desk"), await s.stub("other")
        for size in (0, 1_001):
            entries = [entry(f"t{n}") for n in range(size)]
            code, text = await code_of(desk.trigger.RegisterTriggers(pb.RegisterTriggersRequest(triggers=entries)))
            assert code is grpc.StatusCode.INVALID_ARGUMENT and "triggers" in text
        code, text = await code_of(
            desk.trigger.RegisterTriggers(
                pb.RegisterTriggersRequest(triggers=[entry(f"t{n}", "x" * 16_000) for n in range(400)])
            )
        )
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED, "6 MB"
        alert = pb.TriggerAlert(user_id="bob")
        acks = await register_many(
            desk, [entry("bob", alert=alert), entry("mine", client_id="other"), *(entry(f"t{n}") for n in range(5))]
        )
        assert [each.status for each in acks] == [ERROR, ERROR, REGISTERED, REGISTERED, REGISTERED, ERROR, ERROR]
        assert "not one of the users" in acks[0].error_message and "not the caller's" in acks[1].error_message
        assert "triggers would be 4, 3 are allowed" in acks[5].error_message
        code, text = await code_of(
            desk.trigger.RegisterTriggers(pb.RegisterTriggersRequest(triggers=[entry(f"u{n}") for n in range(4)]))
        )
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED and "submissions_per_minute" in text
        assert [each.status for each in await register_many(desk, [entry("t0")])] == [ALREADY], "it costs nothing"
        assert [each.status for each in await register_many(other, [entry("t0"), entry("o")])] == [ERROR, REGISTERED]


async def test_the_command_names_refused_lines_and_registers_the_others(tmp_path: Path) -> None:
    lines = [
        {"trigger_id": "a", "sql": SQL, "tickers": TICKER, "parameters": {"fire": "level"}, "user_id": "ann"},
        {"trigger_id": "b", "sql": "SELECT clos FROM ohlc", "tickers": [TICKER]},
        {"trigger_id": "c", "sql": SQL, "tickers": [TICKER]},
    ]
    file = tmp_path / "alerts.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    async with suite(tmp_path) as s:
        register_file = ["register", "--file", str(file), "--relay", s.running.address]
        result = await asyncio.to_thread(CliRunner().invoke, app, register_file)
        assert result.exit_code == 1 and "2 REGISTERED, 1 INVALID_SQL" in result.output
        assert "b: INVALID_SQL: line 1, column 8: column 'clos' does not exist" in result.output
        found = await listed(s)
        assert [each.trigger.trigger_id for each in found] == ["a", "c"] and found[0].alert.user_id == "ann"
        file.write_text(json.dumps(lines[2]) + '\n{"trigger_id": "d"}\n')
        result = await asyncio.to_thread(CliRunner().invoke, app, register_file)
        assert result.exit_code == 2 and "line 2 is not a trigger" in result.output
