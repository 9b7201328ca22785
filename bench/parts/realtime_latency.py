"""Time from a trade at the exchange to a client's hands, and to the snapshot of the table that has it.

The client is a process of its own: reading snapshots beside it would hold Python's lock for milliseconds at a time.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from pyiceberg.exceptions import NoSuchTableError

from bench.parts.realtime_memory import exchanges_file, start_all, symbols
from dexorder import AsyncClient
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.model.times import SECOND_NS, from_datetime, iso_microseconds
from dexorder_spark.config import SparkSettings
from tests.rig.report import Row, quantile, table
from tests.rig.suite import Suite, running_suite

MARKETS = 20
WARM_SECONDS, SECONDS = 45.0, 90.0
CLIENT_AIM_MS, TABLE_AIM_S = 20.0, 0.5
_POLL_SECONDS = 0.2
_BACK_NS = 60 * SECOND_NS


def _followed(relay: str) -> list[float]:
    """Return the milliseconds from the exchange's time of each trade until this process has it."""
    found: list[float] = []
    asyncio.run(_follow(relay, found, time.monotonic() + WARM_SECONDS + SECONDS))
    return found


async def _follow(relay: str, found: list[float], until_s: float) -> None:
    async with AsyncClient(relay) as client:
        try:
            async with asyncio.timeout(until_s - time.monotonic()):
                async for update in client.live(symbols(MARKETS), ["1m"], keep_all=True, subscribe=False):
                    now_ns = time.time_ns()
                    if time.monotonic() > until_s - SECONDS:
                        found += [(now_ns - trade.time_ns) / 1e6 for trade in update.trades]
        except TimeoutError:
            pass


class _Snapshots(threading.Thread):
    """Notes for each trade the time of the first snapshot of the table that has it."""

    def __init__(self, suite: Suite) -> None:
        super().__init__(daemon=True)
        self.seconds: list[tuple[int, float]] = []
        """Time of each trade, nanoseconds, and the seconds until its snapshot."""
        self._catalog = CatalogSettings.local(suite.directory).load()
        self._known: set[tuple[str, str]] = set()
        self._seen: set[int] = set()
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.wait(_POLL_SECONDS):
            try:
                loaded = self._catalog.load_table("trading.ticks")
            except NoSuchTableError:
                continue
            for snapshot in loaded.snapshots():
                if snapshot.snapshot_id not in self._seen:
                    self._seen.add(snapshot.snapshot_id)
                    self._note(loaded, snapshot)

    def _note(self, loaded: Any, snapshot: Any) -> None:
        at_ns = snapshot.timestamp_ms * 1_000_000
        rows = loaded.scan(
            row_filter=f"time >= '{iso_microseconds(at_ns - _BACK_NS)}'",
            selected_fields=("ticker", "trade_id", "time"),
            snapshot_id=snapshot.snapshot_id,
        ).to_arrow()
        for row in rows.to_pylist():
            key = row["ticker"], row["trade_id"]
            if key not in self._known:
                self._known.add(key)
                time_ns = from_datetime(row["time"])
                self.seconds.append((time_ns, (at_ns - time_ns) / SECOND_NS))


def run(folder: Path) -> str:
    """Return the table."""
    interval_s = SparkSettings().batch_seconds
    options = ("--exchanges", exchanges_file(folder))
    with running_suite(folder / "suite", *options, DEXORDER_SIM_MARKETS=str(MARKETS)) as suite:
        asyncio.run(start_all(suite.relay, symbols(MARKETS), ["1m"]))
        snapshots = _Snapshots(suite)
        snapshots.start()
        first_ns = time.time_ns() + int(WARM_SECONDS * SECOND_NS)
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as clients:
            live_ms = clients.submit(_followed, suite.relay).result()
        last_ns = time.time_ns()
        time.sleep(15)
        snapshots.stop.set()
        snapshots.join()
    stored_s = [seconds for time_ns, seconds in snapshots.seconds if first_ns <= time_ns < last_ns]
    rows = [
        _row("exchange to a gRPC client", live_ms, "ms", CLIENT_AIM_MS),
        _row("exchange to the table's snapshot", stored_s, "s", interval_s + TABLE_AIM_S),
    ]
    title = f"Latency of trades, {MARKETS} markets with 4 trades a second each; a batch starts every {interval_s:g} s"
    return table(title, rows)


def _row(what: str, values: list[float], unit: str, aim: float) -> Row:
    p50, p99 = quantile(values, 0.5), quantile(values, 0.99)
    return Row(f"{what}, {len(values):,} trades", f"p50 {p50:.3g} {unit}, p99 {p99:.3g} {unit}", "", "", f"p50 {aim:g}")
