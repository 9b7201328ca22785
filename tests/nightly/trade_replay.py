"""Recorded trades replayed through the suite: what the tables must have, and faults meanwhile.

The expected rows are computed from the files, not from the simulated exchange.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from dexorder import Client
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.model.periods import PERIOD_SECONDS
from dexorder_common.model.realtime import RealtimeState
from dexorder_common.model.times import SECOND_NS, from_datetime
from dexorder_exchange_sim.dialects.binance_rows import AGGREGATES
from dexorder_exchange_sim.instruments import INSTRUMENTS
from dexorder_exchange_sim.market import SyntheticMarket
from tests.rig.suite import Suite, running_suite

MS_NS = 1_000_000
PERIODS = ("1m", "5m", "1h")
KILLED = ("relay", "gateway", "udsource", "spark")
FAULTS: tuple[dict[str, Any], ...] = (
    {"kind": "ws_double", "every": 7},
    {"kind": "ws_shuffle", "every": 31},
    {"kind": "ws_drop", "every": 211},
    {"kind": "ws_cut", "every": 1_009},
)
"""Faults of single messages; those of whole sockets come by `strikes`."""
_STRIKES = ("ws_close", "ws_garbage", "ws_close", "ws_silence", "ws_close", "ws_half", "ws_close", "ws_abort")
_SILENCE_SECONDS = 5.0
_BEFORE_NS = 2 * SECOND_NS
_PATIENCE_SECONDS = 300.0
_FIRST_S = 1_704_067_200
"""2024-01-01, the begin of synthetic trades."""
_NEVER_NS = 2**62
_LAST_SPEED = 360.0
"""With it the candles of an hour end within ten seconds behind the last trade."""


class Row(NamedTuple):
    """One trade as file and table have it; ``trade_id`` is the exchange's aggregate."""

    trade_id: int
    time_ns: int
    price: float
    amount: float
    side: str


@dataclass(frozen=True)
class Recording:
    """A file of trades, and the symbol under which the exchange serves it."""

    path: Path
    symbol: str

    @property
    def ticker(self) -> str:
        return f"{self.symbol}.SIM"

    def trades(self) -> list[Row]:
        """Return the trades by id."""
        rows = pq.read_table(self.path, columns=["id", "timestamp", "price", "amount", "side"]).to_pylist()
        found = (
            Row(int(row["id"]) + AGGREGATES, row["timestamp"] * MS_NS, row["price"], row["amount"], row["side"])
            for row in rows
        )
        return sorted(found)


