"""Limits of a trigger's text at each of their doors: what one call refuses, no other one takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest

from dexorder_cep.compile.message import MAX_TEMPLATE
from dexorder_cep.language.refusals import MAX_COLUMNS
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import trigger_service_pb2 as pb
from dexorder_relay import engine
from dexorder_relay.state.triggers import MAX_SQL_BYTES
from dexorder_relay.triggers.text_checks import TextChecks
from tests.unit.services.relay.harness import TICKER, at, suite
from tests.unit.services.relay.test_access_rpc import code_of
from tests.unit.services.relay.triggers.test_text_checks import GREEDY, let_workers_import_tests
from write_limits import limits

GOOD = "SELECT `close` FROM ohlc WHERE `close` > 5"
HOSTILE = {
    "bytes of a trigger's text": (GOOD.ljust(MAX_SQL_BYTES + 1), {}, f"at most {MAX_SQL_BYTES} are allowed"),
    "characters of a trigger's message": (
        GOOD,
        {"message": "m" * (MAX_TEMPLATE + 1)},
        f"more than {MAX_TEMPLATE} characters",
    ),
    "columns of a trigger": (f"SELECT {', '.join(['close'] * (MAX_COLUMNS + 1))} FROM ohlc", {}, "columns"),
    "CPU time to compile a text": ("loop", {}, "takes more than"),
    "memory to compile a text": ("memory", {}, "takes more than"),
}
"""By row of docs/limits.toml: a text and parameters beyond the limit, and words of the refusal."""
ROWS = {row.resource: row for row in limits() if row.resource in HOSTILE}


async def outcome(stub: Any, door: str, sql: str, parameters: Mapping[str, str]) -> tuple[str, str]:
    """Return how a door answers to a text: the status of an ack or of the call, and its words."""
    trigger = ingest.CEPTriggerRequest(
        trigger_id="new", sql_pattern=sql, tickers=[TICKER], callback_id="c", parameters=parameters
    )
    new = pb.RegisterTriggerRequest(trigger=trigger)
    if door == "TriggerService.RegisterTrigger":
        return of_ack((await stub.RegisterTrigger(new)).ack)
    if door == "TriggerService.RegisterTriggers":
        (ack,) = (await stub.RegisterTriggers(pb.RegisterTriggersRequest(triggers=[new]))).acks
        return of_ack(ack)
    if door == "TriggerService.EditTrigger":
        call = stub.EditTrigger(pb.EditTriggerRequest(trigger_id="known", sql_pattern=sql, parameters=parameters))
    else:
        assert door == "TriggerService.BacktestTrigger"
        call = stub.BacktestTrigger(
            pb.BacktestTriggerRequest(trigger=trigger, start_ns=at(0), end_ns=at(10)), timeout=60
        )
    code, text = await code_of(call)
    return code.name, text


def of_ack(ack: ingest.CEPTriggerAck) -> tuple[str, str]:
    return ingest.CEPTriggerAck.TriggerStatus.Name(ack.status), ack.error_message


async def stored(stub: Any) -> list[tuple[str, str]]:
    listed = await stub.ListTriggers(pb.ListTriggersRequest())
    return [(each.trigger.trigger_id, each.trigger.sql_pattern) for each in listed.triggers]


@pytest.mark.parametrize("resource", HOSTILE)
async def test_a_text_beyond_a_limit_is_refused_at_each_door(
    resource: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_workers_import_tests(monkeypatch)
    monkeypatch.setattr(engine, "TextChecks", lambda: TextChecks(GREEDY))
    sql, parameters, words = HOSTILE[resource]
    async with suite(tmp_path) as s:
        stub = s.relay.trigger
        known = ingest.CEPTriggerRequest(trigger_id="known", sql_pattern=GOOD, tickers=[TICKER], callback_id="c")
        await stub.RegisterTrigger(pb.RegisterTriggerRequest(trigger=known))
        for door in ROWS[resource].doors:
            status, text = await outcome(stub, door, sql, parameters)
            is_ack = door.startswith("TriggerService.Register")
            wanted = ROWS[resource].above.partition(";")[0] if is_ack else grpc.StatusCode.INVALID_ARGUMENT.name
            assert (status, words in text) == (wanted, True), (door, status, text)
        assert await stored(stub) == [("known", GOOD)]
        answers = {await answer_to_a_good_text(stub, door) for door in ROWS[resource].doors}
        assert answers == {"REGISTERED", "ALREADY_REGISTERED", "OK"}


async def answer_to_a_good_text(stub: Any, door: str) -> str:
    """Return how a door answers to a text within all limits."""
    status, _ = await outcome(stub, door, GOOD.replace("5", "6"), {})
    return status
