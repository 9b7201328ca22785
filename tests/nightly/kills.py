"""Repeated `kill -9` of every part while backfills run, and the time until its jobs run again.

One round kills each part once. While Spark comes back, which takes longest, gateway and ingestor are killed one after
the other: neither needs Spark, and their jobs wait for timeouts more than for a processor. The relay is killed when
Spark is back, then udsource. So each part's own recovery is seen, not how many starts two cores can bear at once.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tests.nightly.watching import RelayFile
from tests.rig.processes import until
from tests.rig.suite import Suite

LIMITS = {"relay": 10, "gateway": 10, "udsource": 10, "ingestor": 25, "spark": 60}
"""Seconds until a part is ready again with its jobs running again."""
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
