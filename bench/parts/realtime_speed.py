"""Trades a second that one ingestor sustains, beside a bare ccxt.pro loop on the same simulated exchange.

The exchange's clock is made faster step by step, until clearly less is delivered than offered. The most that was
delivered is what the process sustains, if its processor was busy then; otherwise something else was the limit.
Spark does not run: two processors have to serve the exchange, the process that is measured, the gateway and Kafka.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from bench.parts.cpu import cpu_seconds
from bench.parts.realtime_memory import exchanges_file, start_all, symbols
from dexorder import Client
from dexorder.setup.config import PROJECT_ROOT
from tests.rig.processes import until
from tests.rig.report import Row, table
from tests.rig.suite import Suite, running_suite

MARKETS = 20
TRADES_A_SECOND = 4
SPEEDS = (20, 60, 120, 180, 220, 270, 330)
SATURATED = 0.9
"""Share of what is offered; less means that the step is the last one."""
SETTLE_SECONDS, WINDOW_SECONDS = 4.0, 20.0
"""A process without processor time to spare delivers in bursts of seconds, so the window is long."""
PARTS = ("kafka", "sim", "relay", "gateway", "ingestor")
AIM = 0.7
_LAG_NS = 10_000_000_000


class Count(NamedTuple):
    """State of a counter: monotonic seconds, trades, processor seconds."""

    at_s: float
    trades: float
    cpu_s: float


class Step(NamedTuple):
    """Trades a second that were offered and delivered, and the cores that the process and the exchange used."""

    offered: float
    delivered: float
    cores: float
    exchange_cores: float

    @property
    def cpu_us(self) -> float:
        """Processor time of a trade in microseconds."""
        return self.cores / max(self.delivered, 1) * 1e6

    @property
    def is_saturated(self) -> bool:
        """Whether clearly less was delivered than offered."""
        return self.delivered < SATURATED * self.offered

    def __str__(self) -> str:
        cores = f"{self.cores:.2f} and {self.exchange_cores:.2f} cores"
        return f"{self.delivered:,.0f}/s, {self.cpu_us:.0f} us, {cores}"


def set_speed(suite: Suite, speed: float) -> int:
    """Change the speed of the exchange's clock; return its time in nanoseconds."""
    return int(suite.exchange("/sim/clock", {"speed": speed})["now_ns"])


def steps(suite: Suite, what: str, count: Callable[[], Count]) -> list[Step]:
    """Measure growing speeds up to the first one at which the process is saturated."""
    found: list[Step] = []
    for speed in SPEEDS:
        set_speed(suite, speed)
        time.sleep(SETTLE_SECONDS)
        found.append(_step(suite, speed, count))
        print(f"{what}: {found[-1].offered:,.0f} trades/s offered, {found[-1]}", file=sys.stderr, flush=True)
        if found[-1].is_saturated:
            break
    set_speed(suite, 1)
    return found


def _step(suite: Suite, speed: float, count: Callable[[], Count]) -> Step:
    first_ns, first, exchange_s = set_speed(suite, speed), count(), cpu_seconds(suite, "sim")
    time.sleep(WINDOW_SECONDS)
    until(lambda: count().at_s > first.at_s)
    last_ns, last, exchange_s = set_speed(suite, speed), count(), cpu_seconds(suite, "sim") - exchange_s
    seconds = last.at_s - first.at_s
    offered = (last_ns - first_ns) / 1e9 * MARKETS * TRADES_A_SECOND
    trades, cpu_s = last.trades - first.trades, last.cpu_s - first.cpu_s
    return Step(*(value / seconds for value in (offered, trades, cpu_s, exchange_s)))


class Bare:
    """The bare loop as a child process; a context manager."""

    def __init__(self, suite: Suite) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.parts.realtime_bare", suite.address("sim"), str(MARKETS)],
            cwd=PROJECT_ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._last = Count(0.0, 0.0, 0.0)
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Bare:
        until(lambda: self._last.trades > 0)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def count(self) -> Count:
        """Return the newest line."""
        return self._last

    def _read(self) -> None:
        for line in self._process.stdout or ():
            with suppress(ValueError):
                at_s, trades, cpu_s = map(float, line.split())
                self._last = Count(at_s, trades, cpu_s)


def _ours(suite: Suite) -> Callable[[], Count]:
    def count() -> Count:
        trades = suite.metric("ingestor", "dexorder_ingestor_trades_total")
        return Count(time.monotonic(), trades, cpu_seconds(suite, "ingestor"))

    return count


def _is_up_to_date(suite: Suite) -> bool:
    """Return whether all jobs have settled the trades up to a few seconds ago, by the exchange's clock."""
    with Client(suite.relay) as client:
        settled = [each.series[0].settled_ns for each in client.list_realtime().jobs if each.series]
    return len(settled) == MARKETS and min(settled) > set_speed(suite, 1) - _LAG_NS


def _measure(suite: Suite, what: str, periods: Sequence[str]) -> list[Step]:
    """Return the steps of the ingestor."""
    asyncio.run(start_all(suite.relay, symbols(MARKETS), periods))
    until(lambda: _is_up_to_date(suite), 300)
    return steps(suite, what, _ours(suite))


def run(folder: Path) -> str:
    """Return the table."""
    options = ("--exchanges", exchanges_file(folder), "--only", ",".join(PARTS))
    with running_suite(folder / "trades", *options, DEXORDER_SIM_MARKETS=str(MARKETS)) as suite:
        with Bare(suite) as loop:
            before = steps(suite, "bare loop", loop.count)
        trades = _measure(suite, "trades", ())
    # Another one: what a saturated ingestor has not delivered yet must not be counted here.
    with running_suite(folder / "candles", *options, DEXORDER_SIM_MARKETS=str(MARKETS)) as suite:
        both = _measure(suite, "with 1m candles", ("1m",))
        with Bare(suite) as loop:
            after = steps(suite, "bare loop again", loop.count)
    shown = zip_longest(trades, before, both, fillvalue="")
    rows = [
        Row(
            f"{speed * MARKETS * TRADES_A_SECOND:,} trades/s offered",
            str(ours),
            str(bare),
            f"with 1m candles {candles}",
        )
        for speed, (ours, bare, candles) in zip(SPEEDS, shown, strict=False)
    ]
    rows += [_sustained("sustained", trades, (*before, *after)), _sustained("with 1m candles", both, (*before, *after))]
    ours_us = min(step.cpu_us for step in trades)
    bare_us = min(step.cpu_us for step in (*before, *after))
    rows.append(
        Row("processor time a trade, least", f"{ours_us:.0f} us", f"{bare_us:.0f} us", f"{bare_us / ours_us:.2f}")
    )
    title = (
        f"Trades of one ingestor, {MARKETS} markets; limit: a bare ccxt.pro loop, before (shown) and after; "
        "cores of the process and of the exchange"
    )
    return table(title, rows)


def _sustained(what: str, ours: Sequence[Step], bare: Sequence[Step]) -> Row:
    best, limit = (max(found, key=lambda step: step.delivered) for found in (ours, bare))
    ratio = f"{best.delivered / limit.delivered:.2f}"
    return Row(what, str(best), str(limit), ratio, f"at least {AIM}")
