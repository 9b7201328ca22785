"""Trades, realtime candles and ticker snapshots from a source.v1 server to Iceberg, in one warm Spark session."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession

from dexorder_common.kafka.joined_record import JOINED_HEADERS, join_records, records_in
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.claims import read_coverage
from dexorder_common.lake.commit_state import state_of
from dexorder_common.lake.coverage import decode_coverage
from dexorder_common.lake.tables import COVERAGE, DEAD_LETTERS, OHLC, TICKERS, TICKS
from dexorder_common.model import datasets
from dexorder_common.model.instrument import Series
from dexorder_common.model.page import Kind
from dexorder_common.model.time_range import merge
from dexorder_common.rpc.common_messages import decode_series
from dexorder_spark import table_driver
from dexorder_spark.config import MaintenanceSettings, SparkSettings
from dexorder_spark.driver import Driver
from dexorder_spark.maintenance.metrics import MaintenanceMetrics
from dexorder_spark.maintenance.runner import MaintenanceRunner
from dexorder_spark.pipeline import presence
from dexorder_spark.pipeline.batch import Pipeline
from dexorder_spark.runtime.locks import WriterLocks
from dexorder_spark.tables.ohlc import CANDLES
from dexorder_spark.tables.tickers import SNAPSHOTS
from dexorder_spark.tables.ticks import TRADES
from tests.fakes.pages import TICKER, Record, control, final, page
from tests.fakes.pipeline import OTHER, Recorder, frame, wait_until
from tests.fakes.pipeline_relay import PipelineRelay, served
from tests.fakes.source_server import FakeSource, RunningSource
from tests.fakes.trades import (
    MadeTrade,
    seconds,
    snapshot,
    snapshots_head,
    snapshots_record,
    trade,
    trades_head,
    trades_record,
)
from tests.rig.dispatches import realtime_dispatch_id

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


class Trades:
    """Records of trades that were sent, and what the table must have of them."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.rows: dict[tuple[str, str], tuple[int, float, float, str | None]] = {}

    def send(self, first: int, end: int, *late: MadeTrade, job: int = 1, ticker: str = TICKER) -> None:
        """Send a record with a trade for each second from ``first`` to ``end``, and late ones."""
        trades = [*late, *map(trade, range(first, end))]
        self.records.append(trades_record(trades_head(first, end, job=job, page=first, ticker=ticker), trades))
        for each in trades:
            self.rows.setdefault((ticker, f"t{each.number}"), each.row())

    def send_all(self) -> None:
        """Send two days, a late trade, an empty span, a record twice, and a second dispatch with a part again."""
        self.send(0, 5)
        self.send(5, 9, trade(-3))
        self.send(9, 9, trade(-4))
        self.send(9, 15)
        self.records.append(self.records[-1])
        self.send(0, 4, ticker=OTHER)
        self.send(3, 12, job=2)
        self.send(12, 20, job=2)

    def check(self, catalog: CatalogSettings) -> None:
        tables = catalog.load()
        found = TICKS.rows(tables.load_table(TICKS.name).scan().to_arrow())
        rows = {(r["ticker"], r["trade_id"]): (r["time"], r["price"], r["amount"], r["side"]) for r in found}
        assert len(rows) == len(found), "a trade is doubled"
        assert rows == self.rows

    def covered(self, catalog: CatalogSettings, ticker: str = TICKER) -> list[object]:
        rows = [decode_coverage(row) for part in read_coverage(catalog.load()) for row in COVERAGE.rows(part)]
        return list(merge(row.span for row in rows if row.series == Series(ticker, dataset=TRADES.dataset)))


def joined(records: list[Record]) -> list[Record]:
    """Return records as two joined ones."""
    parts = [each for value, headers in records for each in records_in(headers, value)]
    middle = len(parts) // 2
    return [(join_records(half), dict(JOINED_HEADERS)) for half in (parts[:middle], parts[middle:])]


