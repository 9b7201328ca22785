"""A trigger on live candles through the whole chain, used by the command, while the Spark driver is killed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from tests.rig.suite import Suite
from tests.smoke.test_realtime import traded

pytestmark = [pytest.mark.smoke, pytest.mark.timeout(300)]

TICKER, NAME = "SOL/USDT.SIM", "SOLUSDT"
SQL = "SELECT ts, `close` FROM ohlc_1s WHERE `close` > 0"
BEFORE, AFTER = 5, 10


def command(suite: Suite, *words: str) -> str:
    """Run ``dexorder trigger``; return its output."""
    done = suite.dexorder("trigger", *words)
    assert done.returncode == 0, (done, suite.logs())
    return done.stdout


def tail(suite: Suite, count: int) -> list[dict[str, Any]]:
    """Wait for so many events of the trigger, and return them."""
    found = command(suite, "tail", "each-second", "--count", str(count), "--json")
    return [json.loads(line) for line in found.splitlines()]


def listed(suite: Suite) -> Any:
    """Return the trigger as it is listed."""
    return next(each for each in json.loads(command(suite, "list", "--json")) if each["trigger_id"] == "each-second")


def test_each_live_candle_fires_once_while_the_driver_is_killed(smoke_suite: Suite) -> None:
    suite = smoke_suite
    command(suite, "add", "each-second", SQL, "-t", TICKER, "-p", "fire=level")
    tail(suite, BEFORE)
    suite.kill("spark")
    tail(suite, listed(suite)["firings"] + AFTER)  # many may have come before the kill
    trigger = listed(suite)
    events = tail(suite, trigger["firings"])
    command(suite, "rm", "each-second")
    assert trigger["state"] == "RUNNING"
    assert len({each["event_id"] for each in events}) == len(events) >= BEFORE + AFTER
    assert {each["kind"] for each in events} == {"FIRED"}
    found = {each["rows"][0]["ts"]: each["rows"][0]["close"] for each in events}
    first_ns, last_ns = min(found), max(found)
    closes: dict[int, float] = {}
    for _, time_ns, price, _ in traded(suite, NAME, TimeRange(first_ns, last_ns + SECOND_NS)):
        closes[time_ns // SECOND_NS * SECOND_NS] = price
    assert found == closes, "every second in which somebody traded is a candle, and fires once"
