"""How far `trading.ticks` is behind while one suite follows many markets with thousands of trades a second.

The simulated exchange is a process of its own, with four trades a second in each market by its own clock, which runs as
much faster as the wanted rate needs. Everything else is the whole suite as `dexorder up` starts it: ingestor, gateway,
Kafka, udsource, Spark, relay. Only trades are subscribed to. Afterwards, with the exchange's clock at rest, the rows of
each snapshot show for each trade how long after it the first snapshot with it was committed. So the largest of these
times is how far the table was behind at the worst moment. Times are the machine's.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.exceptions import NoSuchTableError

from bench.parts.cpu import PARTS, all_cpu_seconds
from bench.parts.realtime_memory import exchanges_file, missing_and_doubled, start_all, symbols
from bench.parts.realtime_speed import TRADES_A_SECOND, set_speed
from dexorder import Client
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.model.times import SECOND_NS
from tests.rig.processes import until
from tests.rig.report import Row, quantile, table
from tests.rig.suite import Suite, running_suite

WARM_SECONDS, WINDOW_SECONDS = 30.0, 120.0
AIM_SECONDS = 5.0
_BACK_NS = 1_800 * SECOND_NS
"""The exchange's clock starts this long ago, so that its trades are never of the future."""
_POLL_SECONDS = 5.0
_QUIET_SECONDS = 30.0
_LAG_NS = 10 * SECOND_NS


class Pace(NamedTuple):
    """The exchange's clock from a moment on."""

    exchange_ns: int
    machine_ns: int
    speed: float

    def machine(self, exchange_ns: Any) -> Any:
        """Return the machine's times of the exchange's."""
        return self.machine_ns + (exchange_ns - self.exchange_ns) / self.speed


class Snapshots:
    """Notes the snapshots of the table with their times, without reading rows."""

    def __init__(self, suite: Suite) -> None:
        self.found: dict[int, int] = {}
        """Times of commits, nanoseconds, by snapshot, in their order."""
        self.newest_s = time.monotonic()
        self._catalog = CatalogSettings.local(suite.directory).load()

    def look(self) -> bool:
        """Note what is new; return whether there is any."""
        try:
            loaded = self._catalog.load_table("trading.ticks")
        except NoSuchTableError:
            return False
        for snapshot in loaded.snapshots():
            if snapshot.snapshot_id not in self.found:
                self.found[snapshot.snapshot_id] = snapshot.timestamp_ms * 1_000_000
                self.newest_s = time.monotonic()
        return bool(self.found)

    def watch(self, seconds: float) -> None:
        """Look again and again; a snapshot expires at the earliest ten minutes after it was replaced."""
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            time.sleep(min(_POLL_SECONDS, max(0.0, until_s - time.monotonic())))
            self.look()

    def are_over(self) -> bool:
        """Return whether no snapshot has come for some time."""
        self.look()
        return time.monotonic() > self.newest_s + _QUIET_SECONDS


def behind_seconds(
    suite: Suite, snapshots: Mapping[int, int], pace: Pace, from_ns: int, until_ns: int
) -> tuple[list[float], int]:
    """Return for each trade of a time of the machine how long after it the table had it, and the number of snapshots.

    A market's trades come to the table in the order of their numbers, so those of a snapshot are those behind the last
    number of the one before.
    """
    loaded = CatalogSettings.local(suite.directory).load().load_table("trading.ticks")
    last: dict[str, int] = {}
    seconds: list[float] = []
    used = 0
    for snapshot_id, at_ns in sorted(snapshots.items(), key=lambda each: each[1]):
        rows = loaded.scan(selected_fields=("ticker", "trade_id", "time"), snapshot_id=snapshot_id).to_arrow()
        rows = rows.set_column(1, "number", pc.cast(rows["trade_id"], "int64"))
        new = _newer(rows, last)
        times_ns = pace.machine(new["time"].cast(pa.timestamp("ns", "UTC")).cast(pa.int64()).to_numpy())
        inside = (times_ns >= from_ns) & (times_ns < until_ns)
        used += bool(inside.any())
        seconds += ((at_ns - times_ns[inside]) / SECOND_NS).tolist()
        newest = rows.group_by("ticker").aggregate([("number", "max")]).to_pylist()
        last = {each["ticker"]: each["number_max"] for each in newest}
    return seconds, used


