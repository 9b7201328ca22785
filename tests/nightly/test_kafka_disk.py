"""Kafka's disk is full during backfills: the broker ends, nothing is lost, and the suite goes on with new space."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dexorder_gateway.kafkapixy.service import NAME as KAFKA_PIXY
from tests.nightly.backfills import Backfills
from tests.nightly.watching import HealthLog, Listener
from tests.rig.processes import until
from tests.rig.report import print_campaign
from tests.rig.suite import running_suite

DISK_BYTES = 600 << 20
FULL_SECONDS, PATIENCE_SECONDS = 30.0, 300.0
CANDLES = 100_000
CHECKED = {"gateway": KAFKA_PIXY, "udsource": ""}
pytestmark = [pytest.mark.nightly, pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(1_500)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a suite's folder whose Kafka has a small disk of its own."""
    folder = tmp_path / "suite" / "kafka"
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a small disk")
    yield folder.parent
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(path: Path) -> None:
    """Write until nothing fits."""
    with path.open("ab", buffering=0) as file:
        for size in (1 << 20, 4_096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


def test_a_full_disk_of_kafka_loses_nothing_and_heals(small_disk: Path) -> None:
    started_s, filler = time.monotonic(), small_disk / "kafka" / "filler"
    with (
        running_suite(small_disk, DEXORDER_SIM_LATENCY_MS="200") as suite,
        Listener(suite, "disk") as listener,
        HealthLog(suite, CHECKED) as health,
    ):
        with Backfills(suite, "disk", candles=CANDLES) as backfills:
            until(lambda: len(listener.statuses) >= 1, PATIENCE_SECONDS, suite.logs)
            until(lambda: all(map(health.serving, CHECKED)), PATIENCE_SECONDS, suite.logs)
            kafka = suite.pid("kafka")
            full_s = time.monotonic()
            while time.monotonic() < full_s + FULL_SECONDS or any(map(health.serving, CHECKED)):
                fill(filler)  # again, as a broker that starts may delete what it had
                assert time.monotonic() < full_s + PATIENCE_SECONDS, suite.logs()
                time.sleep(0.5)
            backfills.check()
            filler.unlink()
            space_s = time.monotonic()
            until(lambda: all(map(health.serving, CHECKED)), PATIENCE_SECONDS, suite.logs)
            ended = len(listener.statuses)
            until(lambda: len(listener.statuses) > ended + 1, PATIENCE_SECONDS, suite.logs)
        rows = backfills.assert_all_ended_well(listener.statuses)
        assert suite.pid("kafka") != kafka, "the broker has not noticed"
    print_campaign(
        f"Kafka's disk full: {len(backfills.sent)} backfills, {rows:,} rows equal the oracle, 0 lost, 0 doubled",
        ["part", "NOT_SERVING after (s)", "SERVING after there was space (s)"],
        *(
            [part, f"{health.first(part, False, full_s):.1f}", f"{health.first(part, True, space_s):.1f}"]
            for part in CHECKED
        ),
        since_s=started_s,
    )
