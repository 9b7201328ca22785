"""Replacement of rows in a real table: what stays, and what a foreign commit in between does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField
from pyiceberg.transforms import IdentityTransform

from dexorder_common.lake.commit import CommitLost
from dexorder_common.lake.rewrite import replace_rows
from dexorder_common.lake.tables import OHLC, rows_in
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from tests.unit.services.relay.harness import TICKER, Pipeline, at, catalog_settings

WHERE = rows_in(Series(TICKER, 60), TimeRange(at(2), at(4)))
DAY = 1_440


def minutes(catalog: Catalog, ticker: str = TICKER) -> list[float]:
    """Return the minutes of the rows; a candle opens at the price of its minute."""
    rows = catalog.load_table(OHLC.name).scan(row_filter=f"ticker == '{ticker}'").to_arrow()
    return sorted(float(each) for each in rows["open"].to_numpy())


def files(folder: Path) -> set[Path]:
    return set((folder / "warehouse").rglob("*.parquet"))


@pytest.fixture
def catalog(tmp_path: Path) -> Any:
    found = catalog_settings(tmp_path).load()
    pipeline = Pipeline(found, None)
    pipeline.write([0, 1, 2, 3, 4, 40 * DAY])
    pipeline.write([2, 3], ticker="ETH/USDT.SIM")
    pipeline.write([2, 3])
    pipeline.write([50])
    yield found
    found.close()


def test_only_rows_that_match_are_replaced_and_only_their_files(catalog: Catalog, tmp_path: Path) -> None:
    before = files(tmp_path)
    table = catalog.load_table(OHLC.name)
    kept = table.scan(row_filter=WHERE).to_arrow().slice(0, 1)
    replace_rows(table, WHERE, kept, {"dexorder.repair": "why"})
    assert minutes(catalog) == [0, 1, kept["open"][0].as_py(), 4, 50, 40 * DAY]
    assert minutes(catalog, "ETH/USDT.SIM") == [2, 3]
    now = catalog.load_table(OHLC.name)
    snapshot = now.current_snapshot()
    assert snapshot is not None and snapshot.summary is not None and snapshot.summary["dexorder.repair"] == "why"
    live = {task.file.file_path.removeprefix("file://") for task in now.scan().plan_files()}
    assert len(live & {str(each) for each in before}) == 3, "the other month, the other market, the other minute"
    replace_rows(now, WHERE, kept.slice(0, 0), {})
    assert minutes(catalog) == [0, 1, 4, 50, 40 * DAY]
    everything = rows_in(Series(TICKER, 60), TimeRange(0, 2**63 - 1))
    replace_rows(catalog.load_table(OHLC.name), everything, kept, {})
    assert minutes(catalog) == [kept["open"][0].as_py()], "whole files go"


def test_a_commit_since_the_look_refuses_the_replacement_and_leaves_no_file(catalog: Catalog, tmp_path: Path) -> None:
    table = catalog.load_table(OHLC.name)
    Pipeline(catalog, None).write([3])
    before, rows = files(tmp_path), minutes(catalog)
    with pytest.raises(CommitLost):
        replace_rows(table, WHERE, table.scan(row_filter=WHERE).to_arrow(), {})
    assert (files(tmp_path), minutes(catalog)) == (before, rows)


def test_a_failure_whose_outcome_is_unknown_keeps_the_files(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit may have landed although its answer is lost: then the table names the files."""
    commit = type(catalog).commit_table

    def lost(*values: Any) -> Any:
        commit(*values)
        raise OSError("connection reset")

    monkeypatch.setattr(type(catalog), "commit_table", lost)
    table = catalog.load_table(OHLC.name)
    with pytest.raises(OSError, match="reset"):
        replace_rows(table, WHERE, table.scan(row_filter=WHERE).to_arrow().slice(0, 0), {})
    assert minutes(catalog) == [0, 1, 4, 50, 40 * DAY]


def test_files_of_an_older_partition_spec_and_further_columns_are_kept(catalog: Catalog) -> None:
    table = catalog.load_table(OHLC.name)
    with table.update_spec() as spec:
        spec.add_field("period_seconds", IdentityTransform(), "period")
    with table.update_schema() as schema:
        schema.add_column("note", OHLC.schema.find_field("ticker").field_type)
    table = catalog.load_table(OHLC.name)
    assert any(isinstance(each, PartitionField) and each.name == "period" for each in table.spec().fields)
    replace_rows(table, WHERE, table.scan(row_filter=WHERE).to_arrow().slice(0, 0), {})
    assert minutes(catalog) == [0, 1, 4, 50, 40 * DAY]
    assert catalog.load_table(OHLC.name).scan().to_arrow()["note"].null_count == 7


def test_a_large_file_is_copied_in_batches(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 300_000
    Pipeline(catalog, None).write(range(100, 100 + count), ticker="BIG/USDT.SIM")
    where = rows_in(Series("BIG/USDT.SIM", 60), TimeRange(at(500), at(501)))
    table = catalog.load_table(OHLC.name)
    replace_rows(table, where, pa.table({}), {})
    assert len(minutes(catalog, "BIG/USDT.SIM")) == count - 1
