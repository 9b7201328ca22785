"""Merge of small files, with pyiceberg alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog
from pyiceberg.table.snapshots import Operation

from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.commit import CommitLost, append_rows, remove_files
from dexorder_common.lake.rewrite import replace_rows
from dexorder_common.lake.tables import COVERAGE, TICKS, rows_in, writable
from dexorder_common.model.datasets import TRADES
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_spark.maintenance.merge import MIN_FILES, RATIO, count_to_merge, merge_small_files

DAY_US = 86_400_000_000
MIB = 1024 * 1024


@given(st.lists(st.integers(1, 10), min_size=1, max_size=400), st.integers(1, 8))
def test_the_number_of_files_grows_with_the_logarithm_of_their_size(sizes: list[int], at_once: int) -> None:
    """Files come one by one, and are merged after each few of them."""
    files, rewritten = list[int](), 0
    for number, size in enumerate(sizes, 1):
        files = sorted([*files, size])
        if number % at_once == 0 and (count := count_to_merge(files, MIB)):
            assert count >= MIN_FILES
            rewritten += sum(files[:count])
            files = sorted([sum(files[:count]), *files[count:]])
        steps = math.log(sum(files), RATIO)
        assert len(files) <= at_once + MIN_FILES + steps
    assert rewritten <= (MIN_FILES + 2 * RATIO * math.log2(sum(sizes) + 1)) * sum(sizes)


def test_fresh_files_beside_a_large_one_are_merged_without_it() -> None:
    assert count_to_merge([1, 1, 1, 3 * RATIO + 1], MIB) == 3
    assert count_to_merge([1, 1, 1, 3 * RATIO], MIB) == 4
    assert count_to_merge([1, 1, 2 * RATIO + 1], MIB) == 0
    assert count_to_merge([5, 5, 5, 5, 5], 20) == 4, "no more than the limit"
    assert count_to_merge([], MIB) == 0


def trades(first: int, count: int, ticker: str = "BTC/USDT.SIM", day: int = 20_000) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "ticker": ticker,
                "trade_id": str(number),
                "time": day * DAY_US + number,
                "price": 1.0 + number,
                "amount": 1.0,
                "side": "buy",
                "received_at": None,
                "dispatch": 1,
            }
            for number in range(first, first + count)
        ],
        schema=TICKS.arrow,
    )


def append(tables: Catalog, rows: pa.Table) -> None:
    table = tables.load_table(TICKS.name)
    table.metadata = writable(table.metadata)
    append_rows(table, rows)


def merge(tables: Catalog, alone: Callable[[], Any] = nullcontext) -> int:
    return merge_small_files(tables, TICKS, max_bytes=MIB, alone=alone)


def ids(tables: Catalog) -> list[str]:
    return in_order(tables.load_table(TICKS.name).scan().to_arrow())


def in_order(rows: pa.Table) -> list[str]:
    return sorted(map(str, rows.column("trade_id").to_pylist()), key=int)


def files(tables: Catalog) -> list[str]:
    return [task.file.file_path for task in tables.load_table(TICKS.name).scan().plan_files()]


def test_the_files_of_each_partition_become_one_with_the_same_rows_in_order(catalog: CatalogSettings) -> None:
    tables = catalog.load()
    for number in reversed(range(5)):
        append(tables, pa.concat_tables([trades(number, 1), trades(100 + number, 1, day=20_001)]))
    append(tables, trades(200, 1, day=20_002))
    table = tables.load_table(TICKS.name)
    before, rows = table.metadata.current_snapshot_id, ids(tables)
    assert merge(tables) == 8
    assert (ids(tables), len(files(tables))) == (rows, 3)
    after = tables.load_table(TICKS.name)
    snapshot = after.current_snapshot()
    assert snapshot and snapshot.summary and snapshot.summary.operation is Operation.REPLACE
    assert snapshot.summary["total-records"] == "11"
    assert len(snapshot.manifests(after.io)) == 1
    old = after.scan(snapshot_id=before).to_arrow()
    assert in_order(old) == rows, "who reads the snapshot before still can"
    span = TimeRange(20_000 * 86_400 * SECOND_NS, 20_001 * 86_400 * SECOND_NS)
    found = after.scan(rows_in(Series("BTC/USDT.SIM", dataset=TRADES), span)).to_arrow()
    assert found.column("trade_id").to_pylist() == ["0", "1", "2", "3", "4"], "in the table's order"
    assert merge(tables) == 0


def test_a_batch_that_commits_meanwhile_stays(catalog: CatalogSettings) -> None:
    tables = catalog.load()
    for number in range(4):
        append(tables, trades(number, 1))

    @contextmanager
    def alone() -> Iterator[None]:
        append(catalog.load(), trades(9, 1))
        yield

    assert merge(tables, alone) == 3
    assert ids(tables) == ["0", "1", "2", "3", "9"]


def test_files_that_changed_meanwhile_are_not_replaced(catalog: CatalogSettings) -> None:
    tables = catalog.load()
    for number in range(4):
        append(tables, trades(number, 1))

    @contextmanager
    def alone() -> Iterator[None]:
        table = catalog.load().load_table(TICKS.name)
        table.metadata = writable(table.metadata)
        span = TimeRange(20_000 * 86_400 * SECOND_NS, 20_000 * 86_400 * SECOND_NS + 1_000)
        replace_rows(table, rows_in(Series("BTC/USDT.SIM", dataset=TRADES), span), trades(77, 1), {})
        yield

    assert merge(tables, alone) == 0
    assert ids(tables) == ["1", "2", "3", "77"]
    assert len(files(tables)) == 4


def test_a_lost_commit_leaves_no_file(catalog: CatalogSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = catalog.load()
    for number in range(4):
        append(tables, trades(number, 1))
    written: list[str] = []

    def lose(*given: object, **named: object) -> int:
        raise CommitLost("another process")

    def remember(io: Any, gone: Any) -> None:
        gone = list(gone)
        written.extend(file.file_path for file in gone)
        remove_files(io, gone)

    monkeypatch.setattr("dexorder_spark.maintenance.merge.commit_files", lose)
    monkeypatch.setattr("dexorder_spark.maintenance.merge.remove_files", remember)
    with pytest.raises(CommitLost):
        merge(tables)
    assert len(written) == 1 and not set(written) & set(files(tables))
    assert ids(tables) == ["0", "1", "2", "3"]


def test_a_table_without_rows_or_that_does_not_exist_is_left_alone(catalog: CatalogSettings) -> None:
    assert merge(catalog.load()) == 0
    tables = catalog.load()
    tables.drop_table(COVERAGE.name)
    assert merge_small_files(tables, COVERAGE, max_bytes=MIB, alone=nullcontext) == 0


def test_rows_are_reduced(catalog: CatalogSettings) -> None:
    tables = catalog.load()
    for number in range(4):
        append(tables, trades(number, 1))

    def reduce(rows: pa.Table) -> pa.Table:
        return rows.filter(pc.field("trade_id") != "2")

    assert merge_small_files(tables, TICKS, max_bytes=MIB, alone=nullcontext, reduce=reduce) == 3
    assert ids(tables) == ["0", "1", "3"]
