"""Venue and session in one, as `fetch_candles` uses them, without sockets; the clock moves by sleeping."""

from __future__ import annotations

from functools import cache
from typing import Any, cast

from prometheus_client import CollectorRegistry

from dexorder_common.model.history import Dispatch
from dexorder_common.model.page import Candle
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.exchange.absences import KnownAbsences
from dexorder_ingestor.exchange.agreement import Agreement
from dexorder_ingestor.exchange.dialect import CallLimits
from dexorder_ingestor.history.fetch import fetch_candles
from dexorder_ingestor.history.job import Missing, Put
from dexorder_ingestor.history.paging import CandlePage
from dexorder_ingestor.metrics import IngestorMetrics
from tests.unit.services.ingestor.conftest import FAST

_METRICS = IngestorMetrics(CollectorRegistry())


@cache
def _settings_of(**settings: Any) -> IngestorSettings:
    """Return settings, which take longer to read than most of these tests take."""
    return IngestorSettings(**settings)


class OneVenue:
    """An exchange with one market; a subclass has ``dialect``, and the answers to queries."""

    name = "SIM"
    limits: CallLimits

    def __init__(self, agreement: Agreement, *, now_ns: int, **settings: Any) -> None:
        self.clock_ns = now_ns
        self.settings = _settings_of(**{**FAST, "closing_lag_seconds": 0, **settings})
        self.metrics = _METRICS
        self.agreement = agreement
        self.absences = KnownAbsences()

    async def timeframe(self, session: object, symbol: str, period_seconds: int) -> str:
        return "a timeframe"

    hosts = 1

    def renew_connection(self) -> None:
        return

    def limits_of(self, symbol: str) -> CallLimits:
        return self.limits

    async def day_file(self, symbol: str, period_seconds: int, day: TimeRange) -> tuple[list[Candle], int] | None:
        return None

    def judge_file(self, *, tallies: bool) -> None:
        return

    async def sleep(self, seconds: float) -> None:
        self.clock_ns += round(seconds * SECOND_NS)

    async def now_ns(self, about_ns: int = 0) -> int:
        return self.clock_ns

    async def run(self, job: Dispatch, put: Put) -> list[Missing]:
        """Run a dispatch; return the missing parts."""
        return await fetch_candles(job, cast(Any, self), cast(Any, self), self.agreement, put)

    async def fetch(self, job: Dispatch) -> tuple[list[CandlePage], list[Missing]]:
        """Run a dispatch; return its pages and the missing parts."""
        pages: list[CandlePage] = []

        async def put(page: CandlePage) -> None:
            pages.append(page)

        missing = await self.run(job, put)
        return pages, missing
