"""History and realtime of many markets at once: the candles on both sides of where realtime begins.

The exchange's clock is the suite's: a faster one would soon be in the suite's future, whose candles it refuses.
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.parts.realtime_memory import exchanges_file
from dexorder import AsyncClient
from dexorder_common.model.history import HistoryRequest
from dexorder_common.model.periods import PERIOD_SECONDS
from dexorder_common.model.time_range import TimeRange, subtract
from dexorder_common.model.times import SECOND_NS
from dexorder_exchange_sim.config import SimSettings
from dexorder_exchange_sim.instruments import extra_instruments
from dexorder_exchange_sim.market import SyntheticMarket
from tests.rig.oracle import assert_equal, candles_of
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
        url = f"http://{self._suite.address('sim')}/api/v3/time"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return int(json.loads(answer.read())["serverTime"]) * 1_000_000


@contextmanager
def running(folder: Path, markets: int) -> Iterator[Seam]:
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
