"""Trades a second that one ingestor sustains, beside a bare ccxt.pro loop on the same simulated exchange.

The exchange's clock is made faster step by step. What is delivered while more is offered is what the process sustains.
Spark does not run: two processors have to serve the exchange, the process that is measured, the gateway and Kafka.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from bench.parts.cpu import cpu_seconds
from bench.parts.realtime_memory import exchanges_file, start_all, symbols
from dexorder import AsyncClient, Client
from dexorder.setup.config import PROJECT_ROOT
from dexorder.testing.processes import until
from dexorder.testing.report import Row, table
from dexorder.testing.suite import Suite, running_suite

MARKETS = 20
TRADES_A_SECOND = 4
SPEEDS = (5, 10, 20, 30, 40, 60)
SETTLE_SECONDS, WINDOW_SECONDS = 4.0, 8.0
PARTS = ("kafka", "sim", "relay", "gateway", "ingestor")
AIM = 0.7
_LAG_NS = 10_000_000_000


class Count(NamedTuple):
    """State of a counter: monotonic seconds, trades, processor seconds."""

    at_s: float
    trades: float
    cpu_s: float


class Step(NamedTuple):
    """What was delivered in a window, trades a second, and the processor time of a trade in microseconds."""

    offered: float
    delivered: float
    cpu_us: float

    def __str__(self) -> str:
        return f"{self.delivered:,.0f}/s, {self.cpu_us:.0f} us"


def set_speed(suite: Suite, speed: float) -> int:
    """Change the speed of the exchange's clock; return its time in nanoseconds."""
    body = json.dumps({"speed": speed}).encode()
    url = f"http://{suite.address('sim')}/sim/clock"
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=30) as answer:
        return int(json.loads(answer.read())["now_ns"])


def steps(suite: Suite, count: Callable[[], Count]) -> list[Step]:
    """Measure each speed."""
    found = []
    for speed in SPEEDS:
        set_speed(suite, speed)
        time.sleep(SETTLE_SECONDS)
        first_ns, first = set_speed(suite, speed), count()
        time.sleep(WINDOW_SECONDS)
        until(lambda at_s=first.at_s: count().at_s > at_s)  # type: ignore[misc]
        last_ns, last = set_speed(suite, speed), count()
        trades, seconds = last.trades - first.trades, last.at_s - first.at_s
        offered = (last_ns - first_ns) / 1e9 * MARKETS * TRADES_A_SECOND / seconds
        found.append(Step(offered, trades / seconds, (last.cpu_s - first.cpu_s) / max(trades, 1) * 1e6))
    set_speed(suite, 1)
    return found


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


async def _stop_all(relay: str) -> None:
    async with AsyncClient(relay) as client:
        for each in (await client.list_realtime()).subscriptions:
            await client.stop_realtime(each.subscription.subscription_id)


def _is_up_to_date(suite: Suite) -> bool:
    """Return whether all jobs have settled the trades up to a few seconds ago, by the exchange's clock."""
    with Client(suite.relay) as client:
        settled = [each.series[0].settled_ns for each in client.list_realtime().jobs if each.series]
    return len(settled) == MARKETS and min(settled) > set_speed(suite, 1) - _LAG_NS


def _measure(suite: Suite, periods: Sequence[str]) -> list[Step]:
    """Return the steps of the ingestor."""
    asyncio.run(start_all(suite.relay, symbols(MARKETS), periods))
    until(lambda: _is_up_to_date(suite), 300)
    found = steps(suite, _ours(suite))
    asyncio.run(_stop_all(suite.relay))
    return found


def run(folder: Path) -> str:
    """Return the table."""
    options = ("--exchanges", exchanges_file(folder), "--only", ",".join(PARTS))
    with running_suite(folder / "suite", *options, DEXORDER_SIM_MARKETS=str(MARKETS)) as suite:
        with Bare(suite) as loop:
            before = steps(suite, loop.count)
        trades = _measure(suite, ())
        both = _measure(suite, ("1m",))
        with Bare(suite) as loop:
            after = steps(suite, loop.count)
    rows = [
        Row(f"{step.offered:,.0f} trades/s offered", str(step), str(bare), f"with 1m candles {candles}")
        for step, bare, candles in zip(trades, before, both, strict=True)
    ]
    best = max(step.delivered for step in trades)
    limit = max(step.delivered for step in (*before, *after))
    rows.append(Row("sustained", f"{best:,.0f}/s", f"{limit:,.0f}/s", f"{best / limit:.2f}", f"at least {AIM}"))
    ours_us = min(step.cpu_us for step in trades)
    bare_us = min(step.cpu_us for step in (*before, *after))
    rows.append(
        Row("processor time a trade, least", f"{ours_us:.0f} us", f"{bare_us:.0f} us", f"{bare_us / ours_us:.2f}")
    )
    title = f"Trades of one ingestor, {MARKETS} markets; limit: a bare ccxt.pro loop, before (shown) and after"
    return table(title, rows)
