"""Outage of Kafka during backfills: nothing is lost, health reports it, memory does not grow."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from dexorder_gateway.kafkapixy.service import NAME as KAFKA_PIXY
from tests.nightly.backfills import Backfills
from tests.nightly.controlled_kafka import ControlledKafka
from tests.nightly.watching import HealthLog, Listener, Memory, RelayFile
from tests.rig.processes import until
from tests.rig.report import print_campaign
from tests.rig.suite import Suite, running_suite

CHECKED = {"gateway": KAFKA_PIXY, "udsource": ""}
MEASURED = ("relay", "ingestor", "gateway", "udsource", "spark")
NOT_SERVING_SECONDS, SERVING_SECONDS, GROWTH_MIB = 5, 15, 200
PATIENCE_SECONDS = 300
NOTHING: Mapping[str, float] = {}


@dataclass(frozen=True)
class OutageFigures:
    """Figures of an outage: seconds, MiB by which the parts' peaks exceed their memory before, and these peaks.

    The batch after an outage is a large one, for which Spark may start a worker of 300 MiB that it had ended. So memory
    is judged from the second round on, by what exceeds the peaks of the first one: a leak grows again.
    """

    not_serving: dict[str, float]
    serving: dict[str, float]
    again: float
    growth: dict[str, float]
    peak: dict[str, float]

    def beyond_limits(self, *, memory: bool) -> list[str]:
        """Return every figure beyond its limit; that of the memory only on demand."""
        return [
            f"{what} of {part}: {value:.1f}"
            for what, values, limit in (
                ("seconds to NOT_SERVING", self.not_serving, NOT_SERVING_SECONDS),
                ("seconds to SERVING", self.serving, SERVING_SECONDS),
                ("MiB of growth", self.growth if memory else {}, GROWTH_MIB),
            )
            for part, value in values.items()
            if value > limit
        ]


def run_outage(
    suite: Suite,
    backfills: Backfills,
    *,
    stop: Callable[[], None],
    start: Callable[[], float],
    seconds: float,
    floor: Mapping[str, float] = NOTHING,
) -> OutageFigures:
    """Run one outage of at least ``seconds``, and until the parts have noticed it.

    Args:
        backfills: In progress.
        start: Returns the monotonic second at which Kafka was available again.
        floor: Memory in MiB that parts had earlier.
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
        memory.growth(floor),
        memory.peak,
    )


SECONDS = float(os.environ.get("DEXORDER_SOAK_KAFKA_SECONDS", "60"))
ROUNDS = int(os.environ.get("DEXORDER_SOAK_KAFKA_ROUNDS", "2"))
"""Outages of each kind."""
WAYS = os.environ.get("DEXORDER_SOAK_KAFKA_WAYS", "SIGSTOP SIGKILL").split()
"""Kinds of outages; one alone makes a run of ten minutes' absence short enough."""
CANDLES = 100_000
WARM_UP_BACKFILLS, STEADY_SECONDS = 4, 15.0


@pytest.mark.soak
@pytest.mark.timeout(2 * ROUNDS * SECONDS + 1_500)
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
                seen: dict[str, OutageFigures] = {}
                floor: dict[str, float] = {}
                for number in range(1, ROUNDS + 1):
                    for mode in WAYS:
                        stop, start = kafka.modes[mode]
                        each = run_outage(suite, backfills, stop=stop, start=start, seconds=SECONDS, floor=floor)
                        seen[f"{mode} {number}"] = each
                        print(f"{mode} {number}: {each}", flush=True)
                        floor = {part: max(peak, floor.get(part, 0.0)) for part, peak in each.peak.items()}
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
    beyond = {mode: each.beyond_limits(memory=not mode.endswith(" 1")) for mode, each in seen.items()}
    assert not any(beyond.values()), beyond


def named(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.1f}" for name, value in values.items())


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_suspended_kafka_loses_nothing(smoke_suite: Suite) -> None:
    kafka = smoke_suite.pid("kafka")

    def resume() -> float:
        os.kill(kafka, signal.SIGCONT)
        return time.monotonic()

    try:
        with Backfills(smoke_suite, "frozen", candles=20_000, at_once=1, symbols=("BNB/USDT",)) as backfills:
            run_outage(smoke_suite, backfills, stop=lambda: os.kill(kafka, signal.SIGSTOP), start=resume, seconds=5)
    finally:
        resume()
    backfills.assert_all_ended_well()
