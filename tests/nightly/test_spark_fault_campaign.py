"""Spark killed between the Iceberg commit and the report, fifty times."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.nightly import spark_fault
from tests.nightly.backfills import Backfills
from tests.nightly.watching import Listener
from tests.rig.report import print_campaign
from tests.rig.suite import running_suite

DEATHS = int(os.environ.get("DEXORDER_SOAK_SPARK_DEATHS", "50"))
CANDLES = 100_000
pytestmark = [pytest.mark.soak, pytest.mark.timeout(DEATHS * 120 + 1_200)]


def test_a_batch_that_died_after_its_commit_is_not_duplicated(tmp_path: Path) -> None:
    environment = {
        "DEXORDER_SIM_LATENCY_MS": "1500",
        # constant compaction and expiry, so that replays also meet tables that were maintained in between
        "DEXORDER_SPARK_MAINTENANCE_INTERVAL_SECONDS": "1",
        "DEXORDER_SPARK_MAINTENANCE_MAX_WAIT_SECONDS": "0",
        "DEXORDER_SPARK_MAINTENANCE_SMALL_FILES": "2",
        "DEXORDER_SPARK_MAINTENANCE_SNAPSHOT_DAYS": "0.0003",
        "DEXORDER_SPARK_MAINTENANCE_SNAPSHOT_HOURS": "0.007",
    }
    with running_suite(tmp_path / "state", **environment, **spark_fault.fault_environment(tmp_path / "state")) as suite:
        started_s = time.monotonic()
        with Listener(suite, "fault") as listener:
            with Backfills(suite, "fault", candles=CANDLES) as backfills:
                seen = spark_fault.run(suite, backfills, DEATHS, expiry_every=25)
            rows = backfills.assert_all_ended_well(listener.statuses)
        expired = spark_fault.expired(suite)
    print_campaign(
        "Spark killed between the Iceberg commit and the report",
        ["deaths after a first commit", "after a repeated one", "backfills", "rows", "lost", "duplicated", "expired"],
        [seen.fresh, seen.replayed, len(backfills.sent), f"{rows:,}", 0, 0, f"{expired} snapshots"],
        since_s=started_s,
    )
