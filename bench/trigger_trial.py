"""Where triggers may run beside the driver's host: in Spark's executors, or in processes with a journal.

    .venv/bin/python -m bench.trigger_trial [--triggers 1000] [--tickers 20] [--batches 12]

Both evaluate one closed candle of each market a batch with the product's engine. Spark: `transformWithState` by market,
whose state is the engine's own, in RocksDB. Process: the engine in memory and a record of the journal, synced. Times
are from the batch's rows to its events, without reading from Kafka and without the report to the relay.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from bench.cep import KINDS, candles, compiled
from dexorder_cep import Engine, EngineState
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.market_rows import Row
from dexorder_spark.cep.files import FolderFiles
from dexorder_spark.cep.inputs import Feed
from dexorder_spark.cep.journal import Journal, JournalBatch, Snapshot
from dexorder_spark.config import SparkSettings
from dexorder_spark.runtime.session import build_session
from tests.rig import report

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import SparkSession

WARM = 25
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SCHEMA = "ticker string, candle string"


def engine_of(triggers: int, tickers: Sequence[str] | None = None) -> Engine:
    """Return an engine with triggers of ten kinds on all markets, or on some."""
    rng, kinds, engine = random.Random(25), list(KINDS), Engine()
    for number in range(triggers):
        engine.add(f"t{number}", 1, compiled(kinds[number % len(kinds)], rng), 0, tickers)
    return engine


def walks(tickers: int, batches: int) -> dict[str, list[Row]]:
    """Return the candles of each market."""
    rng = random.Random(7)
    return {f"T{number}/USDT.SIM": candles(rng, WARM + batches) for number in range(tickers)}


class Evaluated(StatefulProcessor):
    """The engine of one market as Spark's state. Loaded for each batch: a worker may have any market next."""

    def __init__(self, triggers: int) -> None:
        self._triggers = triggers

    def init(self, handle: StatefulProcessorHandle) -> None:
        """See `StatefulProcessor`."""
        self._shared = handle.getValueState("triggers", "state binary")
        self._own = handle.getValueState("market", "state binary")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        """See `StatefulProcessor`."""
        import pandas as pd

        (ticker,) = key
        shared: Any = self._shared.get()
        own: Any = self._own.get()
        if shared and own:
            engine = Engine.load(EngineState(bytes(shared[0]), {ticker: bytes(own[0])}))
        else:
            engine = engine_of(self._triggers, [ticker])
        fired = 0
        for frame in rows:
            for text in frame["candle"]:
                fired += len(engine.feed_candles(ticker, 60, [tuple(each) for each in json.loads(text)]))
        state = engine.dump()
        self._shared.update((state.triggers,))
        self._own.update((state.tickers[ticker],))
        yield pd.DataFrame({"ticker": [ticker], "events": [fired]})

    def close(self) -> None:
        """See `StatefulProcessor`."""


def by_spark(session: SparkSession, folder: Path, triggers: int, series: dict[str, list[Row]], batches: int) -> Any:
    """Return the seconds of each batch, and the events of all."""
    source, events = folder / "candles", list[int]()
    source.mkdir()
    session.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    session.conf.set("spark.sql.shuffle.partitions", str(session.sparkContext.defaultParallelism))
    stream = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(source))
    evaluated = stream.groupBy("ticker").transformWithStateInPandas(
        statefulProcessor=Evaluated(triggers),
        outputStructType="ticker string, events long",
        outputMode="Append",
        timeMode="None",
    )

    def done(frame: Any, _: int) -> None:
        events.append(sum(row["events"] for row in frame.collect()))

    writer = evaluated.writeStream.foreachBatch(done).option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(processingTime="0 seconds").start()
    took = []
    try:
        for number in range(batches + 1):
            chosen = slice(0, WARM) if number == 0 else slice(WARM + number - 1, WARM + number)
            lines = [json.dumps({"ticker": t, "candle": json.dumps(rows[chosen])}) for t, rows in series.items()]
            began = time.perf_counter()
            (folder / "next.json").write_text("\n".join(lines))
            (folder / "next.json").rename(source / f"{number}.json")
            while len(events) <= number:
                if query.exception():
                    raise AssertionError(str(query.exception())[:2_000])
                time.sleep(0.002)
            took.append(time.perf_counter() - began)
    finally:
        query.stop()
    return took[1:], sum(events[1:])


def by_process(folder: Path, triggers: int, series: dict[str, list[Row]], batches: int) -> Any:
    """Return the seconds of each batch with its record in the journal, and the events of all."""
    journal = Journal(FolderFiles(folder))
    engine = engine_of(triggers)
    for ticker, rows in series.items():
        engine.feed_candles(ticker, 60, rows[:WARM])
    journal.snapshot(Snapshot(0, None, {}, {}, engine.dump()))
    took, events = [], 0
    for number in range(batches):
        began = time.perf_counter()
        inputs = tuple(Feed(t, 60, [rows[WARM + number]], 0, None, None) for t, rows in series.items())
        fired = [each for t, rows in series.items() for each in engine.feed_candles(t, 60, [rows[WARM + number]])]
        journal.append(JournalBatch(number + 1, None, {}, inputs, ()))
        events += len(fired)
        took.append(time.perf_counter() - began)
    return took, events


def main() -> None:
    """Run both, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--triggers", type=int, nargs="+", default=[1_000])
    parser.add_argument("--tickers", type=int, default=20)
    parser.add_argument("--batches", type=int, default=12)
    options = parser.parse_args()
    print(report.heading("Triggers in Spark's executors, and in a process with a journal"), flush=True)
    rows = []
    series = walks(options.tickers, options.batches)
    for triggers in options.triggers:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "journal").mkdir()
            ours, events = by_process(folder / "journal", triggers, series, options.batches)
            session = build_session(
                SparkSettings(listen="127.0.0.1:0", metrics_listen=""), CatalogSettings.local(folder)
            )
            spark, as_many = by_spark(session, folder, triggers, series, options.batches)
            session.stop()
        assert events == as_many, (events, as_many)
        what = f"{triggers:,} triggers, {options.tickers} markets, {events:,} events: a batch of one candle each"
        rows.append(
            report.Row(
                what,
                f"process {median(ours):.3f} s, worst {max(ours):.3f} s",
                f"Spark {median(spark):.3f} s, worst {max(spark):.3f} s",
                f"{median(spark) / median(ours):.1f}",
            )
        )
    print(report.table("From the rows to the events", rows))


if __name__ == "__main__":
    main()