def _newer(rows: pa.Table, last: Mapping[str, int]) -> pa.Table:
    if not last:
        return rows
    known = pa.table({"ticker": pa.array(last.keys(), rows["ticker"].type), "last": pa.array(last.values(), "int64")})
    joined = rows.join(known, "ticker")
    return joined.filter(pc.field("last").is_null() | (pc.field("number") > pc.field("last")))


def _lags_s(suite: Suite) -> list[float]:
    """Return for each market how long ago by the exchange's clock its trades were settled, ascending."""
    with Client(suite.relay) as client:
        settled = [each.series[0].settled_ns for each in client.list_realtime().jobs if each.series]
    now_ns = int(suite.exchange("/sim/clock", {"advance_ns": 0})["now_ns"])
    return sorted((now_ns - each) / SECOND_NS for each in settled)


def _is_up_to_date(suite: Suite, markets: int) -> bool:
    lags = _lags_s(suite)
    return len(lags) == markets and lags[-1] < _LAG_NS / SECOND_NS


def run(folder: Path, *, markets: int, rate: int) -> str:
    """Run the suite at a rate of trades a second; return the table."""
    speed = rate / (markets * TRADES_A_SECOND)
    clock = {"DEXORDER_SIM_NOW_NS": str(time.time_ns() - _BACK_NS), "DEXORDER_SIM_SPEED": "1"}
    options = ("--exchanges", exchanges_file(folder))
    with running_suite(folder / "suite", *options, DEXORDER_SIM_MARKETS=str(markets), **clock) as suite:
        asyncio.run(start_all(suite.relay, symbols(markets), ()))
        until(lambda: _is_up_to_date(suite, markets), 600, suite.logs)
        snapshots = Snapshots(suite)
        until(snapshots.look, 300, suite.logs)
        print(f"markets: all {markets} are up to date, and the table is filled", file=sys.stderr, flush=True)
        exchange_ns = set_speed(suite, speed)
        pace = Pace(exchange_ns, time.time_ns(), speed)
        snapshots.watch(WARM_SECONDS)
        from_ns, before, trades = time.time_ns(), all_cpu_seconds(suite), _delivered(suite)
        for _ in range(int(WINDOW_SECONDS // 20)):
            snapshots.watch(20)
            print(f"markets: settled {_lags_s(suite)[-1] / speed:.1f} s ago at worst", file=sys.stderr, flush=True)
        until_ns, after, delivered = time.time_ns(), all_cpu_seconds(suite), _delivered(suite) - trades
        set_speed(suite, 0)
        until(snapshots.are_over, 600)
        seconds, used = behind_seconds(suite, snapshots.found, pace, from_ns, until_ns)
        stored, missing, doubled = missing_and_doubled(suite)
    length_s = (until_ns - from_ns) / SECOND_NS
    title = f"{markets} markets, {rate:,} trades/s for {length_s:.0f} s; the exchange's clock runs {speed:g} times"
    facts = [
        Row("trades/s delivered to the ingestor", f"{delivered / length_s:,.0f}", "", "", f"{rate:,}"),
        _behind(seconds, length_s, used),
        Row("rows of trading.ticks", f"{stored:,}", "", f"{missing} missing, {doubled} doubled", "0, 0"),
    ]
    return table(title, [*facts, *_shares(before, after, length_s, delivered)])


def _delivered(suite: Suite) -> float:
    return suite.metric("ingestor", "dexorder_ingestor_trades_total")


def _behind(seconds: Sequence[float], length_s: float, snapshots: int) -> Row:
    p50, p99 = quantile(seconds, 0.5), quantile(seconds, 0.99)
    found = f"p50 {p50:.2f} s, p99 {p99:.2f} s, at most {np.max(seconds):.2f} s"
    what = f"table behind the exchange, {len(seconds) / length_s:,.0f} trades/s in {snapshots} snapshots"
    return Row(what, found, "", "", f"at most {AIM_SECONDS:g} s")


def _shares(before: Mapping[str, float], after: Mapping[str, float], length_s: float, trades: float) -> Iterable[Row]:
    used = {part: after[part] - before[part] for part in PARTS}
    for part, cpu_s in (*used.items(), ("all", sum(used.values()))):
        cost = f"{cpu_s / max(trades, 1) * 1e6:.0f} us a trade"
        yield Row(f"processor, {part}", f"{cpu_s / length_s:.2f} cores", "", cost)
