"""Realtime part of the async client: subscriptions and live market data."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

from dexorder.connection import Connection
from dexorder.errors import RequestRefused
from dexorder.live import LiveJob, LiveUpdate, Realtime, Subscription, decode_job, decode_subscription, decode_update
from dexorder.moments import Moment, moment_ns
from dexorder.request import check_ticker, parse_period
from services.common.model.errors import InvalidRequest
from services.gen.dexorder.ingest.v1 import ingest_pb2
from services.gen.dexorder.relay.v1 import realtime_pb2 as pb

MAX_TICKERS = 1_000
_PAGE = 1_000


class RealtimeCalls:
    """Realtime methods of AsyncClient, which has the connection."""

    _connection: Connection

    async def start_realtime(
        self,
        ticker: str,
        periods: Iterable[str | int] = (),
        *,
        trades: bool = True,
        since: Moment | None = None,
        subscription_id: str | None = None,
        client_id: str = "",
    ) -> str:
        """Start a subscription, which runs until it is stopped, whatever restarts meanwhile. Return its id.

        Its trades arrive in ``trading.ticks`` and its candles in ``trading.ohlc``; ``live`` shows them as they come.

        Args:
            ticker: ``BTC/USDT.BINANCE``.
            periods: Candles to build: ``1m`` or seconds; none for no candles.
            trades: Also store the trades.
            since: Complete from this time on; from now on by default. Forms as for ``history``.
            subscription_id: Repeating a call with the same id and values changes nothing; default a new id.

        Raises:
            RequestRefused: A value is invalid, or the id was used for another subscription or for a stopped one.
        """
        check_ticker(ticker)
        seconds = read_periods(periods)
        if not trades and not seconds:
            raise RequestRefused("neither trades nor periods are given; a subscription needs at least one of them")
        name = subscription_id or f"rt-{uuid.uuid4().hex}"
        params = ingest_pb2.RealtimeParams(
            include_ticks=trades, include_ohlc=bool(seconds), ohlc_period_seconds=seconds
        )
        subscription = pb.RealtimeSubscription(
            subscription_id=name,
            ticker=ticker,
            params=params,
            since=None if since is None else _since_ns(since),
            client_id=client_id or None,
        )
        await self._connection.call(
            self._connection.stub.StartRealtime, pb.StartRealtimeRequest(subscription=subscription)
        )
        return name

    async def stop_realtime(self, subscription_id: str) -> None:
        """Stop a subscription; RequestUnknown if none was ever started under this id. Repeating it changes nothing."""
        request = pb.StopRealtimeRequest(subscription_id=subscription_id)
        await self._connection.call(self._connection.stub.StopRealtime, request)

    async def list_realtime(self, client_id: str = "", *, ticker: str = "") -> Realtime:
        """Return the subscriptions that were not stopped, by time of their start, and the jobs that serve them."""
        request = pb.ListRealtimeRequest(client_id=client_id, ticker=ticker, page_size=_PAGE)
        subscriptions: list[Subscription] = []
        jobs: dict[str, LiveJob] = {}
        while True:
            answer = await self._connection.call(self._connection.stub.ListRealtime, request)
            subscriptions += map(decode_subscription, answer.subscriptions)
            jobs.update({job.ticker: job for job in map(decode_job, answer.jobs)})
            request.page_token = answer.next_page_token
            if not request.page_token:
                return Realtime(tuple(subscriptions), tuple(jobs[name] for name in sorted(jobs)))

    async def live(
        self,
        tickers: str | Iterable[str],
        periods: Iterable[str | int] = (),
        *,
        trades: bool = True,
        running: bool = True,
        keep_all: bool = False,
    ) -> AsyncGenerator[LiveUpdate, None]:
        """Yield live trades and candles of markets that have subscriptions, without end.

        It is best effort: a client that reads slowly is told what it missed, and after a restart of the relay or of an
        ingestor trades may come again. The tables have what is complete, each trade once.

        Args:
            tickers: One ticker, or up to 1,000.
            periods: Candles to show: ``1m`` or seconds.
            trades: Show trades.
            running: Also show candles before they are closed, at every change.
            keep_all: When this client is slow, keep everything until a queue is full, then drop the oldest; by default
                only the newest of each kind is kept.

        Raises:
            RequestRefused: A value is invalid.
            RelayUnreachable: The relay did not answer for ``patience_seconds``.
        """
        names = [tickers] if isinstance(tickers, str) else list(tickers)
        if not 0 < len(names) <= MAX_TICKERS:
            raise RequestRefused(f"{len(names)} tickers; 1 to {MAX_TICKERS} are accepted")
        for each in names:
            check_ticker(each)
        request = pb.StreamMarketDataRequest(
            tickers=names,
            include_trades=trades,
            period_seconds=read_periods(periods),
            include_running=running,
            slow_client=pb.SLOW_CLIENT_POLICY_DROP_OLDEST if keep_all else pb.SLOW_CLIENT_POLICY_COALESCE,
        )
        stub = self._connection.stub
        messages = self._connection.stream(stub.StreamMarketData, request, self._answers)
        async with aclosing(messages):
            async for message in messages:
                yield decode_update(message)

    async def _answers(self) -> None:
        """Return when the relay answers."""
        await self._connection.call(self._connection.stub.ListRealtime, pb.ListRealtimeRequest(page_size=1))


def read_periods(periods: Iterable[str | int]) -> list[int]:
    """Return periods in seconds, ascending, each once; RequestRefused names one that is unknown."""
    try:
        return sorted({parse_period(each) for each in periods})
    except InvalidRequest as error:
        raise RequestRefused(str(error)) from None


def _since_ns(since: Moment) -> int:
    try:
        return moment_ns(since, "since", now_ns=time.time_ns())
    except InvalidRequest as error:
        raise RequestRefused(str(error)) from None