@pytest.mark.parametrize("is_joined", [False, True])
def test_every_trade_is_in_the_table_once_whatever_repeats_it(
    spark: SparkSession, trading: CatalogSettings, *, is_joined: bool
) -> None:
    sent, recorder = Trades(), Recorder()
    sent.send_all()
    if is_joined:
        sent.records = joined(sent.records)
    pipeline = Pipeline(TRADES, trading, "test", recorder)
    first = pipeline.process(frame(spark, sent.records))
    sent.check(trading)
    second = pipeline.process(frame(spark, sent.records))
    sent.check(trading)
    assert (first.path, second.path) == ("rewrite", "none"), "some of its records share trades"
    assert sent.covered(trading) == [seconds(0, 20)]
    assert sent.covered(trading, OTHER) == [seconds(0, 4)]
    reported = [(p.dispatch, p.series, p.span) for p in recorder.pages[: len(recorder.pages) // 2]]
    expected = [
        (1, Series(TICKER, dataset=TRADES.dataset), seconds(0, 15)),
        (1, Series(OTHER, dataset=TRADES.dataset), seconds(0, 4)),
        (2, Series(TICKER, dataset=TRADES.dataset), seconds(3, 20)),
    ]
    assert sorted(reported, key=str) == sorted(
        [*expected, (1, Series(TICKER, dataset=TRADES.dataset), seconds(9, 15))], key=str
    )
    assert pipeline.process(frame(spark, [trades_record(trades_head(20, 25, page=9), [trade(21)])])).path == "append"


@pytest.mark.parametrize("is_joined", [False, True])
def test_a_batch_that_was_committed_and_not_reported_is_repeated_and_changes_nothing(
    spark: SparkSession, trading: CatalogSettings, *, is_joined: bool
) -> None:
    sent, recorder = Trades(), Recorder(fail_calls={1})
    sent.send_all()
    if is_joined:
        sent.records = joined(sent.records)
    with pytest.raises(ConnectionError):
        Pipeline(TRADES, trading, "test", recorder).process(frame(spark, sent.records))
    sent.check(trading)
    again = Pipeline(TRADES, trading, "test", recorder)
    assert again.process(frame(spark, sent.records)).path == "none"
    sent.check(trading)
    claims = [row for part in read_coverage(trading.load()) for row in COVERAGE.rows(part)]
    assert len({(c["ticker"], c["start_time"], c["end_time"], c["dispatch"]) for c in claims}) == len(claims)
    ends = state_of(trading.load().load_table(TICKS.name).metadata).offsets["test"]
    assert recorder.pages and ends == {0: len(sent.records)}


def test_a_large_overlap_of_trades_is_merged_by_spark(
    spark: SparkSession, trading: CatalogSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = Trades()
    sent.send(0, 20)
    Pipeline(TRADES, trading, "other", Recorder()).process(frame(spark, sent.records))
    monkeypatch.setattr(presence, "MAX_READ_BYTES", 0)
    sent.send_all()
    pipeline = Pipeline(TRADES, trading, "test", Recorder())
    for _ in range(2):
        assert pipeline.process(frame(spark, sent.records)).path == "merge"
        sent.check(trading)
    found = TICKS.rows(trading.load().load_table(TICKS.name).scan().to_arrow())
    assert {row["dispatch"] for row in found if row["ticker"] == TICKER} == {1}, "the first copy stays"


def test_bad_records_are_kept_with_the_reason_and_stop_nothing(spark: SparkSession, trading: CatalogSettings) -> None:
    recorder, good = Recorder(), trades_head(0, 5)
    forged = replace(good, dispatch_id=control(0, 3).dispatch_id)  # of candles
    records = [
        trades_record(good, [trade(1)]),
        (b"<html>", trades_head(5, 10, page=1).encode()),
        trades_record(forged, [trade(2)]),
        page(control(0, 3)),
    ]
    result = Pipeline(TRADES, trading, "test#dexorder.ticks", recorder).process(frame(spark, records))
    assert (result.rows, result.refused) == (1, 3)
    letters = trading.load().load_table(DEAD_LETTERS.name).scan().to_arrow().to_pylist()
    assert {letter["source"] for letter in letters} == {"test#dexorder.ticks"}
    reasons = {letter["offset"]: letter["reason"] for letter in letters}
    assert "is not a Trades" in reasons[1] and "series" in reasons[2] and "dx-kind 'page'" in reasons[3]
    assert [p.span for p in recorder.pages if p.refused] == [seconds(5, 10), seconds(0, 5)]
    assert Trades().covered(trading) == [seconds(0, 5)]


def test_candles_of_a_realtime_dispatch_are_amended_by_later_pages(
    spark: SparkSession, trading: CatalogSettings
) -> None:
    def of(first: int, count: int, number: int, *, amends: bool = False) -> Record:
        head = replace(control(first, count, page=number), dispatch_id=realtime_dispatch_id(5, TICKER), amends=amends)
        return page(head, 100.0 + number)

    pipeline = Pipeline(CANDLES, trading, "test", Recorder())
    assert pipeline.process(frame(spark, [of(0, 1, 1), of(1, 1, 2), of(0, 2, 3, amends=True)])).rows == 4
    assert pipeline.process(frame(spark, [of(1, 1, 4, amends=True), of(2, 1, 2)])).path == "rewrite"
    rows = OHLC.rows(trading.load().load_table(OHLC.name).scan().to_arrow())
    assert sorted((row["open_time"], row["page"], row["open"]) for row in rows) == [
        (control(n, 1).span.start_ns // 1_000, number, 100.0 + number) for n, number in ((0, 3), (1, 4), (2, 2))
    ]


class Realtime:
    """A driver of all tables, its three topics and its relay."""

    def __init__(self, catalog: CatalogSettings) -> None:
        self.catalog = catalog
        self.topics = {table.topic: FakeSource(partitions=2) for table in (TRADES, SNAPSHOTS)}
        self.source = RunningSource(FakeSource(partitions=2), topics=self.topics)
        self.relay = PipelineRelay()
        self.registry = CollectorRegistry()
        self.ready: Counter[str] = Counter()
        self.sent = Trades()

    @contextmanager
    def driving(self, spark: SparkSession) -> Iterator[None]:
        stop, locks = threading.Event(), WriterLocks()
        metrics = MaintenanceMetrics(self.registry)
        with served(self.relay) as relay:
            driver = Driver(
                SparkSettings(listen="127.0.0.1:0", source=self.source.address, relay=relay, batch_seconds=0.2),
                self.catalog,
                (CANDLES, TRADES, SNAPSHOTS),
                stop=stop,
                on_ready=lambda name, now: self.ready.update({name: 1 if now else -1}),
                registry=self.registry,
                locks=locks,
                maintenance=MaintenanceRunner(self.catalog, MaintenanceSettings(interval_seconds=0.5), locks, metrics),
            )
            thread = threading.Thread(target=driver.drive, args=(spark,))
            thread.start()
            try:
                yield
            finally:
                stop.set()
                thread.join(240)
                self.source.stop()
            assert not thread.is_alive()

    def produce(self, topic: str, *records: Record) -> None:
        source = self.topics.get(topic, self.source.fake)
        for payload, headers in records:
            source.add(0, payload, "k", headers)

    def acked(self) -> bool:
        sources = [self.source.fake, *self.topics.values()]
        return all(each.committed == {p: end for p, end in each.ends.items() if end} for each in sources)


def test_one_driver_fills_three_tables_from_three_topics(
    spark: SparkSession, trading: CatalogSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_driver, "_IDLE_SECONDS", 2.0)
    parts = Realtime(trading)
    with parts.driving(spark):
        wait_until(lambda: parts.ready == {OHLC.name: 1, TICKS.name: 1, TICKERS.name: 1})
        names = [query.name or "" for query in spark.streams.active]
        parts.sent.send(0, 5)
        head = snapshots_head(job=3)
        parts.produce(TRADES.topic, *parts.sent.records)
        parts.produce("", page(control(0, 10)), final(control(0, 10), 10))
        parts.produce(SNAPSHOTS.topic, snapshots_record(head, [snapshot("A", last=1.0), snapshot("B")]))
        parts.produce(SNAPSHOTS.topic, final(replace(head, kind=Kind.FINAL), 2))
        wait_until(parts.acked)
        wait_until(lambda: len(spark.streams.active) <= 1)  # the queries of trades and snapshots end
        assert parts.ready == {OHLC.name: 1, TICKS.name: 1, TICKERS.name: 1}, "without a query they still serve"
        before = len(parts.sent.records)
        parts.sent.send_all()
        parts.produce(TRADES.topic, *parts.sent.records[before:])
        wait_until(parts.acked)
    assert len(names) <= 1, "no query of trades ran before there were any"
    parts.sent.check(trading)
    tables = trading.load()
    assert tables.load_table(OHLC.name).scan().count() == 10
    found = TICKERS.rows(tables.load_table(TICKERS.name).scan().to_arrow())
    assert [(row["ticker"], row["last"], row["dispatch"]) for row in found] == [
        ("A.BINANCE", 1.0, 3),
        ("B.BINANCE", None, 3),
    ]
    pages = [each for report in parts.relay.reports for each in report.pages]
    assert {decode_series(each.series) for each in pages} == {
        Series(TICKER, 60, datasets.CANDLES),
        Series(TICKER, 0, datasets.TRADES),
        Series(OTHER, 0, datasets.TRADES),
        Series("*.BINANCE", 0, datasets.TICKERS),
    }
    # a query that is stopped before the end of its batch repeats it when it starts again: the report, the count of rows
    assert {each.total_records for report in parts.relay.reports for each in report.finals} == {2, 10}
    assert not [row for part in read_coverage(tables) for row in COVERAGE.rows(part) if row["ticker"] == "*.BINANCE"]
    times = [decode_series(each.series).dataset for each in pages].count(datasets.TICKERS)
    assert parts.registry.get_sample_value("dexorder_spark_rows_total", {"table": TICKERS.name}) in (2, 2 * times)
    of_trades = state_of(tables.load_table(TICKS.name).metadata)
    assert [*of_trades.offsets] == [f"{parts.source.address}#{TRADES.topic}"], "each table has its own offsets"
