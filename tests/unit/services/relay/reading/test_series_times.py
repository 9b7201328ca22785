"""Open times from an index of files: the same rows as a scan of the table, each file read once for all its series."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO

from dexorder_common.lake.tables import OHLC, rows_in
from dexorder_common.model.errors import Unavailable
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_relay.reading import series_times
from dexorder_relay.reading.data_files import KEEP_SECONDS, Bounds, KeyFile, SnapshotFiles
from dexorder_relay.reading.rows import CandleRows
from dexorder_relay.reading.series_times import SeriesTimes, open_times
from tests.unit.services.relay.harness import Pipeline, at, span

LONG = "A-TICKER-WHOSE-BOUNDS-ARE-CUT"
TICKERS = ["BTC/USDT.SIM", "ETH/USDT.SIM", f"{LONG}-1/USDT.SIM", f"{LONG}-2/USDT.SIM", "Ü/USDT.SIM", "𝒳/USDT.SIM"]
MONTH = 45_000
"""Minutes, more than a month."""


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return SqlCatalog("test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the paths of the files whose key columns were decoded as a whole."""
    found, read = list[str](), series_times._read

    def noted(io: FileIO, path: str) -> series_times.FileTimes:
        found.append(path)
        return read(io, path)

    monkeypatch.setattr(series_times, "_read", noted)
    return found


class Seconds:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def times(catalog: Catalog, kept: SeriesTimes, ticker: str, part: TimeRange, period_seconds: int = 60) -> list[int]:
    table = OHLC.load(catalog)
    current = table.current_snapshot() if table else None
    rows = CandleRows(table, current.snapshot_id if current else None, series_times=kept)
    return sorted(rows.times(Series(ticker, period_seconds), part).tolist())


