"""Shortened campaigns of this folder on the running suite.

`test_kills` has the kills; test_source_crashes has a driver that dies after its commit.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.nightly import kafka_outage, same_id, stopped_ingestor
from tests.nightly.backfills import Backfills
from tests.nightly.queued import Campaign
from tests.rig.suite import Suite

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]
FIRST_MINUTE = -500_000
"""Minutes before 2024, which no other test of the running suite requests."""


async def test_acknowledged_requests_survive_a_kill(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path / "relay")
    await campaign.run(10)
    assert len(campaign.in_flight) == 10 and len(campaign.acknowledged) >= 10


def test_reports_of_an_ingestor_that_was_suspended_change_nothing(smoke_suite: Suite) -> None:
    seen = stopped_ingestor.run(smoke_suite, "LTC/USDT", first_minute=FIRST_MINUTE, candles=6_000, stop_seconds=8)
    assert seen.late_reports > seen.held, "its own, and a forged one for each job"


def test_id_submitted_many_times_is_planned_once(smoke_suite: Suite) -> None:
    seen = same_id.run(smoke_suite, "LINK/USDT", first_minute=FIRST_MINUTE, candles=12_000, submissions=2_000)
    assert seen.jobs == 1


def test_suspended_kafka_loses_nothing(smoke_suite: Suite) -> None:
    kafka = smoke_suite.pid("kafka")

    def resume() -> float:
        os.kill(kafka, signal.SIGCONT)
        return time.monotonic()

    try:
        with Backfills(smoke_suite, "frozen", candles=20_000, at_once=1, symbols=("BNB/USDT",)) as backfills:
            kafka_outage.run(
                smoke_suite, backfills, stop=lambda: os.kill(kafka, signal.SIGSTOP), start=resume, seconds=5
            )
    finally:
        resume()
    backfills.assert_all_ended_well()
