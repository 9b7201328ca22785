"""Kafka stopped for a minute in the middle of backfills: first frozen, then killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fixtures_kafka import RunningKafka
from tests.smoke.harness import free_block, running_suite, wait_for
from tests.soak import kafka_outage
from tests.soak.backfills import Backfills
from tests.soak.report import say
from tests.soak.watching import Listener, Memory

SECONDS = float(os.environ.get("DEXORDER_SOAK_KAFKA_SECONDS", "60"))
CANDLES = 100_000
WARM_UP_BACKFILLS, STEADY_SECONDS = 4, 15.0
pytestmark = [pytest.mark.soak, pytest.mark.timeout(2 * SECONDS + 1_500)]


class ControlledKafka:
    """A broker that no supervisor starts again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        port = free_block(2)  # ports that nobody is given while Kafka is down
        self.broker = RunningKafka(folder, (port, port + 1))

    def kill(self) -> None:
        self.broker.stop(signal.SIGKILL)

    def start(self) -> float:
        self.broker = RunningKafka(self._folder, (self.broker.port, self.broker.port + 1))
        return time.monotonic()

    def freeze(self) -> None:
        self.broker.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> float:
        self.broker.process.send_signal(signal.SIGCONT)
        return time.monotonic()


def test_an_outage_of_kafka_loses_nothing(kafka_jars: Path, tmp_path: Path) -> None:
    kafka = ControlledKafka(tmp_path / "kafka")
    modes: dict[str, tuple[Callable[[], None], Callable[[], float]]] = {
        "SIGSTOP": (kafka.freeze, kafka.thaw), "SIGKILL": (kafka.kill, kafka.start)
    }  # fmt: skip
    options = ("--kafka", kafka.broker.bootstrap)
    with running_suite(tmp_path / "state", *options, DEXORDER_SIM_LATENCY_MS="200") as suite:
        started_s = time.monotonic()
        with Listener(suite, "kafka") as listener:
            with Backfills(suite, "kafka", candles=CANDLES) as backfills:
                # every part has the memory that its work takes before it is measured; Spark starts workers as it goes
                with Memory(suite, ("spark",)) as memory:
                    wait_for(
                        lambda: len(listener.statuses) >= WARM_UP_BACKFILLS and memory.steady("spark", STEADY_SECONDS),
                        600, suite.logs,
                    )  # fmt: skip
                seen = {
                    mode: kafka_outage.run(suite, backfills, stop=stop, start=start, seconds=SECONDS)
                    for mode, (stop, start) in modes.items()
                }
            rows = backfills.assert_all_ended_well(listener.statuses)
        say(
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