@pytest.mark.filterwarnings("ignore:Merge on read is not yet supported")
def test_the_rows_are_those_of_a_scan_whatever_was_written_and_deleted(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, kept, pipeline = Random(7), SeriesTimes(), Pipeline(catalog, None)
    table, limits = OHLC.load_or_create(catalog), [series_times.KEPT_FILE_ROWS, 3]
    for step in range(5):
        parts = []
        for ticker in random.sample(TICKERS, 5):
            minutes = [random.choice([0, MONTH]) + random.randrange(20) for _ in range(6)]
            parts.append(pipeline.rows(minutes, ticker, period_seconds=random.choice([60, 300])))
        together = pa.concat_tables(parts)
        table.append(together.take(random.sample(range(len(together)), len(together))))  # series alternate in a file
        if step == 2:
            table.delete(rows_in(Series(random.choice(TICKERS), 60), span(3, MONTH + 10)))
        there = table.scan().to_arrow()
        rows = list(zip(*(there[each].to_pylist() for each in OHLC.key[:2]), open_times(there).tolist(), strict=True))
        monkeypatch.setattr(series_times, "KEPT_FILE_ROWS", limits[step % 2])  # larger files are not kept
        for ticker, period_seconds in product(TICKERS, (60, 300)):
            part = random.choice([span(0, 20), span(5, 6), span(7, MONTH + 9), span(MONTH, MONTH + 20), span(9, 9)])
            expected = [t for *key, t in rows if key == [ticker, period_seconds] and part.start_ns <= t < part.end_ns]
            assert times(catalog, kept, ticker, part, period_seconds) == sorted(expected), (step, ticker, part)


def test_the_first_and_the_last_nanosecond_of_a_range_decide(catalog: Catalog) -> None:
    Pipeline(catalog, None).write([3])
    cases = {(at(3), at(3) + 1): [at(3)], (at(3) + 1, at(4)): [], (at(2), at(3)): [], (at(2), at(3) + 1): [at(3)]}
    for ends, expected in cases.items():
        assert times(catalog, SeriesTimes(), "BTC/USDT.SIM", TimeRange(*ends)) == expected


def test_a_file_is_read_once_for_all_its_series_and_only_new_files_for_the_next_snapshot(
    catalog: Catalog, reads: list[str]
) -> None:
    pipeline, kept = Pipeline(catalog, None), SeriesTimes()
    table = OHLC.load_or_create(catalog)
    table.append(_of_all(pipeline, [1, 2]))
    for _ in range(3):
        assert all(times(catalog, kept, each, span(0, 9)) == [at(1), at(2)] for each in TICKERS)
    first = list(reads)
    assert len(first) == len(set(first)) == len(list(table.scan().plan_files())) < len(TICKERS)
    pipeline.write([5], TICKERS[0])
    assert times(catalog, kept, TICKERS[0], span(0, 9)) == [at(1), at(2), at(5)]
    assert len(reads) == len(first) + 1


def test_files_without_the_series_are_not_read(catalog: Catalog, reads: list[str]) -> None:
    pipeline = Pipeline(catalog, None)
    pipeline.write([1], "BTC/USDT.SIM")
    pipeline.write([1], "ETH/USDT.SIM")
    pipeline.write([1], "BTC/USDT.SIM", period_seconds=300)
    pipeline.write([MONTH], "BTC/USDT.SIM")
    assert times(catalog, SeriesTimes(), "BTC/USDT.SIM", span(0, 9)) == [at(1)]
    assert len(reads) == 1


@pytest.mark.parametrize("lost", ["data/**/*.parquet", "metadata/*-m0.avro"])
def test_a_file_that_is_lost_is_noticed_after_some_seconds(tmp_path: Path, catalog: Catalog, lost: str) -> None:
    clock = Seconds()
    kept = SeriesTimes(clock)
    Pipeline(catalog, None).write([1])
    assert times(catalog, kept, "BTC/USDT.SIM", span(0, 9)) == [at(1)]
    (file,) = tmp_path.rglob(lost)
    file.unlink()
    clock.now = KEEP_SECONDS
    for _ in range(2):
        with pytest.raises(Unavailable, match=file.name):
            times(catalog, kept, "BTC/USDT.SIM", span(0, 9))


def test_a_file_that_could_not_be_read_is_read_again_at_once(tmp_path: Path, catalog: Catalog) -> None:
    kept = SeriesTimes(lambda: 0.0)
    Pipeline(catalog, None).write([1])
    (file,) = tmp_path.rglob("*.parquet")
    away = file.rename(tmp_path / "away")
    with pytest.raises(Unavailable):
        times(catalog, kept, "BTC/USDT.SIM", span(0, 9))
    away.rename(file)
    assert times(catalog, kept, "BTC/USDT.SIM", span(0, 9)) == [at(1)]


def test_no_more_rows_are_kept_than_the_bound(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, reads: list[str]
) -> None:
    monkeypatch.setattr(series_times, "KEPT_ROWS", 5)
    kept, pipeline = SeriesTimes(lambda: 0.0), Pipeline(catalog, None)
    for ticker in ("ADA/USDT.SIM", "BTC/USDT.SIM", "ETH/USDT.SIM"):
        pipeline.write([1, 2], ticker)
    for ticker in ("ADA/USDT.SIM", "BTC/USDT.SIM", "BTC/USDT.SIM", "ETH/USDT.SIM", "BTC/USDT.SIM", "ADA/USDT.SIM"):
        assert times(catalog, kept, ticker, span(0, 9)) == [at(1), at(2)]
        assert sum(each.rows for each in kept._kept.values()) == kept._rows <= 5
    assert len(reads) == 4, "ADA's file is read again, as the other two leave no room for it"


def test_deleted_rows_of_a_partition_concern_its_series_only() -> None:
    def file(name: str, day: int, tickers: tuple[str | None, str | None]) -> KeyFile:
        return KeyFile(name, 1, (0, (day,)), None, Bounds(*tickers), Bounds(60, 60), Bounds(None, None))

    files = SnapshotFiles([file("a", 1, ("ADA", "BTC")), file("b", 2, ("ETH", None))], frozenset({(0, (2,))}))
    assert [each.path for each in files.of(Series("BTC", 60), span(0, 9)) or ()] == ["a"]
    assert files.of(Series("ETH", 60), span(0, 9)) is None, "a reader has to apply what is deleted"


def _of_all(pipeline: Pipeline, minutes: list[int]) -> pa.Table:
    return pa.concat_tables([pipeline.rows(minutes, each) for each in TICKERS])