def candles(trades: Sequence[Row], period: str) -> dict[int, tuple[float, ...]]:
    """Return open, high, low, close and volume by open time in nanoseconds."""
    step_ns = PERIOD_SECONDS[period] * SECOND_NS
    groups: dict[int, list[Row]] = {}
    for trade in trades:
        groups.setdefault(trade.time_ns // step_ns * step_ns, []).append(trade)
    return {
        open_ns: (
            group[0].price,
            max(trade.price for trade in group),
            min(trade.price for trade in group),
            group[-1].price,
            float(sum(Decimal(repr(trade.amount)) for trade in group)),
        )
        for open_ns, group in groups.items()
    }


class Replay:
    """A suite whose exchange stands before the first trade until `start`."""

    def __init__(self, suite: Suite, recordings: Sequence[Recording], speed: float) -> None:
        self.suite = suite
        self.recordings = recordings
        self.speed = speed
        self._trades = {each: each.trades() for each in recordings}
        self.first_ns = min(trades[0].time_ns for trades in self._trades.values())
        self.last_ns = max(trades[-1].time_ns for trades in self._trades.values())

    @property
    def count(self) -> int:
        """Number of trades in the files."""
        return sum(map(len, self._trades.values()))

    def strike(self, kind: str) -> int:
        """Apply a fault to all open sockets; return their number."""
        return int(self.suite.exchange("/sim/sockets", {"kind": kind, "hang_s": _SILENCE_SECONDS})["sockets"])

    def start(self) -> None:
        """Subscribe to each symbol, wait until its job runs, and let the clock run."""
        with Client(self.suite.relay, patience_seconds=120) as client:
            for each in self.recordings:
                client.start_realtime(each.ticker, PERIODS)
            deadline = time.monotonic() + _PATIENCE_SECONDS
            while {job.ticker for job in client.list_realtime().jobs if job.state is RealtimeState.RUNNING} != {
                each.ticker for each in self.recordings
            }:
                assert time.monotonic() < deadline, self.suite.logs()
                time.sleep(0.1)
        time.sleep(5)  # the first queries are answered
        self.suite.exchange("/sim/clock", {"speed": self.speed})

    @property
    def seconds(self) -> float:
        """Length of the replay in real time."""
        return (self.last_ns - self.first_ns + _BEFORE_NS) / SECOND_NS / self.speed

    def wait_until_stored(self) -> float:
        """Let the open candles end, and wait until coverage has everything; return the seconds it took."""
        self.suite.exchange("/sim/clock", {"speed": max(self.speed, _LAST_SPEED)})
        began_s = time.monotonic()
        with Client(self.suite.relay, patience_seconds=120) as client:
            for each in self.recordings:
                for period in (0, *(PERIOD_SECONDS[name] for name in PERIODS)):
                    step_ns = period * SECOND_NS or MS_NS
                    end_ns = -(-(self._trades[each][-1].time_ns + 1) // step_ns) * step_ns
                    while not self._is_covered(client, each.ticker, period, end_ns):
                        spent_s = time.monotonic() - began_s
                        assert spent_s < _PATIENCE_SECONDS, self._state(client, each.ticker, period, end_ns)
                        time.sleep(0.5)
        return time.monotonic() - began_s

    def _is_covered(self, client: Client, ticker: str, period: int, end_ns: int) -> bool:
        known = client.coverage(ticker, period).known
        return bool(known) and max(each.span.end_ns for each in known) >= end_ns

    def _state(self, client: Client, ticker: str, period: int, end_ns: int) -> str:
        known = client.coverage(ticker, period).known
        return f"{ticker} {period}: {known}, not {end_ns}\n{client.list_realtime()}\n{self.suite.logs()}"

    def check(self) -> list[tuple[Recording, int, int]]:
        """Compare the tables with the files; return the number of trades and of candles of each.

        Raises:
            AssertionError: A row is missing, doubled, or has other values.
        """
        catalog = CatalogSettings.local(self.suite.directory).load()
        ticks = catalog.load_table("trading.ticks").scan().to_arrow()
        ohlc = catalog.load_table("trading.ohlc").scan().to_arrow()
        found = []
        for each in self.recordings:
            expected = self._trades[each]
            _compare_trades(expected, _of(ticks, each.ticker))
            rows, total = _of(ohlc, each.ticker), 0
            for period in PERIODS:
                total += _compare_candles(expected, period, rows, self.first_ns - _BEFORE_NS)
            found.append((each, len(expected), total))
        return found


def _of(table: pa.Table, ticker: str) -> list[dict[str, Any]]:
    return [row for row in table.to_pylist() if row["ticker"] == ticker]


def _compare_trades(expected: Sequence[Row], rows: Sequence[dict[str, Any]]) -> None:
    stored = sorted(
        Row(int(row["trade_id"]), from_datetime(row["time"]), row["price"], row["amount"], row["side"]) for row in rows
    )
    ids, known = [row.trade_id for row in stored], {row.trade_id for row in expected}
    lost, doubled = sorted(known - set(ids)), sorted(i for i, times in Counter(ids).items() if times > 1)
    assert not lost and not doubled, f"{len(lost)} lost: {lost[:20]}; {len(doubled)} doubled: {doubled[:20]}"
    assert stored == list(expected)


def _compare_candles(trades: Sequence[Row], period: str, rows: Sequence[dict[str, Any]], begin_ns: int) -> int:
    """Compare the closed candles of a period with the trades; return their number.

    A subscription without ``since`` promises those that open after its begin.
    """
    expected = {open_ns: row for open_ns, row in candles(trades, period).items() if open_ns >= begin_ns}
    found: dict[int, tuple[Any, ...]] = {}
    for row in rows:
        if row["period_seconds"] == PERIOD_SECONDS[period]:
            open_ns = from_datetime(row["open_time"])
            assert open_ns not in found, f"{period} {row['open_time']} is there twice"
            found[open_ns] = tuple(row[name] for name in ("open", "high", "low", "close", "volume"))
    missing, more = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    assert not missing and not more, f"{period}: {len(missing)} missing: {missing[:10]}, {len(more)} more: {more[:10]}"
    wrong = [
        (open_ns, found[open_ns], expected[open_ns]) for open_ns in expected if found[open_ns] != expected[open_ns]
    ]
    assert not wrong, f"{len(wrong)} {period} candles differ: {wrong[:5]}"
    return len(found)


@contextmanager
def replaying(
    folder: Path, recordings: Sequence[Recording], speed: float, *options: str, **environment: str
) -> Iterator[Replay]:
    """Run a suite whose exchange serves recordings, with faults of messages; its clock stands still."""
    begin_ns = min(each.trades()[0].time_ns for each in recordings) - _BEFORE_NS
    named = [part for each in recordings for part in ("--recorded", f"{each.path}={each.symbol}@trades")]
    with running_suite(
        folder,
        *named,
        *options,
        DEXORDER_SIM_NOW_NS=str(begin_ns),
        DEXORDER_SIM_SPEED="0",
        DEXORDER_SIM_FAULTS=json.dumps(FAULTS),
        **environment,
    ) as suite:
        yield Replay(suite, recordings, speed)


class Every(threading.Thread):
    """Calls a function with growing numbers, spread over a time; fewer times if the calls take too long."""

    def __init__(self, times: int, seconds: float, do: Callable[[int], None]) -> None:
        super().__init__(daemon=True)
        self._times = times
        self._seconds = seconds
        self._pause_s = seconds / times
        self._do = do
        self.done = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        began_s = time.monotonic()
        try:
            for number in range(self._times):
                time.sleep(max(0.0, began_s + (number + 0.5) * self._pause_s - time.monotonic()))
                if time.monotonic() > began_s + self._seconds:
                    return
                self._do(number)
                self.done += 1
        except BaseException as error:
            self.failure = error

    def finish(self) -> int:
        """Wait for the last call; return how many there were."""
        self.join()
        if self.failure:
            raise self.failure
        return self.done


def strikes(replay: Replay, times: int) -> Every:
    """Return faults of all sockets, a mixture of kinds, spread over the replay."""

    def do(number: int) -> None:
        replay.strike(_STRIKES[number % len(_STRIKES)])

    return Every(times, replay.seconds, do)


def kills(replay: Replay, parts: Sequence[str], times: int) -> Every:
    """Return so many kills of each part, in a mixed order, spread over the replay."""
    order = [part for part in parts for _ in range(times)]
    random.Random(23).shuffle(order)

    def do(number: int) -> None:
        replay.suite.kill_and_wait(order[number], _PATIENCE_SECONDS)  # or it would never work

    return Every(len(order), replay.seconds, do)


def outage(replay: Replay, seconds: float) -> Every:
    """Return one outage of Kafka in the middle of the replay: it is frozen, as its peers see it."""

    def do(number: int) -> None:
        with replay.suite.frozen("kafka"):
            time.sleep(seconds)

    return Every(1, replay.seconds, do)


def write_trades(path: Path, symbol: str, *, hours: float) -> Path:
    """Write the trades of some hours from 2024-01-01 on, with the columns of recorded trades."""
    market = SyntheticMarket(next(each for each in INSTRUMENTS if each.symbol == symbol), seed=9)
    end_ns = int((_FIRST_S + hours * 3_600) * SECOND_NS)
    first = market.first_trade_at(_FIRST_S * 1_000, now_ns=_NEVER_NS)
    count = market.first_trade_at(end_ns // 1_000_000, now_ns=_NEVER_NS) - first
    trades = market.trades(first, count, now_ns=_NEVER_NS)
    pq.write_table(
        pa.table(
            {
                "timestamp": pa.array(trades.time_ms),
                "id": [str(number) for number in trades.id.tolist()],
                "side": ["sell" if maker else "buy" for maker in trades.buyer_is_maker.tolist()],
                "price": pa.array(trades.price),
                "amount": pa.array(trades.amount),
            }
        ),
        path,
    )
    return path
