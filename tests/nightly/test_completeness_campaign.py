"""Untrue answers of all kinds: tens of thousands of simulated jobs, and the whole chain with an ingestor that dies.

Seeds differ between runs; each table names its seed.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings

from tests.nightly import completeness_kills
from tests.nightly.completeness_kills import Thin
from tests.rig.oracle import minutes
from tests.rig.report import print_campaign
from tests.rig.suite import running_suite
from tests.unit.services.ingestor.history.simulated import campaign
from tests.unit.services.ingestor.history.simulated.properties import PROPERTIES

ROUNDS = int(os.environ.get("DEXORDER_SOAK_COMPLETENESS_ROUNDS", "20"))
JOBS = int(os.environ.get("DEXORDER_SOAK_SIMULATED_JOBS", "20000"))
EXAMPLES = int(os.environ.get("DEXORDER_SOAK_SIMULATED_EXAMPLES", "2000"))
SEED = int(os.environ.get("DEXORDER_SOAK_SEED", "0")) or random.randrange(1, 2**31)
CANDLES = 20_000
THIN_MINUTES = 40_000
pytestmark = pytest.mark.soak


@pytest.mark.timeout(EXAMPLES * 2 + 600)
@pytest.mark.parametrize("name", PROPERTIES)
def test_property(name: str) -> None:
    holds, worlds = PROPERTIES[name]
    settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))(given(worlds)(holds))()


@pytest.mark.timeout(JOBS + 600)
def test_no_more_jobs_end_wrong_than_the_odds_allow() -> None:
    started_s = time.monotonic()
    tallies = [campaign.run(range(SEED, SEED + JOBS), lies=lies) for lies in campaign.COLD_ODDS]
    print_campaign(
        f"Simulated jobs, seeds from {SEED}",
        ["answers that lie", "jobs", "pages", "calls", "lies", "wrong from the start", "wrong later", "part missing"],
        *(
            [
                f"{t.lies:.0%}",
                f"{t.jobs:,}",
                f"{t.pages:,}",
                f"{t.calls:,}",
                f"{t.lied:,}",
                len(t.cold),
                len(t.later),
                len(t.missing),
            ]
            for t in tallies
        ),
        since_s=started_s,
    )
    for tally in tallies:
        tally.check(doubt=1e-4)


@pytest.mark.timeout(ROUNDS * 120 + 1_200)
def test_lies_and_kills_lose_duplicate_and_invent_nothing(tmp_path: Path) -> None:
    started_s = time.monotonic()
    random.seed(SEED)
    rows = completeness_kills.thin_minutes(0, THIN_MINUTES, seed=SEED)
    thin = Thin("THIN/USDT", "1m", minutes(-1_000, THIN_MINUTES + 2_000), rows)
    times = rows["open_time"].to_numpy() // 1_000
    pq.write_table(rows.set_column(0, "timestamp", pa.array(times)), tmp_path / "thin.parquet")
    environment = {
        "DEXORDER_SIM_LATENCY_MS": "100",
        "DEXORDER_RELAY_LEASE_SECONDS": "6",
        # lives of under 4 s may well bring no page, five in a row: to the relay that is a job that kills its ingestors
        "DEXORDER_RELAY_MAX_ATTEMPTS": "1000",
        "DEXORDER_INGESTOR_PAGE_CANDLES": "200",  # many pages, so that a kill falls between any two steps
        "DEXORDER_INGESTOR_BAN_SECONDS": "0.2",
    }
    with running_suite(
        tmp_path / "state", "--recorded", f"{tmp_path / 'thin.parquet'}=THIN/USDT@1m", **environment
    ) as suite:
        completeness_kills.set_faults(suite, completeness_kills.rules())
        symbols = ("BTC/USDT", "ETH/USDT", "LTC/USDT")
        seen = completeness_kills.run(suite, thin, kills=ROUNDS, candles=CANDLES, symbols=symbols)
    faulty = sum(seen.faults.values())
    print_campaign(
        f"Every fifth answer false, the ingestor killed again and again, seed {SEED}",
        ["kills", "requests", "candles", "verified empty", "calls", "of them false", "kinds", "result"],
        [
            seen.kills,
            seen.requests,
            f"{seen.rows:,}",
            f"{seen.empty:,}",
            f"{seen.calls:,}",
            f"{faulty:,} ({faulty / seen.calls:.0%})",
            len(seen.faults),
            "0 lost, 0 doubled, 0 wrong, 0 null, one status each",
        ],
        since_s=started_s,
    )
