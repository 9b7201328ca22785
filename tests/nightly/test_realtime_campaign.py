"""Trades replayed while sockets fail, and while parts are killed or Kafka is stopped: the tables equal the files.
History and realtime of many markets at once: the candles on both sides of where realtime begins.

`DEXORDER_SOAK_TRADES` names files of trades with consecutive ids, ``FILE=SYMBOL`` with commas between; by default they
are written from the synthetic markets. At the seam the exchange's clock is the suite's: a faster one would soon be in
the suite's future, whose candles it refuses.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from bench.parts.realtime_memory import exchanges_file
from dexorder import AsyncClient
from dexorder_common.model.history import HistoryRequest
from dexorder_common.model.periods import PERIOD_SECONDS
from dexorder_common.model.time_range import TimeRange, subtract
from dexorder_common.model.times import SECOND_NS
from dexorder_exchange_sim.config import SimSettings
from dexorder_exchange_sim.instruments import extra_instruments
from dexorder_exchange_sim.market import SyntheticMarket
from tests.nightly import trade_replay
from tests.nightly.trade_replay import Every, Recording, Replay, write_trades
from tests.rig.oracle import assert_equal, candles_of
from tests.rig.report import print_campaign
from tests.rig.suite import Suite, running_suite

PERIODS = ("1m", "5m", "1h")
BUSY_SECONDS = 1
MINUTE_NS, HOUR_NS = 60 * SECOND_NS, 3_600 * SECOND_NS
_SINCE_HOURS, _HISTORY_HOURS = 6, 8
_PATIENCE_SECONDS = 300.0


class Seam:
    """Subscriptions with ``since``, and requests of history that end where they begin."""

    def __init__(self, suite: Suite, markets: int) -> None:
        self._suite = suite
        self._instruments = extra_instruments(markets, busy_seconds=BUSY_SECONDS)
        now_ns = self._exchange_ns() // HOUR_NS * HOUR_NS
        self._begin_ns, self._since_ns = now_ns - _HISTORY_HOURS * HOUR_NS, now_ns - _SINCE_HOURS * HOUR_NS
        self._started_ns = 0

    def start(self) -> None:
        """Start everything at once."""
        asyncio.run(self._start())

    async def _start(self) -> None:
        self._started_ns = self._exchange_ns()
        async with AsyncClient(self._suite.relay, patience_seconds=120) as client:
            tickers = [f"{each.symbol}.SIM" for each in self._instruments]
            await asyncio.gather(
                *(client.start_realtime(each, PERIODS, since=self._since_ns) for each in tickers),
                *(client.submit(self._request(each, period)) for each in tickers for period in PERIODS),
            )

    def _request(self, ticker: str, period: str) -> HistoryRequest:
        """Return a request for the hours before `since`; that of minutes also for all hours up to now."""
        end_ns = self._started_ns // MINUTE_NS * MINUTE_NS if period == "1m" else self._since_ns
        return HistoryRequest(f"seam-{ticker}-{period}", ticker, self._begin_ns, end_ns, PERIOD_SECONDS[period])

    def check(self) -> dict[str, tuple[int, int]]:
        """Wait until the tables have everything up to now; compare all candles with the exchange's.

        Returns:
            For each period, the candles before the start of the subscriptions and after it.
        """
        until_ns = self._exchange_ns()
        asyncio.run(self._wait(until_ns))
        found = {}
        for period in PERIODS:
            step_ns = PERIOD_SECONDS[period] * SECOND_NS
            before = after = 0
            span = TimeRange(self._begin_ns, until_ns // step_ns * step_ns)
            seam_ns = self._started_ns // step_ns * step_ns
            for each in self._instruments:
                market = SyntheticMarket(each, seed=SimSettings().seed)
                expected = candles_of(market, period, span, now_ns=until_ns)
                rows = self._suite.rows(f"{each.symbol}.SIM", PERIOD_SECONDS[period], span)
                assert_equal(rows, expected)
                times = expected["open_time"].to_numpy()
                early = int((times * 1_000 < seam_ns).sum())
                before, after = before + early, after + len(times) - early
            found[period] = before, after
        return found

    async def _wait(self, until_ns: int) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        async with AsyncClient(self._suite.relay, patience_seconds=120) as client:
            for instrument in self._instruments:
                for period in PERIODS:
                    step_ns = PERIOD_SECONDS[period] * SECOND_NS
                    whole = TimeRange(self._begin_ns, until_ns // step_ns * step_ns)
                    while missing := await self._missing(client, f"{instrument.symbol}.SIM", period, whole):
                        assert time.monotonic() < deadline, f"{instrument} {period}: {missing}\n{self._suite.logs()}"
                        await asyncio.sleep(0.5)

    async def _missing(self, client: AsyncClient, ticker: str, period: str, whole: TimeRange) -> list[TimeRange]:
        known = (await client.coverage(ticker, period)).known
        return subtract([whole], [each.span for each in known])

    def _exchange_ns(self) -> int:
        return int(self._suite.exchange("/api/v3/time")["serverTime"]) * 1_000_000


@contextmanager
def running_seam(folder: Path, markets: int) -> Iterator[Seam]:
    """Run a suite whose exchange has so many further markets, with four trades a minute."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with running_suite(
        folder,
        "--exchanges",
        exchanges_file(folder.parent),
        DEXORDER_SIM_MARKETS=str(markets),
        DEXORDER_SIM_MARKETS_BUSY_SECONDS=str(BUSY_SECONDS),
    ) as suite:
        yield Seam(suite, markets)


