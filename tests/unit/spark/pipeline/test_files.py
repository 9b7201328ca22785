"""Pages to data files of the table, and the files into the table; without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.commit import commit_files, remove_files
from dexorder_common.lake.tables import OHLC
from dexorder_spark.pipeline import files
from dexorder_spark.pipeline.controls import DECODED, FILE_KIND, LETTERS_KIND, PAGE_KIND
from dexorder_spark.pipeline.decode import decode_batches
from dexorder_spark.pipeline.files import FileLayout, FileWriter, Stage, read_columns, unpack
from dexorder_spark.records.dead_letters import LetterLayout
from dexorder_spark.tables.ohlc import CANDLES
from tests.fakes.pages import Record, control, page, raw
from tests.fakes.staged import stored

OTHER = "ETH/USDT.BINANCE"


@pytest.fixture
def table(catalog: CatalogSettings) -> Table:
    return catalog.load().load_table(OHLC.name)


def decoded(*records: Record) -> list[pa.RecordBatch]:
    pages: list[pa.RecordBatch] = []
    list(decode_batches(CANDLES, [raw(*records)], pages.append, lambda record, reason: None))
    return pages


def written(table: Table, pages: list[pa.RecordBatch]) -> list[DataFile]:
    writer = FileWriter(FileLayout.of(CANDLES, table))
    for each in pages:
        writer.add(each)
    writer.flush()
    return writer.written


def rows(found: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(zip(*(found.column(name).to_pylist() for name in OHLC.arrow.names), strict=True), key=lambda r: r[:3])


def work(table: Table) -> Stage:
    return Stage(FileLayout.of(CANDLES, table), LetterLayout.of("test", table.catalog))


def test_files_have_the_partitions_that_pyiceberg_gives_them_and_are_sorted_by_key(table: Table) -> None:
    pages = decoded(page(control(20, 30)), page(control(0, 20)), page(control(5, 40, ticker=OTHER)))
    ours = written(table, pages)
    assert [file.record_count for file in ours] == [30, 20, 25, 15]  # before and after midnight, of each ticker
    for file in ours:
        keys = list(
            zip(*read_columns(FileLayout.of(CANDLES, table), [file], OHLC.key).to_pydict().values(), strict=True)
        )
        assert keys == sorted(keys)
    assert table.refresh().current_snapshot() is None, "they are invisible"
    commit_files(table, added=ours)
    table.refresh().append(pa.Table.from_batches(pages))
    found = table.inspect.files().to_pylist()
    mine = {file.file_path for file in ours}
    parts = [
        sorted((str(f["partition"]), f["record_count"]) for f in found if (f["file_path"] in mine) is is_mine)
        for is_mine in (True, False)
    ]
    assert parts[0] == parts[1]


def test_an_append_shows_all_rows_with_bounds_that_a_scan_can_use(table: Table) -> None:
    pages = decoded(page(control(0, 50)), page(control(0, 50, ticker=OTHER)))
    commit_files(table, added=written(table, pages))
    assert rows(table.refresh().scan().to_arrow()) == rows(pa.Table.from_batches(pages))
    assert table.scan("ticker == 'ETH/USDT.BINANCE' and open_time < '2024-02-01T00:00:00+00:00'").count() == 30
    tasks = table.scan("open_time >= '2024-02-01T00:00:00+00:00'").plan_files()
    assert sum(task.file.record_count for task in tasks) == 40, "the files of January are not opened"


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.integers(-100_000, 100_000), st.integers(1, 300), st.sampled_from(["A.X", "B.X", "C.Y"])),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 400),
)
def test_no_row_is_lost_for_any_pages_and_any_buffer(
    table: Table, some: list[tuple[int, int, str]], limit: int
) -> None:
    pages = decoded(*(page(control(first, count, ticker=ticker)) for first, count, ticker in some))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "MAX_BUFFERED_ROWS", limit)
        ours = written(table, pages)
    assert sum(file.record_count for file in ours) == sum(each.num_rows for each in pages)
    assert rows(read_columns(FileLayout.of(CANDLES, table), ours, tuple(OHLC.arrow.names))) == rows(
        pa.Table.from_batches(pages)
    )


def test_a_task_returns_its_control_rows_and_its_files(table: Table) -> None:
    batches = list(work(table).run([raw(page(control(0, 50))), raw(page(control(50, 5)), (b"?", {}))]))
    assert all(batch.schema == DECODED for batch in batches)
    found = [row for batch in batches for row in batch.to_pylist()]
    assert [row["kind"] for row in found] == [PAGE_KIND, PAGE_KIND, "refused", FILE_KIND, FILE_KIND, LETTERS_KIND]
    commit_files(table, added=[unpack(row["file"]) for row in found if row["kind"] == FILE_KIND])
    assert table.refresh().scan().count() == 55


def test_a_task_without_candles_writes_no_file_of_them(table: Table) -> None:
    assert [row["kind"] for batch in work(table).run([raw((b"?", {}))]) for row in batch.to_pylist()] == [
        "refused",
        LETTERS_KIND,
    ]
    assert not stored(table)


def test_a_task_that_fails_leaves_no_file(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_BUFFERED_ROWS", 1)

    def given() -> Iterator[pa.RecordBatch]:
        yield raw(page(control(0, 5)))
        assert stored(table)
        raise OSError("the source is gone")

    with pytest.raises(OSError, match="gone"):
        list(work(table).run(given()))
    assert not stored(table)


def test_missing_files_can_be_removed(table: Table) -> None:
    ours = written(table, decoded(page(control(0, 5))))
    for _ in range(2):
        remove_files(table.io, ours)
    assert not stored(table)


def test_a_layout_is_sent_to_a_worker_without_the_tables_history(table: Table) -> None:
    small = len(pickle.dumps(FileLayout.of(CANDLES, table)))
    for minute in range(3):
        commit_files(table.refresh(), added=written(table, decoded(page(control(minute, 1)))))
    sent: FileLayout = pickle.loads(pickle.dumps(FileLayout.of(CANDLES, table.refresh())))
    assert len(pickle.dumps(sent)) < small + 500
    assert sent.metadata.schema() == table.schema()
