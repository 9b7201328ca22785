"""Outages of Kafka for a minute during backfills: first frozen, then killed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.nightly import kafka_outage
from tests.nightly.backfills import Backfills
from tests.nightly.controlled_kafka import ControlledKafka
from tests.nightly.watching import Listener, Memory
from tests.rig.processes import until
from tests.rig.report import print_campaign
from tests.rig.suite import running_suite

SECONDS = float(os.environ.get("DEXORDER_SOAK_KAFKA_SECONDS", "60"))
CANDLES = 100_000
WARM_UP_BACKFILLS, STEADY_SECONDS = 4, 15.0
pytestmark = [pytest.mark.soak, pytest.mark.timeout(2 * SECONDS + 1_500)]


def test_an_outage_of_kafka_loses_nothing(kafka_jars: Path, tmp_path: Path) -> None:
    kafka = ControlledKafka(tmp_path / "kafka")
    options = ("--kafka", kafka.broker.bootstrap)
    with running_suite(tmp_path / "state", *options, DEXORDER_SIM_LATENCY_MS="200") as suite:
        started_s = time.monotonic()
        with Listener(suite, "kafka") as listener:
            with Backfills(suite, "kafka", candles=CANDLES) as backfills:
                # measure only when every part has allocated the memory of its work; Spark starts workers later
                with Memory(suite, ("spark",)) as memory:
                    until(
                        lambda: len(listener.statuses) >= WARM_UP_BACKFILLS and memory.steady("spark", STEADY_SECONDS),
                        600,
                        suite.logs,
                    )
                seen = {
                    mode: kafka_outage.run(suite, backfills, stop=stop, start=start, seconds=SECONDS)
                    for mode, (stop, start) in kafka.modes.items()
                }
            rows = backfills.assert_all_ended_well(listener.statuses)
        print_campaign(
            f"Kafka stopped for {SECONDS:.0f} s: {len(backfills.sent)} backfills, {rows:,} rows, 0 lost, 0 doubled",
            ["how", "NOT_SERVING after (s)", "SERVING after Kafka is back (s)", "rows land again (s)", "growth (MiB)"],
            *(
                [mode, named(each.not_serving), named(each.serving), f"{each.again:.1f}", named(each.growth)]
                for mode, each in seen.items()
            ),
            since_s=started_s,
        )
    kafka.broker.stop()
    assert not {mode: each.beyond_limits() for mode, each in seen.items() if each.beyond_limits()}


def named(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.1f}" for name, value in values.items())
