"""Kafka's log of realtime records, and the tables that the pipeline makes of them; both outlive every process.

The tables keep the pipeline's rules: of a trade the first copy of the latest revision, of a candle the row of the
larger (dispatch, page).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import grpc

from dexorder_common.kafka.joined_record import records_in
from dexorder_common.kafka.page_record import parse_response
from dexorder_common.model.datasets import CANDLES, TRADES
from dexorder_common.model.history import PageResult
from dexorder_common.model.instrument import Series
from dexorder_common.model.page import Kind, PageHeaders
from dexorder_common.model.time_range import TimeRange, merge
from dexorder_common.model.times import SECOND_NS
from dexorder_common.rpc.history_messages import encode_page_result
from dexorder_protos.dexorder.market.v1 import market_pb2, ohlcv_pb2
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as ppb
from dexorder_protos.kafkapixy import kafkapixy_pb2 as pixy
from tests.simulation.loop import Process
from tests.simulation.network import CallFailed
from tests.simulation.run import Run

_TOLERANCE_NS = SECOND_NS
_BATCH_SECONDS = (1.0, 8.0)


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A record, the time at which Kafka acknowledged it, and its content."""

    time_ns: int
    headers: PageHeaders
    trades: tuple[market_pb2.Trade, ...] = ()
    candles: tuple[ohlcv_pb2.OHLCV, ...] = ()


@dataclass(frozen=True, slots=True)
class CandleRow:
    """A candle of the table."""

    order: tuple[int, int]
    candle: ohlcv_pb2.OHLCV


@dataclass
class Tables:
    """Rows of trades by ticker, id and time, rows of candles by ticker, period and open time."""

    trades: dict[str, dict[str, list[market_pb2.Trade]]] = field(default_factory=lambda: defaultdict(dict))
    candles: dict[tuple[str, int, int], CandleRow] = field(default_factory=dict)

    def has_trade(self, ticker: str, trade_id: str, time_ns: int) -> bool:
        """Return whether there is a row of a trade."""
        return any(abs(each.time_ns - time_ns) <= _TOLERANCE_NS for each in self.trades[ticker].get(trade_id, ()))

    def add(self, record: LogRecord) -> None:
        """Apply a record."""
        ticker, headers = record.headers.ticker, record.headers
        for trade in record.trades:
            copies = self.trades[ticker].setdefault(trade.trade_id, [])
            same = [n for n, each in enumerate(copies) if abs(each.time_ns - trade.time_ns) <= _TOLERANCE_NS]
            if not same:
                copies.append(trade)
            elif trade.revision > copies[same[0]].revision:
                copies[same[0]] = trade
        for candle in record.candles:
            key = ticker, headers.period_seconds, candle.open_time_ns
            row = CandleRow((headers.dispatch, headers.page), candle)
            if key not in self.candles or self.candles[key].order < row.order:
                self.candles[key] = row


