"""From REGISTERED on: triggers registered in batches on a whole suite, while the triggers' process is killed.

Each second in which somebody traded, and whose candle closed after the answer to a registration, fires that trigger
once.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

import dexorder
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from tests.rig.suite import Suite
from tests.smoke.test_realtime import traded

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

MARKETS = {"SOL/USDT.SIM": "SOLUSDT", "ETH/USDT.SIM": "ETHUSDT"}
SQL = "SELECT ts, `close` FROM ohlc_1s WHERE `close` > :least"
BATCHES, IN_A_BATCH, KILL_EACH = 12, 40, 3
SETTLED_S = 60.0


def engine_processes(suite: Suite) -> list[int]:
    """Return the ids of the triggers' processes: children of the suite's driver."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((each / "stat").read_text().rpartition(")")[2].split()[1])
            words = (each / "cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError, IndexError):
            continue
        if parent == suite.pid("spark") and b"dexorder_spark.cep" in words:
            found.append(int(each.name))
    return found


def test_every_second_of_every_trigger_from_its_registration_on(smoke_suite: Suite) -> None:
    registered_ns: dict[str, int] = {}
    market_of: dict[str, str] = {}
    kills = 0
    with dexorder.Client(smoke_suite.relay) as client:
        client.triggers.add("deaf-first", SQL, MARKETS, {"fire": "level", "least": "0"})
        heard: set[str] = set()
        for each in client.triggers.events("deaf-first"):  # both markets are subscribed to
            heard.add(each.ticker)
            if len(heard) == len(MARKETS):
                break
        for batch in range(BATCHES):
            names = [f"deaf-{batch}-{n}" for n in range(IN_A_BATCH)]
            markets = [list(MARKETS)[n % len(MARKETS)] for n in range(IN_A_BATCH)]
            answers = client.triggers.add_many(
                {
                    "trigger_id": name,
                    "sql": SQL,
                    "tickers": market,
                    "parameters": {"fire": "level", "least": "0"},
                    "callback_id": "deaf",
                }
                for name, market in zip(names, markets, strict=True)
            )
            answered_ns = time.time_ns()
            assert {each.status for each in answers} == {"REGISTERED"}
            registered_ns |= dict.fromkeys(names, answered_ns)
            market_of |= dict(zip(names, markets, strict=True))
            time.sleep(2.0)
            if batch % KILL_EACH == KILL_EACH - 1:
                for pid in engine_processes(smoke_suite):
                    os.kill(pid, signal.SIGKILL)
                    kills += 1
        last_ns = (time.time_ns() // SECOND_NS - 1) * SECOND_NS
        time.sleep(SETTLED_S)
        fired: dict[str, list[int]] = {name: [] for name in registered_ns}
        total = sum(each.firings for each in client.triggers.list() if each.trigger.trigger_id in fired)
        for count, each in enumerate(client.triggers.events(callback_id="deaf"), 1):
            fired[each.trigger_id] += [int(str(row[0])) for row in each.rows]
            if count >= total:
                break
    assert kills >= BATCHES // KILL_EACH
    first_ns = min(registered_ns.values()) // SECOND_NS * SECOND_NS - 5 * SECOND_NS
    seconds = {
        market: {
            time_ns // SECOND_NS * SECOND_NS
            for _, time_ns, _, _ in traded(smoke_suite, name, TimeRange(first_ns, last_ns))
        }
        for market, name in MARKETS.items()
    }
    missing = {}
    for name, at_ns in registered_ns.items():
        own = [each for each in fired[name] if each < last_ns]
        assert len(own) == len(set(own)), f"{name} has fired twice for a candle"
        expected = {each for each in seconds[market_of[name]] if each + SECOND_NS >= at_ns and each < last_ns}
        assert set(own) <= seconds[market_of[name]], "a candle that nobody traded in"
        if lost := expected - set(own):
            missing[name] = sorted((each - at_ns) / SECOND_NS for each in lost)
    assert not missing, missing
