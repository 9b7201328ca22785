"""``kill -9`` of a UDF again and again while it is fed numbered points."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from dexorder_udf.host import UdfHost
from dexorder_udf.points import Batch, Point
from dexorder_udf.spec import UdfSpec
from tests.paths import ROOT

AGENT = str(ROOT / "tests" / "peers" / "udf_agent.py")
GROUPS = ("a", "b", "c")
SIZE = 5


@dataclass
class KillResult:
    """What came out, beside what had to."""

    kills: int
    points: int
    lost: int
    doubled: int
    wrong: int
    snapshots: int


class Killer(threading.Thread):
    """Kills the process whose id it is told, some time after it has started to work."""

    def __init__(self, seed: int, kills: int) -> None:
        super().__init__(daemon=True)
        self.kills = 0
        self._source = random.Random(seed)
        self._wanted = kills
        self._next = threading.Semaphore(0)
        self._pid = 0
        self._stopped = threading.Event()

    def told(self, pid: int | None) -> None:
        """A process with this id works now."""
        assert pid is not None
        self._pid = pid
        self._next.release()

    def run(self) -> None:
        while self.kills < self._wanted:
            self._next.acquire()
            if self._stopped.wait(self._source.uniform(0.0, 0.05)):
                return
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
                self.kills += 1

    def stop(self) -> None:
        self._stopped.set()
        self._next.release()
        self.join()


def numbered(first: int, count: int) -> list[Point]:
    """Return points whose value is their number, in three groups by turns."""
    return [
        Point(n, {"ticker": GROUPS[n % 3]}, {"value": float(n)}, "numbers", ("ticker",))
        for n in range(first, first + count)
    ]


def expected_mean(number: int) -> float:
    """Return the mean of the last SIZE values of the number's group: every third number before it."""
    values = [float(each) for each in range(number, -1, -3)][:SIZE]
    return sum(reversed(values)) / len(values)


def run(kills: int, seed: int) -> KillResult:
    """Feed points until the UDF was killed so often and has worked on after the last time."""
    source = random.Random(seed)
    spec = UdfSpec(
        "average",
        prog=sys.executable,
        args=(AGENT, "average"),
        env={"PYTHONPATH": str(ROOT)},
        options={"size": SIZE},
        max_restarts=1000,
        backoff_seconds=0.001,
        max_backoff_seconds=0.001,
        replay_limit_bytes=200_000,
    )
    killer = Killer(seed, kills)
    killer.start()
    host = UdfHost(spec, on_log=lambda line: None, on_start=killer.told)
    outputs: list[Point | Batch] = []
    fed = snapshots = 0
    host.start()
    try:
        while killer.is_alive() or host.restarts < killer.kills:
            count = source.choice([1, 10, 300])
            outputs += host.process(numbered(fed, count))
            fed += count
            if source.random() < 0.3:
                outputs += host.checkpoint()[0]
                snapshots += 1
        outputs += host.checkpoint()[0]
        outputs += host.close()
    finally:
        killer.stop()
        host.close()
    return _compared(outputs, fed, killer.kills, snapshots)


def _compared(outputs: Sequence[Point | Batch], fed: int, kills: int, snapshots: int) -> KillResult:
    found = [each for each in outputs if isinstance(each, Point)]
    times = [each.time_ns for each in found]
    wrong = sum(each.fields != {"mean": expected_mean(each.time_ns)} for each in found)
    wrong += times != sorted(times)
    distinct = set(times)
    return KillResult(kills, fed, len(set(range(fed)) - distinct), len(times) - len(distinct), wrong, snapshots)
