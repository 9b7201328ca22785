"""Campaign: repeated `kill -9` of every part during backfills of 100,000 candles.

Every kill falls into the middle of a backfill. Afterwards the whole table must equal the oracle, and every request must
have one status, announced at least once to a client that resumes by its cursor.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator

import pytest

from tests.nightly.backfills import Backfills
from tests.nightly.kills import LIMITS, Kills
from tests.nightly.watching import Listener
from tests.rig.report import median_and_worst, print_campaign
from tests.rig.suite import Suite, running_suite

KILLS = int(os.environ.get("DEXORDER_SOAK_KILLS", "50"))
PARTS = os.environ.get("DEXORDER_SOAK_KILLED", " ".join(LIMITS)).split()
"""One alone shows what its start takes where it has the machine for itself."""
CANDLES = 100_000
FAULTS = [
    {"kind": kind, "every": every, "path": "/api/v3/klines"}
    for kind, every in (("empty", 37), ("html", 41), ("http_502", 43), ("hole", 47), ("drop_last", 53))
]
pytestmark = [pytest.mark.soak, pytest.mark.timeout(KILLS * 180 + 1_200)]


@pytest.fixture
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suite]:
    with running_suite(
        tmp_path_factory.mktemp("kills") / "state",
        DEXORDER_SIM_FAULTS=json.dumps(FAULTS),
        DEXORDER_SIM_LATENCY_MS="500",
    ) as running:
        yield running


def test_kills_spread_over_backfills_lose_and_double_nothing(suite: Suite) -> None:
    started_s = time.monotonic()
    kills = Kills(suite)
    with Listener(suite, "kills") as listener:
        with Backfills(suite, "kills", candles=CANDLES) as backfills:
            for _ in range(KILLS):
                kills.round(PARTS)
                backfills.check()
        rows = backfills.assert_all_ended_well(listener.statuses)
    print_campaign(
        f"Kills over backfills: {len(backfills.sent)} backfills, {rows:,} rows, 0 lost, 0 doubled, one status each",
        ["part", "kills", "ready again", "its jobs run again", "limit"],
        *(
            [
                part,
                len(kills.ready[part]),
                median_and_worst(kills.ready[part]),
                median_and_worst(kills.running[part]),
                f"{limit} s",
            ]
            for part, limit in LIMITS.items()
            if part in PARTS
        ),
        since_s=started_s,
    )
    late = {part: max(seconds) for part, seconds in kills.running.items() if max(seconds) > LIMITS[part]}
    assert not late, late
