"""Realtime part of the async client: subscriptions and live market data."""

from __future__ import annotations

import asyncio
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING

from dexorder.client.connection import Connection
from dexorder.client.ended import Ended, history_error
from dexorder.client.live import LiveUpdate, Realtime
from dexorder.client.live_messages import decode_update
from dexorder.client.moments import Moment, moment_ns
from dexorder.client.request import check_ticker, parse_period
from dexorder.errors import RequestRefused, WaitEnded
from dexorder.rows.answers import RowSource
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.history import Progress, RequestStatus
from dexorder_common.model.realtime import RealtimeJobRecord, RealtimeParams, StartedSubscription, Subscription
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import MAX_TIME_NS, SECOND_NS
from dexorder_common.rpc.realtime_messages import decode_job, decode_started, encode_subscription
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2
from dexorder_protos.dexorder.relay.v1 import realtime_pb2 as pb

if TYPE_CHECKING:
    from dexorder.rows.table import Rows

MAX_TICKERS = 1_000
CLOCK_MARGIN_NS = 60 * SECOND_NS
"""Largest difference between the clocks of relay and ingestor with which no snapshot is missed."""
_PAGE = 1_000


class RealtimeCalls(ABC):
    """Realtime methods of AsyncClient, which has the connection."""

    _connection: Connection

    @abstractmethod
    async def wait(
        self, request_id: str, *, on_progress: Callable[[Progress], None] | None = None, timeout: float | None = None
    ) -> Ended:
        """Follow a request until its notification."""

    @abstractmethod
    async def _rows(self) -> RowSource:
        """Return where rows are read: the catalog or the relay."""

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
        since_ns = None if since is None else _moment_ns(since, "since", time.time_ns())
        subscription = Subscription(name, ticker, RealtimeParams(trades, tuple(seconds)), since_ns, client_id)
        request = pb.StartRealtimeRequest(subscription=encode_subscription(subscription))
        await self._connection.call(self._connection.stub.StartRealtime, request)
        return name

    async def stop_realtime(self, subscription_id: str) -> None:
        """Stop a subscription; RequestUnknown if none was ever started under this id. Repeating it changes nothing."""
        request = pb.StopRealtimeRequest(subscription_id=subscription_id)
        await self._connection.call(self._connection.stub.StopRealtime, request)

    async def list_realtime(self, client_id: str = "", *, ticker: str = "") -> Realtime:
        """Return the subscriptions that were not stopped, by time of their start, and the jobs that serve them.

        Raises:
            RequestRefused: ``ticker`` is given and is not SYMBOL.VENUE.
        """
        if ticker:
            check_ticker(ticker)
        request = pb.ListRealtimeRequest(client_id=client_id, ticker=ticker, page_size=_PAGE)
        subscriptions: list[StartedSubscription] = []
        jobs: dict[str, RealtimeJobRecord] = {}
        while True:
            answer = await self._connection.call(self._connection.stub.ListRealtime, request)
            subscriptions += map(decode_started, answer.subscriptions)
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

    async def trades(self, ticker: str, since: Moment, until: Moment = "now") -> Rows:
        """Return the stored trades of a market between two times, by time and id, each once.

        ``realtime list`` and the coverage of period 0 say up to when they are complete.

        Raises:
            RequestRefused: A value is invalid.
            CatalogError: The catalog or ``trading.ticks`` can't be read, or does not exist.
            TableUnavailable: The relay, through which the trades are read, can't read the table now.
        """
        check_ticker(ticker)
        now_ns = time.time_ns()
        start_ns, end_ns = (_moment_ns(each, name, now_ns) for each, name in ((since, "since"), (until, "until")))
        if end_ns <= start_ns:
            raise RequestRefused(f"until {until} is not after since {since}")
        source = await self._rows()
        return await asyncio.to_thread(source.trades, ticker, TimeRange(start_ns, end_ns))

    async def snapshot_tickers(
        self, venue: str, *, request_id: str | None = None, client_id: str = "", timeout: float | None = None
    ) -> Rows:
        """Take a snapshot of all tickers of an exchange, wait until it is stored, and return it, by ticker.

        Raises:
            RequestRefused: The relay refuses the request; the message has its reason.
            HistoryError: The snapshot failed; the message has the exchange's reason.
            WaitEnded: ``timeout`` seconds passed; the request continues.
        """
        name = request_id or f"tickers-{uuid.uuid4().hex}"
        request = pb.SnapshotTickersRequest(request_id=name, exchange=venue, client_id=client_id or None)
        try:
            async with asyncio.timeout(timeout):
                answer = await self._connection.call(self._connection.stub.SnapshotTickers, request)
                if answer.status not in (ingest_pb2.SubmitResponse.QUEUED, ingest_pb2.SubmitResponse.DUPLICATE):
                    status = ingest_pb2.SubmitResponse.SubmitStatus.Name(answer.status)
                    raise RequestRefused(f"the relay answered {status}: {answer.error_message}")
                ended = await self.wait(name)
        except TimeoutError:
            raise WaitEnded(
                f"no snapshot of {venue} within {timeout:g} s; if the relay has accepted request {name}, it continues"
            ) from None
        if ended.record.status is not RequestStatus.OK:
            raise history_error(ended.record)
        since_ns = max(0, ended.record.submitted_ns - CLOCK_MARGIN_NS)
        source = await self._rows()
        return await asyncio.to_thread(source.snapshots, venue, TimeRange(since_ns, MAX_TIME_NS))

    async def _answers(self) -> None:
        """Return when the relay answers."""
        await self._connection.call(self._connection.stub.ListRealtime, pb.ListRealtimeRequest(page_size=1))


def read_periods(periods: Iterable[str | int]) -> list[int]:
    """Return periods in seconds, ascending, each once; RequestRefused names one that is unknown."""
    try:
        return sorted({parse_period(each) for each in periods})
    except InvalidRequest as error:
        raise RequestRefused(str(error)) from None


def _moment_ns(moment: Moment, field: str, now_ns: int) -> int:
    try:
        return moment_ns(moment, field, now_ns=now_ns)
    except InvalidRequest as error:
        raise RequestRefused(str(error)) from None
