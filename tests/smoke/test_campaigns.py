"""Each campaign of tests/soak once, shortened, on the running suite.

`test_kills` is that of the kills; a driver that dies behind its commit is in test_source_crashes.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.smoke.harness import Suite
from tests.soak import kafka_outage, same_id, stopped_ingestor
from tests.soak.backfills import Backfills
from tests.soak.queued import Campaign

pytestmark = [pytest.mark.smoke, pytest.mark.timeout(600)]
FIRST_MINUTE = -500_000
"""No other test of the running suite asks for what is before 2024."""


async def test_what_was_acknowledged_is_there_after_a_kill(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path / "relay")
    await campaign.run(10)
    assert len(campaign.in_flight) == 10 and len(campaign.acknowledged) >= 10


def test_a_stopped_ingestor_changes_nothing_when_it_goes_on(suite: Suite) -> None:
    seen = stopped_ingestor.run(suite, "LTC/USDT", first_minute=FIRST_MINUTE, candles=6_000, stop_seconds=8)
    assert seen.late_reports > seen.held, "its own, and one made up for each job"


def test_one_id_submitted_by_many_is_planned_once(suite: Suite) -> None:
    seen = same_id.run(suite, "LINK/USDT", first_minute=FIRST_MINUTE, candles=12_000, submissions=2_000)
    assert seen.jobs == 1


def test_a_frozen_kafka_loses_nothing(suite: Suite) -> None:
    kafka = suite.pid("kafka")

    def thaw() -> float:
        os.kill(kafka, signal.SIGCONT)
        return time.monotonic()

    try:
        with Backfills(suite, "frozen", candles=20_000, at_once=1, symbols=("BNB/USDT",)) as backfills:
            kafka_outage.run(suite, backfills, stop=lambda: os.kill(kafka, signal.SIGSTOP), start=thaw, seconds=5)
    finally:
        thaw()
    backfills.assert_all_ended_well()
