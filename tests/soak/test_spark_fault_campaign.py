"""Spark killed between the Iceberg commit and its checkpoint, fifty times."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.smoke.harness import running_suite
from tests.soak import spark_fault
from tests.soak.backfills import Backfills
from tests.soak.report import say
from tests.soak.watching import Listener

DEATHS = int(os.environ.get("DEXORDER_SOAK_SPARK_DEATHS", "50"))
CANDLES = 100_000
pytestmark = [pytest.mark.soak, pytest.mark.timeout(DEATHS * 120 + 1_200)]


def test_a_batch_that_died_behind_its_commit_is_not_doubled(tmp_path: Path) -> None:
    # Without the warm-up a driver is back in half the time; here nothing is measured.
    environment = {"DEXORDER_SIM_LATENCY_MS": "500", "DEXORDER_SPARK_WARM_UP": "false"}
    with running_suite(tmp_path / "state", **environment, **spark_fault.fault_environment(tmp_path / "state")) as suite:
        started_s = time.monotonic()
        with Listener(suite, "fault") as listener:
            with Backfills(suite, "fault", candles=CANDLES) as backfills:
                seen = spark_fault.run(suite, backfills, DEATHS)
            rows = backfills.assert_all_ended_well(listener.statuses)
    say(
        "Spark killed between the Iceberg commit and its checkpoint",
        ["deaths behind a first commit", "behind a repeated one", "backfills", "rows", "lost", "doubled"],
        [seen.fresh, seen.replayed, len(backfills.sent), f"{rows:,}", 0, 0],
        since_s=started_s,
    )