class Storage:
    """The log behind the gateway, and the pipeline that reads it."""

    def __init__(self, run: Run) -> None:
        self.records: list[LogRecord] = []
        self.tables = Tables()
        self.is_down = False
        self.on_record: Callable[[PageHeaders, bytes], None] = lambda headers, value: None
        self._run = run
        self._random = run.generator("storage")
        self._read = 0
        self._amended: dict[tuple[str, int, TimeRange], tuple[int, set[int]]] = {}

    def start(self) -> None:
        """Start the gateway and the pipeline."""
        gateway, pipeline = Process("gateway"), Process("pipeline")
        self._run.network.serve(gateway, "Produce", self._produce)
        self._run.loop.spawn(pipeline, self._commit())

    async def _produce(self, request: pixy.ProdRq) -> pixy.ProdRs:
        if self.is_down:
            raise CallFailed(grpc.StatusCode.UNAVAILABLE, "Kafka is not available")
        given = {each.key: each.value.decode() for each in request.headers}
        await asyncio.sleep(self._random.uniform(0.001, 0.02))
        for headers, value in records_in(given, request.message):
            self.records.append(self._decode(headers, value))
            self.on_record(headers, value)
        return pixy.ProdRs(offset=len(self.records) - 1)

    def _decode(self, headers: PageHeaders, value: bytes) -> LogRecord:
        now_ns = self._run.loop.now_ns
        if headers.kind is Kind.TRADES:
            found = tuple(market_pb2.Trades.FromString(value).trades)
            late = [trade for trade in found if trade.time_ns > headers.span.end_ns]
            if late:
                self._run.fail(f"trade {late[0].trade_id} is after its record's span {headers.span}: refused")
            return LogRecord(now_ns, headers, trades=found)
        candles = tuple(map(ohlcv_pb2.OHLCV.FromString, parse_response(value).ohlc_data))
        if headers.amends:
            self._check_amendment(headers, now_ns)
            self._run.note(
                f"log: {_opens(candles)} of {headers.period_seconds} s amended by {headers.dispatch_id[:17]}"
            )
        return LogRecord(now_ns, headers, candles=candles)

    def _check_amendment(self, headers: PageHeaders, now_ns: int) -> None:
        """Fail if a dispatch amends a candle more than once a second.

        It amends again when the record before is here, so the n-th comes at least n - 2 seconds after the first.
        """
        place = headers.dispatch_id, headers.period_seconds, headers.span
        first_ns, pages = self._amended.setdefault(place, (now_ns, set()))
        pages.add(headers.page)  # a record may come twice
        if now_ns - first_ns < (len(pages) - 2) * SECOND_NS:
            self._run.fail(f"the candle of {headers.span} is amended {len(pages)} times in {now_ns - first_ns} ns")

    async def _commit(self) -> None:
        """Commit batches for ever, each reported until the relay has answered."""
        while True:
            await asyncio.sleep(self._random.uniform(*_BATCH_SECONDS))
            batch = self.records[self._read :]
            for record in batch:
                self.tables.add(record)
            self._read += len(batch)
            request = ppb.ReportJobsRequest(pages=map(encode_page_result, map(_result, batch)))
            while batch:
                try:
                    await self._run.network.call("relay", "ReportJobs", request, timeout=30.0)
                    break
                except CallFailed:
                    await asyncio.sleep(self._random.uniform(0.1, 2.0))

    def finish(self) -> None:
        """Commit what is in the log at the end of a run."""
        for record in self.records[self._read :]:
            self.tables.add(record)
        self._read = len(self.records)

    def claims(self, ticker: str, period_seconds: int) -> list[TimeRange]:
        """Return the spans of a series that records have settled; 0 seconds for trades."""
        return merge(record.headers.span for record in self.of(ticker, period_seconds) if record.headers.span)

    def committed_claims(self, ticker: str) -> list[TimeRange]:
        """Return the spans of trades that the records of the table have settled."""
        found = islice(self.records, self._read)
        return merge(
            each.headers.span for each in found if each.headers.kind is Kind.TRADES and each.headers.ticker == ticker
        )

    def of(self, ticker: str, period_seconds: int) -> Iterator[LogRecord]:
        """Yield the records of a series."""
        kind = Kind.PAGE if period_seconds else Kind.TRADES
        for record in self.records:
            headers = record.headers
            if headers.ticker == ticker and headers.kind is kind and headers.period_seconds == period_seconds:
                yield record


def _result(record: LogRecord) -> PageResult:
    headers = record.headers
    dataset = TRADES if headers.kind is Kind.TRADES else CANDLES
    series = Series(headers.ticker, headers.period_seconds, dataset)
    rows = len(record.trades) + len(record.candles)
    return PageResult(
        headers.dispatch_id, series, headers.span, headers.empty, fetched_ns=headers.fetched_ns, rows=rows
    )


def _opens(candles: tuple[Any, ...]) -> str:
    return ", ".join(f"candle {each.open_time_ns // SECOND_NS}" for each in candles) or "no candle"
