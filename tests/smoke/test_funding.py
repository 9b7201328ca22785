"""Funding rates through the whole chain, with faulty answers, while parts are killed; the interval changes twice."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from dexorder import Client
from dexorder_common.model.times import SECOND_NS, from_datetime
from dexorder_exchange_sim.instruments import Funding
from tests.rig.suite import running_suite

pytestmark = [pytest.mark.smoke, pytest.mark.timeout(600)]

DAY = 86_400
START = 1_704_067_200
"""2024-01-01."""
CHANGES = ((START - 90 * DAY, 8), (START + 60 * DAY, 4), (START + 120 * DAY, 1))
TICKER = "BTC/USDT:USDT.SIM"
FAULTS: list[dict[str, Any]] = [
    {"kind": "hole", "path": "/fapi/v1/fundingRate", "probability": 0.3, "place": "random", "size": 2},
    {"kind": "short", "path": "/fapi/v1/fundingRate", "every": 5},
    {"kind": "http_502", "path": "/fapi/v1/fundingRate", "every": 7},
    {"kind": "empty", "path": "/fapi/v1/fundingRate", "every": 6},
]


def rates(since_s: int, until_s: int) -> list[tuple[int, float]]:
    truth = Funding("BTCUSDT", CHANGES)
    return [(time_s * SECOND_NS, float(truth.rate(time_s))) for time_s in truth.times_s(since_s, until_s)]


@pytest.mark.nightly
def test_rates_arrive_once_each_although_the_interval_changes_answers_are_faulty_and_parts_die(tmp_path: Path) -> None:
    environment = {
        "DEXORDER_SIM_FUNDING": json.dumps({"BTCUSDT": CHANGES}),
        "DEXORDER_SIM_FAULTS": json.dumps(FAULTS),
        "DEXORDER_SIM_NOW_NS": str((START + 200 * DAY) * SECOND_NS),
        "DEXORDER_SIM_SPEED": "1",
    }
    with running_suite(tmp_path / "suite", **environment) as suite, Client(suite.relay) as client:
        kills = [
            threading.Timer(1 + 3 * n, suite.kill, [part]) for n, part in enumerate(("ingestor", "relay", "spark"))
        ]
        for kill in kills:
            kill.start()
        since_s, until_s = START, START + 180 * DAY
        found = client.funding(TICKER, since_s, until_s, timeout=400).to_pylist()
        for kill in kills:
            kill.join()
        got = [(from_datetime(row["funding_time"]), row["rate"]) for row in found]
        assert got == rates(since_s, until_s)
        hours = {8: 60 * 3, 4: 60 * 6, 1: 60 * 24}
        intervals = [row["interval_seconds"] // 3_600 for row in found]
        assert {each: intervals.count(each) for each in hours} == {8: 181, 4: 360, 1: 1_439}
        covered = client.coverage(TICKER, "funding")
        assert [(each.span.start_ns, each.span.end_ns) for each in covered.known] == [
            (since_s * SECOND_NS, until_s * SECOND_NS)
        ]
        # all of it is covered now: nothing is fetched again, and the command reads the same rows
        calls = suite.metric("ingestor", "dexorder_ingestor_calls_total")
        shown = suite.dexorder("funding", TICKER, "--since", "2024-02-28", "--until", "2024-03-02", "--json")
        assert shown.returncode == 0, shown.stderr
        assert [row["rate"] for row in json.loads(shown.stdout)] == [
            rate for _, rate in rates(START + 58 * DAY, START + 61 * DAY)
        ]
        assert suite.metric("ingestor", "dexorder_ingestor_calls_total") == calls
        table = suite.dexorder("funding", TICKER, "--since", "2024-02-28", "--until", "2024-03-02")
        assert f"{TICKER} funding rates: 12, in total" in table.stderr
        assert "2024-03-01T04:00:00Z" in table.stdout
        refused = suite.dexorder("funding", TICKER, "--since", "2024-07-01", "--until", "2024-08-01")
        assert refused.returncode != 0
        assert "funding rates from" in refused.stderr and "missing" in refused.stderr, refused.stderr
