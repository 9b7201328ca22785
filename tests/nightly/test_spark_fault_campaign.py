"""Repeated deaths of Spark between the Iceberg commit and the report, by the hook in dexorder_spark/records/fault.py.

The suite has ``DEXORDER_SPARK_FAULT=die_before_report:1:FUSE`` (`fault_environment`); a driver dies after the first
commit of rows while the fuse exists. The fuse is created either before the next driver starts, so that the replay of a
batch dies as well, or once the driver has made progress.
"""

from __future__ import annotations

import os
import random
import re
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.nightly.backfills import Backfills
from tests.nightly.watching import Listener, RelayFile
from tests.rig.processes import until
from tests.rig.report import print_campaign
from tests.rig.suite import Suite, running_suite

PATIENCE_SECONDS = 300
DIED = "DEXORDER_SPARK_FAULT: killing this driver now"


@dataclass(frozen=True)
class Seen:
    """Deaths after a first commit, and after the repeated commit of a batch that had died before."""

    fresh: int
    replayed: int


def fault_environment(directory: Path) -> dict[str, str]:
    """Return the environment for `running_suite`."""
    return {"DEXORDER_SPARK_FAULT": f"die_before_report:1:{_fuse(directory)}"}


def run(suite: Suite, backfills: Backfills, deaths: int, *, expiry_every: int = 0) -> Seen:
    """Let the driver die ``deaths`` times; the last driver survives.

    Args:
        expiry_every: Before every n-th death wait until the driver has expired snapshots; 0 for never.
    """
    fuse, log, file = _fuse(suite.directory), suite.directory / "logs" / "spark.log", RelayFile(suite)
    died_before = log.read_text(errors="replace").count(DIED)
    replayed = 0
    for number in range(deaths):
        at_once = number % 3 == 1
        if not at_once:  # until the batch that died is committed, and some more
            covered, further = file.covered_ns(), random.randrange(1, 40) * 60_000 * 10**9
            until(lambda: file.covered_ns() > covered + further, PATIENCE_SECONDS, suite.logs)  # noqa: B023
        if expiry_every and number % expiry_every == 0:
            before = expired(suite)
            until(lambda: expired(suite) > before, PATIENCE_SECONDS, suite.logs)  # noqa: B023
        old_pid = suite.pid("spark")
        fuse.touch()
        replayed += at_once
        until(lambda: not fuse.exists(), PATIENCE_SECONDS, suite.logs)
        until(lambda: suite.pid("spark") != old_pid, PATIENCE_SECONDS, suite.logs)  # noqa: B023
        backfills.check()
    died = log.read_text(errors="replace").count(DIED) - died_before
    assert died == deaths, f"{died} deaths by the hook instead of {deaths}"
    return Seen(deaths - replayed, replayed)


def expired(suite: Suite) -> int:
    """Return the number of snapshots that all drivers have expired so far."""
    log = (suite.directory / "logs" / "spark.log").read_text(errors="replace")
    return sum(map(int, re.findall(r"expired_snapshots=(\d+)", log)))


def _fuse(directory: Path) -> Path:
    return directory.with_name("fuse")


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
    with running_suite(tmp_path / "state", **environment, **fault_environment(tmp_path / "state")) as suite:
        started_s = time.monotonic()
        with Listener(suite, "fault") as listener:
            with Backfills(suite, "fault", candles=CANDLES) as backfills:
                seen = run(suite, backfills, DEATHS, expiry_every=25)
            rows = backfills.assert_all_ended_well(listener.statuses)
        snapshots = expired(suite)
    print_campaign(
        "Spark killed between the Iceberg commit and the report",
        ["deaths after a first commit", "after a repeated one", "backfills", "rows", "lost", "duplicated", "expired"],
        [seen.fresh, seen.replayed, len(backfills.sent), f"{rows:,}", 0, 0, f"{snapshots} snapshots"],
        since_s=started_s,
    )
