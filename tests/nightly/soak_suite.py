"""A suite with all features at once, for a soak: realtime of many markets, backfills, a trigger, a UDF, records through
the gateway, and user events. Parts are killed and frozen, and sockets of the exchange fail, in a random order.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench.memory import family, memory
from bench.parts.realtime_memory import exchanges_file
from dexorder.supervisor.plan import Ports
from tests.nightly.runner import Loop
from tests.paths import ROOT
from tests.rig.processes import free_block
from tests.rig.suite import Suite, running_suite_at
from tests.smoke.conftest import FAULTS

UDF, MARKET = "numbers", "X0001/USDT"
FAULTS_OF_SOCKETS = ("ws_close", "ws_garbage", "ws_silence", "ws_abort", "ws_half")
PARTS = {"relay": 3, "gateway": 3, "udsource": 3, "ingestor": 3, "spark": 1}
"""Parts that are struck, with how often; Spark takes longest to come back."""
_PIXY = 19
"""Place of the HTTP API in a suite's block of ports, behind its own."""
STARTING = 3
"""Samples of a process's first minute."""
PAUSE_SECONDS, FROZEN_SECONDS, BACK_SECONDS = 5.0, 8.0, 240.0


@dataclass
class SoakSuite(Suite):
    """The suite as `tests.nightly.mesh_load` reaches it."""

    def reached(self, port: str) -> str:
        """Return host:port of one of the ports; ``events`` is the gateway's service of user events."""
        if port == "pixy":
            return pixy_address(self.base_port)
        return f"127.0.0.1:{getattr(Ports.from_base(self.base_port), 'gateway' if port == 'events' else port)}"


def pixy_address(base_port: int) -> str:
    """Return host:port of Kafka-Pixy's HTTP API."""
    return f"127.0.0.1:{base_port + _PIXY}"


def for_records(base_port: int) -> dict[str, str]:
    """Return the variables for `Records`: the HTTP API, and a new group that begins at the first record."""
    return {
        "DEXORDER_GATEWAY_HTTP_LISTEN": pixy_address(base_port),
        "DEXORDER_GATEWAY_NEW_GROUP_START": "earliest",
    }


@contextmanager
def soak_suite(folder: Path, markets: int, busy_seconds: int) -> Iterator[SoakSuite]:
    """Run a suite whose exchange has so many further markets, and a UDF on the trades of one."""
    folder.mkdir(parents=True, exist_ok=True)
    udf = {
        "prog": sys.executable,
        "args": ["-m", "tests.fakes.udf_agent", "sum"],
        "env": {"PYTHONPATH": str(ROOT)},
        "input": {"table": "ticks", "tickers": [f"{MARKET}.SIM"], "since": "earliest"},
    }
    (folder / "udfs.yaml").write_text(json.dumps({"udfs": {UDF: udf}}))
    base_port = free_block(_PIXY + 1)
    environment = {
        "DEXORDER_SIM_MARKETS": str(markets),
        "DEXORDER_SIM_MARKETS_BUSY_SECONDS": str(busy_seconds),
        "DEXORDER_SIM_FAULTS": json.dumps(FAULTS),
        "DEXORDER_SIM_LATENCY_MS": "400",
        **for_records(base_port),
        "DEXORDER_SPARK_UDFS": str(folder / "udfs.yaml"),
    }
    options = ("--exchanges", exchanges_file(folder))
    with running_suite_at(base_port, folder / "suite", *options, **environment) as each:
        yield SoakSuite(each.directory, each.base_port, each.process, each.environment)


@dataclass
class Strikes:
    """What has happened to the suite, by kind and part, and the seconds until each part was ready again."""

    suite: SoakSuite
    chance: random.Random
    done: Counter[str] = field(default_factory=Counter)
    back_s: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def strike(self) -> str:
        """Strike once, and wait until all parts are ready; return the part, or an empty text for sockets."""
        parts = [part for part, times in PARTS.items() for _ in range(times)]
        kind = self.chance.choice(("kill", "kill", "freeze", "sockets"))
        if kind == "sockets":
            fault = self.chance.choice(FAULTS_OF_SOCKETS)
            self.suite.exchange("/sim/sockets", {"kind": fault})
            self.done[fault] += 1
            return ""
        part, began_s = self.chance.choice(parts), time.monotonic()
        self.done[f"{kind} {part}"] += 1
        if kind == "kill":
            self.suite.kill_and_wait(part, BACK_SECONDS)
            self.back_s[part].append(time.monotonic() - began_s)
        else:
            with self.suite.frozen(part):
                time.sleep(FROZEN_SECONDS)
        return part if kind == "kill" else ""


class Resources(Loop):
    """Memory in MiB and open descriptors of each process that is not struck at the time, by part and process id."""

    PAUSE_S = 20.0

    def __init__(self, suite: SoakSuite) -> None:
        super().__init__()
        self.mib: defaultdict[str, list[float]] = defaultdict(list)
        self.descriptors: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        self._suite = suite

    def step(self) -> None:
        with suppress(OSError, StopIteration):
            for name, mib in memory(self._suite).items():
                self.mib[name].append(mib)
            for part in PARTS:
                pid = self._suite.pid(part)
                count = sum(len(list(Path(f"/proc/{each}/fd").iterdir())) for each, _ in family(pid))
                self.descriptors[part, pid].append(count)
        self.pause()

    def growth_of_descriptors(self) -> dict[str, int]:
        """Return by part the largest growth within a process, see `growth`."""
        found: dict[str, int] = defaultdict(int)
        for (part, _), counts in self.descriptors.items():
            found[part] = max(found[part], growth(counts))
        return dict(found)


def growth(counts: Sequence[int]) -> int:
    """Return the growth of a process's descriptors, from the median of the first third of its samples to the last.

    The samples of its first minute do not count: Spark's JVM and its Python processes start then. A single sample may
    be twice as large, as a process that the JVM forks has all of its descriptors until it runs its command.
    """
    later = counts[STARTING:]
    third = len(later) // 3
    return round(median(later[-third:]) - median(later[:third])) if third > 1 else 0
