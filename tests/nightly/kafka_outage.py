"""Outage of Kafka during backfills: nothing is lost, health reports it, memory does not grow."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.nightly.backfills import Backfills
from tests.nightly.watching import HealthLog, Memory, RelayFile
from tests.rig.processes import until
from tests.rig.suite import Suite

CHECKED = ("gateway", "udsource")
MEASURED = ("relay", "ingestor", "gateway", "udsource", "spark")
NOT_SERVING_SECONDS, SERVING_SECONDS, GROWTH_MIB = 5, 15, 200
PATIENCE_SECONDS = 300


@dataclass(frozen=True)
class OutageFigures:
    """Figures of an outage: seconds, and MiB by which the parts' peaks exceed their memory before."""

    not_serving: dict[str, float]
    serving: dict[str, float]
    again: float
    growth: dict[str, float]

    def beyond_limits(self) -> list[str]:
        """Return every figure beyond its limit."""
        return [
            f"{what} of {part}: {value:.1f}"
            for what, values, limit in (
                ("seconds to NOT_SERVING", self.not_serving, NOT_SERVING_SECONDS),
                ("seconds to SERVING", self.serving, SERVING_SECONDS),
                ("MiB of growth", self.growth, GROWTH_MIB),
            )
            for part, value in values.items()
            if value > limit
        ]


def run(
    suite: Suite, backfills: Backfills, *, stop: Callable[[], None], start: Callable[[], float], seconds: float
) -> OutageFigures:
    """Run one outage of at least ``seconds``, and until the parts have noticed it.

    Args:
        backfills: In progress.
        start: Returns the monotonic second at which Kafka was available again.
    """
    file = RelayFile(suite)

    def in_flight() -> bool:
        backfills.check()
        return any(held.in_the_middle for held in file.held().values())

    with HealthLog(suite, CHECKED) as health, Memory(suite, MEASURED) as memory:
        until(lambda: in_flight() and all(map(health.serving, CHECKED)), PATIENCE_SECONDS, suite.logs)
        held = file.held().values()
        stop()
        stopped_s = time.monotonic()
        until(lambda: not any(map(health.serving, CHECKED)), PATIENCE_SECONDS, suite.logs)
        time.sleep(max(0.0, seconds - (time.monotonic() - stopped_s)))
        settled = {each.job: each for each in file.held().values()}
        back_s = start()
        until(lambda: all(map(health.serving, CHECKED)), PATIENCE_SECONDS, suite.logs)
        # the jobs that were leased continue where they were, at any worker, and rows are written again
        covered = file.covered_ns()
        until(
            lambda: (
                all(file.ran_on(job, settled.get(job.job, job).settled_ns) for job in held)
                and file.covered_ns() > covered
            ),
            PATIENCE_SECONDS,
            suite.logs,
        )
        again_s = time.monotonic() - back_s
    return OutageFigures(
        {part: health.first(part, False, stopped_s) for part in CHECKED},
        {part: health.first(part, True, back_s) for part in CHECKED},
        again_s,
        memory.growth(),
    )
