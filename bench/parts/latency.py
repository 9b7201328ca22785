"""(a) Time from submission to notification for one page, compared with a page that is only produced.

Then the same requests again: covered ranges are answered from the table without the exchange.
"""

from __future__ import annotations

import sqlite3
import time
import uuid
from contextlib import closing
from typing import Any

import grpc

from dexorder_common.kafka.page_record import page_value
from dexorder_common.model import datasets
from dexorder_common.model.dispatch_id import number_of
from dexorder_common.model.page import MAX_PAGE_CANDLES, Candle, Kind, PageHeaders
from dexorder_common.model.periods import count_periods
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_common.rpc.relay_stubs import BlockingRelayStubs
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as pb
from dexorder_protos.kafkapixy import kafkapixy_pb2 as pixy
from dexorder_protos.kafkapixy.kafkapixy_pb2_grpc import KafkaPixyStub
from tests.rig.dispatches import dispatch_id
from tests.rig.oracle import minutes
from tests.rig.report import Row, spread, table
from tests.rig.suite import Suite

WARM_RUNS = 3
FIRST_MINUTE = -2_000_000
_POLL_SECONDS = 0.002
_LONGEST_SECONDS = 60.0


def measure(suite: Suite, runs: int) -> str:
    """Measure the whole chain and its limit alternately."""
    chain: list[float] = []
    limit: list[float] = []
    spans = [minutes(FIRST_MINUTE + number * MAX_PAGE_CANDLES, MAX_PAGE_CANDLES) for number in range(WARM_RUNS + runs)]
    with grpc.insecure_channel(suite.relay) as relay, grpc.insecure_channel(suite.address("gateway")) as pixies:
        for span in spans:
            chain.append(one_request(BlockingRelayStubs(relay), span))
            limit.append(one_page(suite, KafkaPixyStub(pixies), span))
    chain, limit = chain[WARM_RUNS:], limit[WARM_RUNS:]
    over = [ours - alone for ours, alone in zip(sorted(chain), sorted(limit), strict=True)]
    rows = [
        Row(
            f"SubmitHistorical to notification, {MAX_PAGE_CANDLES:,} candles, {runs} runs",
            spread(chain),
            spread(limit),
            f"p50 + {over[len(over) // 2]:.2f} s",
            "p50 at most limit + 0.06 s",
        ),
        *repeated(suite, spans),
    ]
    return table("(a) Warm latency; limit: produce one page, wait for its snapshot", rows)


def repeated(suite: Suite, spans: list[TimeRange]) -> list[Row]:
    """Measure the same ranges again: to the notification, and to the last row of StreamOhlc."""
    asked = calls(suite)
    with grpc.insecure_channel(suite.relay) as channel:
        relay = BlockingRelayStubs(channel)
        told = [one_request(relay, span) for span in spans]
        read = [one_answer(relay, span) for span in spans]
    if not asked or calls(suite) != asked:
        raise AssertionError("the exchange was asked again for what is verified")
    aim = "at most 1 s"
    return [
        Row("the same again: to the notification", spread(told), "", f"worst {max(told):.2f} s", aim),
        Row(
            f"the same again: StreamOhlc, all {MAX_PAGE_CANDLES:,} rows",
            spread(read),
            "",
            f"worst {max(read):.2f} s",
            aim,
        ),
    ]


def calls(suite: Suite) -> float:
    """Return the number of calls of the exchange."""
    return suite.metric("ingestor", "dexorder_ingestor_calls_total")


def one_answer(relay: Any, span: TimeRange) -> float:
    """Return the seconds from StreamOhlc to the end of its rows."""
    request = ingest_pb2.OHLCRequest(
        request_id=uuid.uuid4().hex,
        ticker="ETH/USDT.SIM",
        start_time=span.start_ns,
        end_time=span.end_ns,
        period_seconds=60,
    )
    started = time.perf_counter()
    answers = relay.history.StreamOhlc(pb.StreamOhlcRequest(request=request), timeout=_LONGEST_SECONDS)
    rows = [row for answer in answers for row in answer.page.data]
    seconds = time.perf_counter() - started
    if len(rows) != MAX_PAGE_CANDLES:
        raise AssertionError(f"{len(rows)} rows, not {MAX_PAGE_CANDLES}")
    return seconds


def one_request(relay: Any, span: TimeRange) -> float:
    """Return the seconds from a submission to its notification."""
    request_id = uuid.uuid4().hex
    request = ingest_pb2.SubmitHistoricalRequest(
        request_id=request_id, ticker="ETH/USDT.SIM", start_time=span.start_ns, end_time=span.end_ns, period_seconds=60
    )
    topic = pb.WatchNotificationsRequest(topic=f"HISTORY_READY:{request_id}")
    stream = relay.history.WatchNotifications(topic, timeout=_LONGEST_SECONDS)
    next(stream)  # the stream is open
    started = time.perf_counter()
    relay.history.SubmitHistorical(request)
    told = next(stream).notification.ready
    seconds = time.perf_counter() - started
    stream.cancel()
    if (told.status, told.row_count) != (ingest_pb2.HistoryReadyNotification.OK, count_periods(span, 60)):
        raise AssertionError(f"the request ended with {told}")
    return seconds


def issue(suite: Suite, ticker: str, span: TimeRange) -> str:
    """Add a dispatch to the relay's ledger, without a request; return its id."""
    made = dispatch_id(time.time_ns(), ticker)  # far above the relay's own numbers
    values = (number_of(made), made, ticker, 60, "candles", span.start_ns, span.end_ns, False, time.time_ns())
    with closing(sqlite3.connect(suite.directory / "relay.db", timeout=30)) as ledger, ledger:
        ledger.execute(
            "INSERT INTO dispatches (number, dispatch_id, ticker, period_seconds, dataset, start_ns, end_ns,"
            " is_realtime, issued_ns) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            values,
        )
    return made


def one_page(suite: Suite, pixies: Any, span: TimeRange) -> float:
    """Return the seconds from Produce of a page without a request to a new snapshot of the table."""
    control = PageHeaders(
        Kind.PAGE, "LIMIT/USDT.SIM", 60, issue(suite, "LIMIT/USDT.SIM", span), 0, span, time.time_ns()
    )
    request = pixy.ProdRq(
        topic=datasets.CANDLES.topic,
        key_value=control.dispatch_id.encode(),
        message=page_value("limit", candles(span)),
        headers=[pixy.RecordHeader(key=k, value=v.encode()) for k, v in control.encode().items()],
    )
    with sqlite3.connect(suite.directory / "catalog.db") as catalog:
        before = metadata(catalog)
        started = time.perf_counter()
        pixies.Produce(request)
        while metadata(catalog) == before:
            if time.perf_counter() - started > _LONGEST_SECONDS:
                raise AssertionError("the page did not land")
            time.sleep(_POLL_SECONDS)
        seconds = time.perf_counter() - started
    time.sleep(0.5)  # the batch's report and coverage are no part of the next run
    return seconds


def candles(span: TimeRange) -> list[Candle]:
    step = 60 * SECOND_NS
    return [Candle(ns, 1.0, 2.0, 0.5, 1.5, 3.0) for ns in range(span.start_ns, span.end_ns, step)]


def metadata(catalog: sqlite3.Connection) -> str:
    """Return the location of the table's metadata, which changes with every commit."""
    query = "SELECT metadata_location FROM iceberg_tables WHERE table_name = 'ohlc'"
    (location,) = catalog.execute(query).fetchone()
    return str(location)
