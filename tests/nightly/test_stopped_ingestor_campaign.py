"""SIGSTOP of an ingestor that holds jobs, for 90 seconds."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.nightly import stopped_ingestor
from tests.nightly.backfills import FIRST_MINUTE
from tests.rig.report import print_campaign
from tests.rig.suite import running_suite

SECONDS = float(os.environ.get("DEXORDER_SOAK_STOP_SECONDS", "90"))
CANDLES = 50_000
pytestmark = [pytest.mark.soak, pytest.mark.timeout(SECONDS + 1_200)]


def test_a_stopped_ingestor_changes_nothing_when_it_goes_on(tmp_path: Path) -> None:
    with running_suite(tmp_path / "state", DEXORDER_SIM_LATENCY_MS="400") as suite:
        started_s = time.monotonic()
        seen = stopped_ingestor.run(suite, "LTC/USDT", first_minute=FIRST_MINUTE, candles=CANDLES, stop_seconds=SECONDS)
    print_campaign(
        f"SIGSTOP of an ingestor for {seen.stopped_s:.0f} s",
        ["jobs held", "worked on by another one", "late frames dropped", "late page reports refused", "result"],
        [
            seen.held,
            f"after {seen.reassigned_s:.1f} s",
            seen.late_frames,
            seen.late_reports,
            f"{seen.rows:,} rows, 0 lost, 0 doubled, one status each",
        ],
        since_s=started_s,
    )
    assert seen.late_reports > seen.held, "its own, and one made up for each job"
