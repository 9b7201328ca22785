"""Realtime as a client sees it, ``client.realtime``: subscriptions and live market data."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress

from dexorder.client.connection import RelayConnection
from dexorder.client.inputs import check_ticker, read_moment, read_periods
from dexorder.client.live import LiveCandle, LiveTrade, LiveUpdate, MissedData, Realtime
from dexorder.client.moments import Moment
from dexorder.errors import RequestRefused
from dexorder_common.model.realtime import (
    RealtimeJobRecord,
    RealtimeParams,
    StartedSubscription,
    Subscription,
    wait_text,
)
from dexorder_common.rpc.realtime_messages import (
    decode_job,
    decode_provisional,
    decode_started,
    decode_state,
    encode_subscription,
)
from dexorder_protos.dexorder.market.v1 import market_pb2
from dexorder_protos.dexorder.relay.v1 import realtime_service_pb2 as pb

MAX_TICKERS = 1_000
_PAGE = 1_000
_STOP_SECONDS = 5.0
"""Longest time that the end of `live` takes for its subscriptions."""
_SIDES = {market_pb2.Trade.SIDE_BUY: "buy", market_pb2.Trade.SIDE_SELL: "sell"}


class AsyncRealtime:
    """Subscriptions and live market data of one relay, for asyncio."""

    def __init__(self, connection: RelayConnection) -> None:
        self._connection = connection

    async def start(
        self,
        ticker: str,
        periods: Iterable[str | int] = (),
        *,
        trades: bool = True,
        since: Moment | None = None,
        subscription_id: str | None = None,
        client_id: str = "",
    ) -> str:
        """Start a subscription, which survives restarts and runs until it is stopped. Return its id.

        Its trades arrive in ``trading.ticks`` and its candles in ``trading.ohlc``; ``live`` shows them as they come.

        Args:
            ticker: ``BTC/USDT.BINANCE``.
            periods: Candles to build: ``1m`` or seconds; none for no candles.
            trades: Also store the trades.
            since: Start of the complete data; now by default. Forms as for ``history``.
            subscription_id: Repeating a call with the same id and values changes nothing; default a new id.

        Raises:
            RequestRefused: A value is invalid, or the id was used for another subscription or for a stopped one.
        """
        check_ticker(ticker)
        seconds = read_periods(periods)
        if not trades and not seconds:
            raise RequestRefused("neither trades nor periods are given; a subscription needs at least one of them")
        name = subscription_id or _new_id()
        since_ns = None if since is None else read_moment(since, "since", time.time_ns())
        subscription = Subscription(name, ticker, RealtimeParams(trades, tuple(seconds)), since_ns, client_id)
        await self._start(subscription)
        return name

    async def _start(self, subscription: Subscription) -> None:
        request = pb.StartRealtimeRequest(subscription=encode_subscription(subscription))
        await self._connection.call(self._connection.stub.realtime.StartRealtime, request)

    async def stop(self, subscription_id: str) -> None:
        """Stop a subscription; RequestUnknown if the id was never used. Repeating it changes nothing."""
        request = pb.StopRealtimeRequest(subscription_id=subscription_id)
        await self._connection.call(self._connection.stub.realtime.StopRealtime, request)

    async def list(self, client_id: str = "", *, ticker: str = "") -> Realtime:
        """Return the subscriptions that were not stopped, by time of their start, and the jobs that serve them.

        Raises:
            RequestRefused: ``ticker`` is given and is not SYMBOL.VENUE.
        """
        if ticker:
            check_ticker(ticker)
        request = pb.ListRealtimeRequest(client_id=client_id, ticker=ticker, page_size=_PAGE)
        subscriptions: list[StartedSubscription] = []
        jobs: dict[str, RealtimeJobRecord] = {}
        async for page in self._connection.pages(self._connection.stub.realtime.ListRealtime, request):
            subscriptions += map(decode_started, page.subscriptions)
            jobs.update({job.ticker: job for job in map(decode_job, page.jobs)})
        return Realtime(tuple(subscriptions), tuple(jobs[name] for name in sorted(jobs)))

    async def live(
        self,
        tickers: str | Iterable[str],
        periods: Iterable[str | int] = (),
        *,
        trades: bool = True,
        running: bool = True,
        keep_all: bool = False,
        live_only: bool = False,
        subscribe: bool = True,
        client_id: str = "",
    ) -> AsyncGenerator[LiveUpdate, None]:
        """Yield live trades and candles of markets, without end; the subscriptions that it starts end with it.

        It is best effort: a slow client gets the number of missed events, and after a restart of the relay or of an
        ingestor trades may come again. The tables are complete and have each trade once.

        Args:
            tickers: One ticker, or up to 1,000.
            periods: Candles to show: ``1m`` or seconds.
            trades: Show trades.
            running: Also show candles before they are closed, at every change.
            keep_all: When this client is slow, keep everything until a queue is full, then drop the oldest; by default
                only the newest of each kind is kept.
            live_only: Leave out trades that a query released, after a start in the past, a cut or a gap.
            subscribe: Start a subscription for each ticker, and stop it in the end. A market has live data only during
                a subscription, so with False another subscription must be running. A killed program leaves its
                subscriptions behind.
            client_id: Client of these subscriptions.

        Raises:
            RequestRefused: A value is invalid.
            QuotaReached: The client may have no more subscriptions.
            RelayUnreachable: The relay did not answer for ``patience_seconds``.
        """
        names = [tickers] if isinstance(tickers, str) else list(tickers)
        if not 0 < len(names) <= MAX_TICKERS:
            raise RequestRefused(f"{len(names)} tickers; 1 to {MAX_TICKERS} are accepted")
        for each in names:
            check_ticker(each)
        seconds = read_periods(periods)
        request = pb.WatchMarketDataRequest(
            tickers=names,
            include_trades=trades,
            period_seconds=seconds,
            include_running=running,
            slow_client=pb.SLOW_CLIENT_POLICY_DROP_OLDEST if keep_all else pb.SLOW_CLIENT_POLICY_COALESCE,
            live_only=live_only,
        )
        messages = self._connection.stream(self._connection.stub.realtime.WatchMarketData, request)
        own = [Subscription(_new_id(), each, RealtimeParams(trades, tuple(seconds)), None, client_id) for each in names]
        async with self._subscribed(own if subscribe else []), aclosing(messages):
            async for message in messages:
                yield decode_update(message)

    @asynccontextmanager
    async def _subscribed(self, subscriptions: Sequence[Subscription]) -> AsyncIterator[None]:
        """Keep subscriptions while the block runs. Subscriptions whose start was not answered are stopped as well."""
        try:
            for each in subscriptions:
                await self._start(each)
            yield
        finally:
            with suppress(TimeoutError):
                async with asyncio.timeout(_STOP_SECONDS):
                    stops = (self.stop(each.subscription_id) for each in subscriptions)
                    await asyncio.gather(*stops, return_exceptions=True)


def _new_id() -> str:
    return f"rt-{uuid.uuid4().hex}"


def decode_update(message: pb.WatchMarketDataResponse) -> LiveUpdate:
    """Return one answer of WatchMarketData."""
    return LiveUpdate(
        tuple(
            MissedData(m.series.ticker, m.series.period_seconds, m.count, m.start_ns, m.end_ns) for m in message.missed
        ),
        tuple((each.ticker, decode_state(each.state)) for each in message.states),
        tuple(map(_trade, message.trades)),
        tuple(map(_candle, message.candles)),
        {each.ticker: wait_text(each.waiting) for each in message.states},
        {each.ticker: tuple(map(decode_provisional, each.provisional)) for each in message.states},
    )


def _trade(message: market_pb2.Trade) -> LiveTrade:
    return LiveTrade(
        message.ticker,
        message.trade_id,
        message.time_ns,
        message.price,
        message.amount,
        _SIDES.get(message.side, ""),
        message.received_ns,
        message.refilled,
    )


def _candle(message: market_pb2.Candle) -> LiveCandle:
    values = message.ohlcv
    return LiveCandle(
        message.ticker,
        message.period_seconds,
        values.open_time_ns,
        values.open,
        values.high,
        values.low,
        values.close,
        values.volume,
        values.quote_volume if values.HasField("quote_volume") else None,
        values.trade_count if values.HasField("trade_count") else None,
        message.closed,
        message.amends,
        message.received_ns,
        message.provisional,
    )
