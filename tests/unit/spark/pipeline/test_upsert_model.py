"""The upsert of two drivers beside a foreign writer, compared with an obviously right model. Without Spark."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.table import Table
from pyiceberg.types import StringType

from dexorder_common.lake.commit_state import CommitState, state_of
from dexorder_common.lake.tables import OHLC
from dexorder_common.model.page import PageHeaders
from dexorder_spark.pipeline.ranges import KeyRange
from dexorder_spark.tables.ohlc import CANDLES
from tests.examples import few
from tests.fakes.pages import DAY, MINUTE_NS, control, page
from tests.fakes.pipeline import ns
from tests.fakes.staged import Load, commit_as_driver, files_of_pages, load_new

TICKERS = ("BTC/USDT.SIM", "ETH/USDT.SIM")
Row = tuple[tuple[int, int], float]


@dataclass(frozen=True)
class Sent:
    """A page: the candles of ``count`` minutes from ``first``, from page ``page`` of dispatch ``dispatch``."""

    ticker: str
    first: int
    count: int
    dispatch: int
    page: int

    @property
    def head(self) -> PageHeaders:
        return control(self.first, self.count, job=self.dispatch, page=self.page, ticker=self.ticker)

    @property
    def price(self) -> float:
        """A page with one number always has the same candles, as a repeated record has."""
        return 100.0 + self.dispatch * 10 + self.page

    def rows(self) -> dict[tuple[str, int], Row]:
        minutes = range(self.first, self.first + self.count)
        return {(self.ticker, minute): ((self.dispatch, self.page), self.price) for minute in minutes}


@dataclass
class Model:
    """A dictionary by key in which the larger (dispatch, page) stays."""

    rows: dict[tuple[str, int], Row] = field(default_factory=dict)

    def take(self, sent: Sent) -> None:
        for key, row in sent.rows().items():
            self.rows[key] = max(row, self.rows.get(key, ((0, 0), 0.0)))


def send(load: Load, batch: Sequence[Sent], between: Callable[[], object] = lambda: None) -> int:
    """Commit a batch; return how often another writer was faster."""
    records = [(sent.head, page(sent.head, sent.price)[0]) for sent in batch]
    ranges = [KeyRange((sent.ticker, 60), sent.head.span) for sent in batch]
    return commit_as_driver(load, CANDLES, records, ranges, between)[1]


pages_sent = st.builds(
    Sent,
    st.sampled_from(TICKERS),
    st.integers(0, 60),  # two months
    st.integers(1, 40),
    st.integers(1, 4),
    st.integers(0, 2),
)
batches = st.lists(pages_sent, min_size=1, max_size=4)


def found(table: Table) -> dict[tuple[str, int], Row]:
    rows = table.scan().to_arrow().to_pylist()
    by_key = {
        (row["ticker"], (ns(row["open_time"]) - DAY) // MINUTE_NS): ((row["dispatch"], row["page"]), row["open"])
        for row in rows
    }
    assert len(by_key) == len(rows), "a key is doubled"
    return by_key


@settings(max_examples=few(4), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(batches, batches, st.booleans()), min_size=1, max_size=4))
def test_two_drivers_and_replays_leave_what_the_model_says(steps: list[tuple[list[Sent], list[Sent], bool]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        load, model, lost = load_new(Path(folder), OHLC.name), Model(), 0
        for batch, theirs, again in steps:
            lost += send(load, batch, between=partial(send, load, theirs))
            if again:
                send(load, batch)
            for sent in (*batch, *theirs):
                model.take(sent)
        assert lost == len(steps), "every look of the first driver was out of date"
        assert found(load()) == model.rows


@pytest.fixture
def load(tmp_path: Path) -> Load:
    return load_new(tmp_path, OHLC.name)


def test_a_foreign_append_between_look_and_commit_doubles_nothing(load: Load) -> None:
    batch = [Sent(TICKERS[0], 0, 30, 2, 0)]

    def foreign() -> None:
        files_of_pages(load(), [batch[0].head], price=batch[0].price, commit=True)

    assert send(load, batch, between=foreign) == 1
    assert found(load()) == batch[0].rows()


def test_a_rewrite_keeps_columns_and_rows_of_others(load: Load) -> None:
    send(load, [Sent(TICKERS[0], 0, 20, 1, 0), Sent(TICKERS[1], 0, 20, 1, 1)])
    with load().update_schema() as change:
        change.add_column("note", StringType())
    rows = load().scan().to_arrow()
    noted = rows.set_column(rows.column_names.index("note"), "note", [["kept"] * rows.num_rows])
    with pytest.warns(UserWarning, match="Merge on read"):
        load().overwrite(noted)
    send(load, [Sent(TICKERS[0], 5, 5, 2, 0)])
    notes = load().scan().to_arrow().column("note").to_pylist()
    assert (notes.count("kept"), notes.count(None)) == (35, 5)
    assert len(found(load())) == 40


def test_a_replayed_batch_writes_no_row_and_keeps_its_state(load: Load) -> None:
    batch = [Sent(TICKERS[0], 0, 30, 2, 0)]
    send(load, batch)
    files = {task.file.file_path for task in load().scan().plan_files()}
    send(load, batch)
    assert {task.file.file_path for task in load().scan().plan_files()} == files
    assert state_of(load().metadata) == CommitState({"s": {0: 1}})
    data = Path(load().location().removeprefix("file://")) / "data"
    assert len([*data.rglob("*.parquet")]) == len(files), "files that are not needed are removed"