FILES = os.environ.get("DEXORDER_SOAK_TRADES", "")
SPEED = float(os.environ.get("DEXORDER_SOAK_TRADES_SPEED", "360"))
STRIKES = int(os.environ.get("DEXORDER_SOAK_TRADES_STRIKES", "100"))
KILLS = int(os.environ.get("DEXORDER_SOAK_TRADES_KILLS", "5"))
OUTAGE_SECONDS = float(os.environ.get("DEXORDER_SOAK_KAFKA_SECONDS", "60"))
INGESTOR_SECONDS = 10.0
HOURS = 60
MARKETS = int(os.environ.get("DEXORDER_SOAK_SEAM_MARKETS", "20"))
SEAM_SECONDS = float(os.environ.get("DEXORDER_SOAK_SEAM_SECONDS", "420"))
pytestmark = [pytest.mark.soak, pytest.mark.timeout(7_200)]


def faults(replay: Replay, name: str) -> list[Every]:
    """Return what happens besides the faults of sockets."""
    if name == "ingestor":
        return [trade_replay.kills(replay, ("ingestor",), max(1, int(replay.seconds / INGESTOR_SECONDS)))]
    if name == "parts":
        return [trade_replay.kills(replay, trade_replay.KILLED, KILLS)]
    return [trade_replay.outage(replay, OUTAGE_SECONDS)] if name == "kafka" else []


@pytest.mark.parametrize("name", ["sockets", "ingestor", "parts", "kafka"])
def test_tables_equal_the_recorded_trades(name: str, tmp_path: Path) -> None:
    if FILES:
        given = (each.rpartition("=") for each in FILES.split(","))
        recordings = [Recording(Path(file), symbol) for file, _, symbol in given]
    else:
        recordings = [Recording(write_trades(tmp_path / "trades.parquet", "XMR/USD", hours=HOURS), "XMR/USD")]
    began_s = time.monotonic()
    with trade_replay.replaying(tmp_path / "suite", recordings, SPEED) as replay:
        replay.start()
        running = [trade_replay.strikes(replay, STRIKES), *faults(replay, name)]
        for each in running:
            each.start()
        time.sleep(replay.seconds)
        done = [each.finish() for each in running]
        replay.suite.wait_ready()
        settled_s = replay.wait_until_stored()
        found = replay.check()
        stats: dict[str, object] = {}
        with suppress(OSError):
            stats = replay.suite.exchange("/sim/stats").get("faults", {})
    print_campaign(
        f"Trades replayed at {SPEED:g} times their speed, {name}: 0 lost, 0 doubled, 0 candles differ",
        ["market", "trades", "candles", "faults of all sockets", f"{name}", "stored after the end"],
        *(
            [each.symbol, f"{trades:,}", f"{total:,}", done[0], sum(done[1:]), f"{settled_s:.1f} s"]
            for each, trades, total in found
        ),
        since_s=began_s,
    )
    print(f"Faults of messages and sockets: {stats}")


def test_history_and_realtime_meet_without_a_missing_or_doubled_candle(tmp_path: Path) -> None:
    began_s = time.monotonic()
    with running_seam(tmp_path / "suite", MARKETS) as seam:
        seam.start()
        time.sleep(SEAM_SECONDS)
        found = seam.check()
    print_campaign(
        f"History and realtime of {MARKETS} markets at once: 0 candles missing, doubled or different",
        ["period", "candles of history", "candles of realtime"],
        *([period, f"{before:,}", f"{after:,}"] for period, (before, after) in found.items()),
        since_s=began_s,
    )
