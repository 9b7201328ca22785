"""Memory of each part while one ingestor follows many markets."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow.compute as pc

from bench.memory import memory, slopes
from bench.parts.cpu import all_cpu_seconds
from bench.parts.sim_markets import further_symbols, write_exchanges
from dexorder import AsyncClient, Client
from dexorder.errors import RelayUnreachable
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.model.times import SECOND_NS
from tests.rig import report
from tests.rig.suite import Suite, running_suite

BUSY_SECONDS = 6
"""Of each minute, with four trades each: 24 trades a minute in each market."""


def symbols(count: int) -> list[str]:
    """Return the tickers of the simulated exchange's further markets."""
    return [f"{symbol}.SIM" for symbol in further_symbols(count)]


def exchanges_file(folder: Path) -> str:
    """Write an exchanges file with a slot for each market; return its path."""
    return write_exchanges(folder, {"realtime": 1_000}, types=["spot"])


async def start_all(relay: str, tickers: Sequence[str], periods: Sequence[str]) -> None:
    """Start a subscription for each market."""
    async with AsyncClient(relay) as client:
        for first in range(0, len(tickers), 20):
            await asyncio.gather(*(client.start_realtime(each, periods) for each in tickers[first : first + 20]))


def lags_s(suite: Suite) -> list[float]:
    """Return for each market how long ago its trades were settled, ascending."""
    with Client(suite.relay) as client:
        jobs = client.list_realtime().jobs
    now_ns = time.time_ns()
    return sorted((now_ns - each.settled_ns) / SECOND_NS for job in jobs for each in job.series[:1])


def missing_and_doubled(suite: Suite) -> tuple[int, int, int]:
    """Return rows of ``trading.ticks``, ids that are missing within a market's, and ids that are there twice."""
    table = CatalogSettings.local(suite.directory).load().load_table("trading.ticks")
    rows = table.scan(selected_fields=("ticker", "trade_id")).to_arrow()
    rows = rows.set_column(1, "number", pc.cast(rows["trade_id"], "int64"))
    missing = doubled = 0
    found = rows.group_by("ticker").aggregate(
        [("number", "min"), ("number", "max"), ("number", "count"), ("number", "count_distinct")]
    )
    for row in found.to_pylist():
        missing += row["number_max"] - row["number_min"] + 1 - row["number_count_distinct"]
        doubled += row["number_count"] - row["number_count_distinct"]
    return len(rows), missing, doubled


class _Watcher(threading.Thread):
    """Follows all markets live, so that the live path has a client."""

    def __init__(self, relay: str, tickers: Sequence[str]) -> None:
        super().__init__(daemon=True)
        self.trades = self.missed = 0
        self._relay = relay
        self._tickers = tickers

    def run(self) -> None:
        with suppress(RelayUnreachable), Client(self._relay) as client:  # the suite ends first
            for update in client.live(self._tickers, ["1m"], subscribe=False):
                self.trades += len(update.trades)
                self.missed += sum(each.count for each in update.missed)


def run(folder: Path, *, markets: int, minutes: int) -> str:
    """Run a suite and sample it each minute; return the tables."""
    tickers = symbols(markets)
    samples: dict[str, list[tuple[float, float]]] = defaultdict(list)
    environment = {"DEXORDER_SIM_MARKETS": str(markets), "DEXORDER_SIM_MARKETS_BUSY_SECONDS": str(BUSY_SECONDS)}
    with running_suite(folder / "suite", "--exchanges", exchanges_file(folder), **environment) as suite:
        asyncio.run(start_all(suite.relay, tickers, ["1m"]))
        started_s = time.monotonic()
        watcher = _Watcher(suite.relay, tickers)
        watcher.start()
        cpu: dict[str, float] = {}
        cpu_s = 0.0
        for minute in range(minutes + 1):
            time.sleep(max(0.0, started_s + minute * 60 - time.monotonic()))
            spent_s = time.monotonic() - started_s
            for name, mib in memory(suite).items():
                samples[name].append((spent_s / 3_600, mib))
            if minute == minutes // 3:
                cpu, cpu_s = all_cpu_seconds(suite), spent_s
            late = lags_s(suite)
            now = ", ".join(f"{name} {each[-1][1]:.0f}" for name, each in samples.items())
            lag = f"{len(late)} jobs, settled {report.spread(late)} ago" if late else "no jobs"
            live = f"live {watcher.trades}, missed {watcher.missed}"
            print(f"{spent_s / 60:.0f} min, {lag}; {live}; MiB: {now}", file=sys.stderr, flush=True)
        spent_s = time.monotonic() - started_s
        used = all_cpu_seconds(suite)
        trades = suite.metric("ingestor", "dexorder_ingestor_trades_total")
        calls = suite.metric("ingestor", "dexorder_ingestor_calls_total")
        time.sleep(30)
        stored, missing, doubled = missing_and_doubled(suite)
    rows = slopes(samples, from_hours=minutes / 180)
    share = [
        report.Row(f"processor, {part}", f"{(used[part] - cpu[part]) / (spent_s - cpu_s):.1%} of a core")
        for part in used
    ]
    facts = [
        report.Row("trades in Kafka", f"{trades:,.0f}", "", f"{trades / spent_s:,.0f}/s"),
        report.Row("calls to REST", f"{calls:,.0f}", "", f"{calls / spent_s * 60 / markets:.2f} a market and minute"),
        report.Row("rows of trading.ticks", f"{stored:,}", "", f"{missing} missing, {doubled} doubled", "0, 0"),
        report.Row("live trades to a client of all markets", f"{watcher.trades:,}", "", f"{watcher.missed} missed"),
        *share,
    ]
    title = f"Memory, {markets} markets for {minutes} min; second column: after the first third, then the slope"
    return report.table(title, rows) + "\n" + report.table("The same run", facts)
