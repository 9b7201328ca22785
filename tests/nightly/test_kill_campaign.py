"""Repeated `kill -9` of every part during backfills of 100,000 candles, and the time until its jobs run again.

One round kills each part once. While Spark comes back, which takes longest, gateway and ingestor are killed one after
the other: neither needs Spark, and their jobs wait for timeouts more than for a processor. The relay is killed when
Spark is back, then udsource. So each part's own recovery is seen, not how many starts two cores can bear at once.

Afterwards the whole table must equal the oracle, and every request must have one status, announced at least once to a
client that resumes by its cursor.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from tests.nightly.backfills import Backfills
from tests.nightly.watching import Listener, RelayFile
from tests.rig.processes import until
from tests.rig.report import median_and_worst, print_campaign
from tests.rig.suite import Suite, running_suite

LIMITS = {"relay": 10, "gateway": 10, "udsource": 10, "ingestor": 25, "spark": 60}
"""Seconds until a part is ready again with its jobs running again, where nothing else runs."""
SLOWER = float(os.environ.get("DEXORDER_SOAK_SLOWER", "1"))
"""By how much the limits are longer, where other work runs."""
BESIDE_SPARK = ["gateway", "ingestor"]
PATIENCE_SECONDS = 180


@dataclass
class Kills:
    """Kills of each part: seconds until it is ready, and until its jobs run again."""

    suite: Suite
    ready: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    running: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def round(self, parts: Collection[str] = tuple(LIMITS)) -> None:
        """Kill each of the parts once, in a random order as far as they do not need each other."""
        beside_spark = [part for part in BESIDE_SPARK if part in parts]
        with ThreadPoolExecutor(1) as pool:
            spark = pool.submit(self.kill, "spark", self._rows_land) if "spark" in parts else None
            for part in random.sample(beside_spark, len(beside_spark)):
                self.kill(part, self._held_jobs_run_on)
            if spark:
                spark.result()
        if "relay" in parts:
            self.kill("relay", self._held_jobs_run_on)
        if "udsource" in parts:
            self.kill("udsource", self._rows_are_read_and_land)

    def kill(self, part: str, recovery: Callable[[str, int], Callable[[], bool]]) -> None:
        """Kill a part in the middle of a backfill; return when its jobs run again.

        Args:
            recovery: Called at the kill with the part and its old process; returns a condition for running jobs.
        """
        suite = self.suite
        time.sleep(random.uniform(0.0, 1.5))
        until(self._a_backfill_is_in_flight, PATIENCE_SECONDS, suite.logs)
        old_pid = suite.pid(part)
        recovered = recovery(part, old_pid)
        suite.kill(part)
        killed_s = time.monotonic()
        until(lambda: suite.is_new(part, old_pid), PATIENCE_SECONDS, suite.logs)
        self.ready[part].append(time.monotonic() - killed_s)
        until(recovered, PATIENCE_SECONDS, suite.logs)
        self.running[part].append(time.monotonic() - killed_s)

    def _a_backfill_is_in_flight(self) -> bool:
        return any(held.in_the_middle for held in RelayFile(self.suite).held().values())

    def _held_jobs_run_on(self, part: str, old_pid: int) -> Callable[[], bool]:
        """Return whether every job that was held at the kill settles further pages, or is over."""
        file = RelayFile(self.suite)
        at_kill = file.held()
        baseline: dict[int, float] = {}

        def recovered() -> bool:
            if not baseline:  # now that it is ready: what was settled up to here is no sign
                now = file.held()
                baseline.update({job: now.get(job, held).settled_ns for job, held in at_kill.items()})
            return all(file.ran_on(held, baseline[job]) for job, held in at_kill.items())

        return recovered

    def _rows_land(self, part: str, old_pid: int) -> Callable[[], bool]:
        """Return whether a batch of the new process is committed and reported."""
        file, baseline = RelayFile(self.suite), [-1.0]

        def recovered() -> bool:
            if baseline[0] < 0:
                baseline[0] = file.covered_ns()
            return file.covered_ns() > baseline[0]

        return recovered

    def _rows_are_read_and_land(self, part: str, old_pid: int) -> Callable[[], bool]:
        """Return whether the new process has delivered records, and a batch was committed after that."""
        land = self._rows_land(part, old_pid)

        def recovered() -> bool:
            return self.suite.metric("udsource", 'dexorder_udsource_records_read_total{mode="replay"}') > 0 and land()

        return recovered


KILLS = int(os.environ.get("DEXORDER_SOAK_KILLS", "50"))
PARTS = os.environ.get("DEXORDER_SOAK_KILLED", " ".join(LIMITS)).split()
"""One alone shows what its start takes where it has the machine for itself."""
CANDLES = 100_000
FAULTS = [
    {"kind": kind, "every": every, "path": "/api/v3/klines"}
    for kind, every in (("empty", 37), ("html", 41), ("http_502", 43), ("hole", 47), ("drop_last", 53))
]
pytestmark = [pytest.mark.soak, pytest.mark.timeout(KILLS * 180 + 1_200)]


@pytest.fixture
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suite]:
    with running_suite(
        tmp_path_factory.mktemp("kills") / "state",
        DEXORDER_SIM_FAULTS=json.dumps(FAULTS),
        DEXORDER_SIM_LATENCY_MS="500",
    ) as running:
        yield running


def test_kills_spread_over_backfills_lose_and_double_nothing(suite: Suite) -> None:
    started_s = time.monotonic()
    kills = Kills(suite)
    with Listener(suite, "kills") as listener:
        with Backfills(suite, "kills", candles=CANDLES) as backfills:
            for _ in range(KILLS):
                kills.round(PARTS)
                backfills.check()
        rows = backfills.assert_all_ended_well(listener.statuses)
    print_campaign(
        f"Kills over backfills: {len(backfills.sent)} backfills, {rows:,} rows, 0 lost, 0 doubled, one status each",
        ["part", "kills", "ready again", "its jobs run again", "limit"],
        *(
            [
                part,
                len(kills.ready[part]),
                median_and_worst(kills.ready[part]),
                median_and_worst(kills.running[part]),
                f"{limit * SLOWER:g} s",
            ]
            for part, limit in LIMITS.items()
            if part in PARTS
        ),
        since_s=started_s,
    )
    late = {part: max(seconds) for part, seconds in kills.running.items() if max(seconds) > LIMITS[part] * SLOWER}
    assert not late, late
