"""Ten thousand submissions of one request id from eight processes, across a `kill -9` of the relay."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.nightly import same_id
from tests.nightly.backfills import FIRST_MINUTE
from tests.rig.report import print_campaign
from tests.rig.suite import running_suite

SUBMISSIONS = int(os.environ.get("DEXORDER_SOAK_SUBMISSIONS", "10000"))
pytestmark = [pytest.mark.soak, pytest.mark.timeout(1_200)]


def test_one_id_is_planned_once(tmp_path: Path) -> None:
    with running_suite(tmp_path / "state", DEXORDER_SIM_LATENCY_MS="100") as suite:
        started_s = time.monotonic()
        seen = same_id.run(suite, "BTC/USDT", first_minute=FIRST_MINUTE, candles=100_000, submissions=SUBMISSIONS)
    print_campaign(
        f"{SUBMISSIONS:,} submissions of one id from {same_id.CLIENTS} processes, the relay killed meanwhile",
        ["QUEUED", "DUPLICATE", "calls without an answer", "jobs", "pages", "calls to the exchange"],
        [seen.queued, f"{seen.duplicate:,}", seen.lost, seen.jobs, seen.pages, seen.calls],
        since_s=started_s,
    )
