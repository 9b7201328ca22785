"""Run of one snapshot of all tickers of an exchange: one record, then the final record."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import structlog

from dexorder_common import tracing
from dexorder_common.clock import Clock
from dexorder_common.kafka.page_record import final_value
from dexorder_common.model.datasets import TICKERS
from dexorder_common.model.errors import InvalidRequest, Unavailable
from dexorder_common.model.history import Dispatch
from dexorder_common.model.instrument import Instrument
from dexorder_common.model.page import Kind, PageHeaders
from dexorder_common.model.time_range import TimeRange
from dexorder_ingestor.broker.slots import DispatchEnd
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.exchange.answers import MS_NS
from dexorder_ingestor.exchange.failures import ExchangeFailure
from dexorder_ingestor.exchange.live_queries import LiveQueries
from dexorder_ingestor.metrics import IngestorMetrics
from dexorder_ingestor.publisher import IngestorPublisher
from dexorder_ingestor.traces import job_span, trace_id_of
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb
from dexorder_protos.dexorder.market.v1 import market_pb2

log = structlog.get_logger(__name__)
_MAX_SNAPSHOTS = 1_000
"""Snapshots in one record."""
_PRICES = {"last": "last", "bid": "bid", "ask": "ask", "open": "open", "high": "high", "low": "low"}
_AMOUNTS = {
    "base_volume": "baseVolume",
    "quote_volume": "quoteVolume",
    "bid_size": "bidVolume",
    "ask_size": "askVolume",
}
_LARGEST = 1e300


class TickersRunner:
    """Runs dispatches of snapshots."""

    def __init__(
        self,
        queries: Mapping[str, LiveQueries],
        publisher: IngestorPublisher,
        settings: IngestorSettings,
        metrics: IngestorMetrics,
        clock: Clock,
    ) -> None:
        self._queries = queries
        self._publisher = publisher
        self._metrics = metrics
        self._clock = clock
        self.deadline_seconds = settings.dispatch_deadline_seconds
        """Longest time of a dispatch that starts now."""

    async def run(self, dispatch: Dispatch) -> DispatchEnd:
        """Take and publish the snapshots; return how the dispatch ended."""
        trace, traced = trace_id_of(dispatch.dispatch_id), job_span(dispatch.dispatch_id, dispatch.series.exchange)
        with structlog.contextvars.bound_contextvars(dispatch_id=dispatch.dispatch_id, trace=trace), traced as span:
            try:
                async with asyncio.timeout(self.deadline_seconds):
                    outcome = await self._run(dispatch, trace)
                completion = DispatchEnd(dispatch.dispatch_id, success=True)
            except (Unavailable, TimeoutError) as error:
                message = str(error) or f"took longer than {self.deadline_seconds:g} s"
                tracing.fail(span, "handed_back")
                outcome, completion = "handed_back", DispatchEnd(dispatch.dispatch_id, success=False, message=message)
            self._metrics.dispatches.labels(dispatch.series.exchange, outcome).inc()
            log.info("snapshot of tickers ended", exchange=dispatch.series.exchange, outcome=outcome)
            return completion

    async def _run(self, dispatch: Dispatch, trace: str) -> str:
        try:
            tickers, fetched_ns = await self._queries[dispatch.series.exchange].tickers()
        except ExchangeFailure as error:
            now_ns = self._clock.wall_ns()
            await self._produce_final(dispatch, trace, TimeRange(now_ns, now_ns), 0, 0, str(error))
            return "error"
        snapshots = _encode(dispatch.series.exchange, tickers.values(), fetched_ns)
        times_ns = [each.time for each in snapshots] or [fetched_ns]
        span = TimeRange(min(times_ns), max(times_ns))
        pages = [snapshots[at : at + _MAX_SNAPSHOTS] for at in range(0, len(snapshots), _MAX_SNAPSHOTS)]
        for number, page in enumerate(pages):
            headers = self._headers(Kind.TICKERS, dispatch, trace, number, span)
            value = market_pb2.TickerSnapshots(snapshots=page).SerializeToString(deterministic=True)
            await self._publisher.produce(headers, value, dataset=TICKERS, key=headers.ticker)
        await self._produce_final(dispatch, trace, span, len(pages), len(snapshots), None)
        return "ok" if snapshots else "not_found"

    async def _produce_final(
        self, dispatch: Dispatch, trace: str, span: TimeRange, pages: int, count: int, error: str | None
    ) -> None:
        status = pb.DataResponse.OK if count else pb.DataResponse.NOT_FOUND
        if error is not None:
            status = pb.DataResponse.ERROR
        headers = self._headers(Kind.FINAL, dispatch, trace, pages, span)
        value = final_value(dispatch.request_id, status, count, error)
        await self._publisher.produce(headers, value, dataset=TICKERS, key=headers.ticker)

    def _headers(self, kind: Kind, dispatch: Dispatch, trace: str, page: int, span: TimeRange) -> PageHeaders:
        return PageHeaders(
            kind=kind,
            ticker=dispatch.series.ticker,
            period_seconds=0,
            dispatch_id=dispatch.dispatch_id,
            page=page,
            span=span,
            fetched_ns=self._clock.wall_ns(),
            trace=trace,
        )


def _encode(venue: str, tickers: Iterable[Mapping[str, Any]], received_ns: int) -> list[market_pb2.TickerSnapshot]:
    found = []
    for ticker in tickers:
        try:
            snapshot = encode_ticker(venue, ticker, received_ns)
        except InvalidRequest:  # its symbol can't be part of a ticker
            continue
        if snapshot is not None:
            found.append(snapshot)
    return sorted(found, key=lambda each: each.ticker)


def encode_ticker(venue: str, ticker: Mapping[str, Any], received_ns: int) -> market_pb2.TickerSnapshot | None:
    """Return ccxt's ticker of a market; None if it lacks all values or its symbol can't be a ticker's.

    The time is the exchange's, or ours where it gives none.
    """
    values = {name: _positive(ticker.get(of)) for name, of in _PRICES.items()}
    values |= {name: _not_negative(ticker.get(of)) for name, of in _AMOUNTS.items()}
    known = {name: value for name, value in values.items() if value is not None}
    symbol, time_ms = ticker.get("symbol"), ticker.get("timestamp")
    if not known or not isinstance(symbol, str):
        return None
    time_ns = int(time_ms) * MS_NS if isinstance(time_ms, int | float) and 0 < time_ms < 2**43 else received_ns
    text = str(Instrument.parse(f"{symbol}.{venue}"))
    return market_pb2.TickerSnapshot(ticker=text, time=time_ns, received_at=received_ns, **known)


def _not_negative(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LARGEST:
        return None
    return float(value)


def _positive(value: Any) -> float | None:
    return _not_negative(value) or None
