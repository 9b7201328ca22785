"""Limits of triggers at the door, and the subscriptions that they need."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace

import pytest

from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.realtime import RealtimeParams
from dexorder_common.model.triggers import Alert, RegisteredTrigger, Trigger, TriggerEdit, TriggerState
from dexorder_common.model.user_events import MAX_CHANNELS, Channel, Preference
from dexorder_relay.state import triggers
from dexorder_relay.state.triggers import (
    MAX_PARAMETER_LENGTH,
    MAX_PARAMETERS,
    MAX_SQL_BYTES,
    MAX_TICKERS,
    DataRead,
)

VENUES = ("SIM",)
BTC, ETH = "BTC/USDT.SIM", "ETH/USDT.SIM"
TRIGGER = Trigger("t", "SELECT 1", (BTC,))
MANY = tuple(f"X{number}/USDT.SIM" for number in range(MAX_TICKERS + 1))
WEB = Preference(Channel.WEB)
TRADES = RealtimeParams(True)


@pytest.mark.parametrize(
    ("changed", "refusal"),
    [
        ({}, ""),
        ({"tickers": ()}, "tickers has 0 entries; 1 to 1000 are allowed"),
        ({"tickers": MANY[:-1]}, ""),
        ({"tickers": MANY}, "tickers has 1001 entries"),
        ({"tickers": (BTC, ETH, BTC)}, "names a market twice"),
        ({"tickers": ("BTC/USDT.NOWHERE",)}, "exchange 'NOWHERE' is not known"),
        ({"sql": "é" * (MAX_SQL_BYTES // 2)}, ""),
        ({"sql": "é" * (MAX_SQL_BYTES // 2) + "x"}, f"sql_pattern has {MAX_SQL_BYTES + 1} bytes"),
        ({"parameters": {str(number): "" for number in range(MAX_PARAMETERS)}}, ""),
        ({"parameters": {str(number): "" for number in range(MAX_PARAMETERS + 1)}}, "parameters has 33 entries"),
        ({"parameters": {"n" * MAX_PARAMETER_LENGTH: "v" * MAX_PARAMETER_LENGTH}}, ""),
        ({"parameters": {"n": "v" * (MAX_PARAMETER_LENGTH + 1)}}, "name or value with more than 1000 characters: 'n'"),
        ({"parameters": {"n" * (MAX_PARAMETER_LENGTH + 1): ""}}, "name or value with more than 1000 characters"),
        ({"trigger_id": ""}, "trigger_id '' has 0 characters"),
        ({"trigger_id": "x" * 128}, ""),
        ({"trigger_id": "x" * 129}, "has 129 characters"),
        ({"trigger_id": "a\x1bb"}, "printable"),
        ({"callback_id": "a\nb"}, "callback_id .* has a control character"),
        ({"client_id": "a\nb"}, "client_id .* has a control character"),
        ({"alert": Alert("alice", channels=(WEB,) * MAX_CHANNELS)}, ""),
        ({"alert": Alert("alice", channels=(WEB,) * (MAX_CHANNELS + 1))}, "alert.delivery.channels has"),
        ({"alert": Alert("")}, "alert.user_id"),
    ],
)
def test_trigger_beyond_a_limit_is_refused_with_the_field(changed: Mapping[str, object], refusal: str) -> None:
    trigger = replace(TRIGGER, **changed)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=refusal) if refusal else nullcontext():
        triggers.check(trigger, VENUES)


@pytest.mark.parametrize(
    ("edit", "refusal"),
    [
        (TriggerEdit("t", parameters={"a": "1"}, removed=("b",)), ""),
        (
            TriggerEdit("t", parameters={"a": "1"}, removed=("b", "a")),
            "removed_parameters has 'a', which parameters sets",
        ),
        (TriggerEdit("t", removed=("a",) * MAX_PARAMETERS), ""),
        (TriggerEdit("t", removed=("a",) * (MAX_PARAMETERS + 1)), "removed_parameters has 33 entries; at most 32"),
        (TriggerEdit("a\nb"), "trigger_id"),
    ],
)
def test_an_edit_that_contradicts_itself_is_refused(edit: TriggerEdit, refusal: str) -> None:
    with pytest.raises(InvalidRequest, match=refusal) if refusal else nullcontext():
        triggers.check_edit(edit)


def test_needed_data_is_that_of_all_triggers() -> None:
    read = [DataRead((BTC, ETH), 60), DataRead((BTC,), 300), DataRead((ETH,), 0)]
    assert triggers.needed(read) == {BTC: RealtimeParams(False, (60, 300)), ETH: RealtimeParams(True, (60,))}
    running = RegisteredTrigger(replace(TRIGGER, parameters={"on": "tick"}), 1, 0, TriggerState.RUNNING, 60)
    found = triggers.needed([DataRead.of(running)])
    assert found == dict.fromkeys(TRIGGER.tickers, RealtimeParams(True, (60,))), "it is made of trades"


def test_subscriptions_change_only_where_what_is_needed_differs() -> None:
    present = {BTC: ("a", TRADES), ETH: ("b", RealtimeParams(False, (60,)))}
    assert triggers.changes({BTC: TRADES, ETH: RealtimeParams(False, (60,))}, present) == ([], [])
    assert triggers.changes({BTC: TRADES, ETH: TRADES}, present) == ([(ETH, TRADES)], ["b"])
    assert triggers.changes({ETH: RealtimeParams(False, (60,))}, present) == ([], ["a"])
    assert triggers.changes({BTC: TRADES}, {}) == ([(BTC, TRADES)], [])
