"""Rows that a repair keeps and removes, by examples, and whole repairs on a real table."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.lake.rewrite import replace_rows
from dexorder_common.lake.tables import OHLC, rows_in
from dexorder_common.model.errors import Unavailable
from dexorder_common.model.periods import open_times
from dexorder_relay.verification import mending
from dexorder_relay.verification.mending import TableMender, choose
from tests.unit.services.relay.harness import SERIES, TICKER, Pipeline, at, candle, catalog_settings, moment, span


def row(minute: int, dispatch: int | None = None, *, close: float | None = None, seconds: int = 0) -> dict[str, Any]:
    values = {"ticker": TICKER, "period_seconds": 60, "fetched_at": moment(0), "dispatch": dispatch, "page": 0}
    opens = moment(minute).replace(second=seconds)
    return {**values, "open_time": opens, **candle(minute), **({} if close is None else {"close": close})}


def table(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=OHLC.arrow)


def closes(found: pa.Table) -> list[tuple[int, float]]:
    return [(each["open_time"].minute, each["close"]) for each in found.to_pylist()]


def test_of_duplicates_the_largest_version_stays() -> None:
    found = table(row(1, 7, close=7.0), row(0), row(1, 9, close=9.0), row(1, close=0.0))
    choice = choose(found, [], 60)
    assert closes(choice.kept) == [(0, 1.0), (1, 9.0)]
    assert (choice.removed, choice.unsure) == (2, []), "the versions decide, so nothing is unsure"


def test_copies_of_one_version_with_other_values_are_unsure() -> None:
    equal = [row(1), row(1), row(3, 5), row(3, 5)]
    assert choose(table(*equal), [], 60).unsure == [], "a null is equal to a null"
    found = table(*equal, row(1, close=0.5), row(2, 4), row(2, 4, close=0.5), row(2, 3, close=9.9))
    choice = choose(found, [], 60)
    assert choice.unsure == [span(1, 3)]
    assert (choice.kept.num_rows, choice.removed) == (7, 1), "they stay until their range is retracted"
    mended = choose(found, choice.unsure, 60, choice.condemned)
    assert (closes(mended.kept), mended.removed) == ([(3, 4.0)], 7)
    null = row(2) | {"trades": None}
    assert choose(table(row(2), null), [], 60).unsure == [span(2, 3)]


def test_rows_off_the_grid_and_in_verified_empty_ranges_go() -> None:
    found, void = table(row(1), row(1, seconds=30), row(2, 3), row(4)), [span(2, 3)]
    condemned = choose(found, void, 60).condemned
    assert condemned == {(at(2), 3, 0)}
    choice = choose(found, void, 60, condemned)
    assert ([minute for minute, _ in closes(choice.kept)], choice.removed) == ([1, 4], 2)


def test_rows_that_came_after_the_look_stay() -> None:
    condemned = choose(table(row(2, 3)), [span(2, 4)], 60).condemned
    later = choose(table(row(2, 3), row(2, 8, close=8.0), row(3, 8)), [span(2, 4)], 60, condemned)
    assert closes(later.kept) == [(2, 8.0), (3, 4.0)]
    assert choose(table(), [span(2, 4)], 60, condemned).removed == 0


@given(
    rows=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3), st.integers(0, 1)), max_size=40),
    void=st.lists(st.integers(0, 20), max_size=5),
)
def test_one_row_for_each_period_stays_and_it_is_of_the_largest_version(
    rows: list[tuple[int, int, int]], void: list[int]
) -> None:
    found = table(*(row(minute, dispatch, close=float(close)) for minute, dispatch, close in rows))
    spans = [span(each, each + 1) for each in void]
    choice = choose(found, spans, 60)
    best = {minute: max(d for m, d, _ in rows if m == minute) for minute, _, _ in rows}
    unsure = {m for m, d in best.items() if len({c for n, e, c in rows if (n, e) == (m, d)}) > 1}
    mended = choose(found, [*spans, *choice.unsure], 60, choice.condemned)
    kept = {each["open_time"].minute: each["dispatch"] for each in mended.kept.to_pylist()}
    assert kept == {minute: d for minute, d in best.items() if minute not in {*void, *unsure}}
    assert mended.kept.num_rows == len(kept) and mended.removed == len(rows) - len(kept)
    assert sorted(time for each in choice.unsure for time in open_times(each, 60)) == sorted(map(at, unsure))


@pytest.fixture
def pipeline(tmp_path: Path) -> Any:
    catalog = catalog_settings(tmp_path).load()
    yield Pipeline(catalog, None)
    catalog.close()


def stored(pipeline: Pipeline) -> pa.Table:
    found = pipeline.catalog.load_table(OHLC.name).scan(row_filter=rows_in(SERIES, span(0, 60))).to_arrow()
    return found.sort_by("open_time")


def test_each_window_is_mended_by_its_own_commit_and_others_are_not_touched(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mending, "WINDOW_PERIODS", 10)
    pipeline.write(range(40))
    pipeline.write([3, 5, 31])
    before = len(pipeline.catalog.load_table(OHLC.name).snapshots())
    mender = TableMender(pipeline.catalog)
    look = mender.look(SERIES, [span(3, 4), span(5, 6), span(31, 32)], [])
    assert look.windows == [span(3, 6), span(31, 32)]
    assert mender.mend(look, [], "why") == 3
    snapshots = pipeline.catalog.load_table(OHLC.name).snapshots()
    assert [each.summary and each.summary["dexorder.repair"] for each in snapshots[before:]] == ["why", "why"]
    assert closes(stored(pipeline)) == [(minute, candle(minute)["close"]) for minute in range(40)]
    assert mender.mend(look, [], "again") == 0 and len(pipeline.catalog.load_table(OHLC.name).snapshots()) == before + 2


def test_a_commit_between_look_and_removal_is_looked_at(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """A foreign writer doubles another row just before our commit: both are mended, and its other row stays."""
    pipeline.write([*range(5), 2])
    mender, replace, tries = TableMender(pipeline.catalog), replace_rows, list[int]()

    def slow(*values: Any) -> None:
        tries.append(1)
        if len(tries) == 1:
            pipeline.write([2, 7])
        replace(*values)

    monkeypatch.setattr(mending, "replace_rows", slow)
    assert mender.mend(mender.look(SERIES, [span(2, 3)], []), [], "why") == 2
    assert (len(tries), [minute for minute, _ in closes(stored(pipeline))]) == (2, [0, 1, 2, 3, 4, 7])


def test_writers_that_are_always_faster_make_it_unavailable(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.write([1, 1])
    mender, replace = TableMender(pipeline.catalog), replace_rows
    monkeypatch.setattr(mending, "ATTEMPTS", 2)
    monkeypatch.setattr(mending, "replace_rows", lambda *values: (pipeline.write([9]), replace(*values)))
    look = mender.look(SERIES, [span(1, 2)], [])
    with pytest.raises(Unavailable, match=r"other writers committed first, 2 times in a row; verify again"):
        mender.mend(look, [], "why")
    assert [minute for minute, _ in closes(stored(pipeline))] == [1, 1, 9, 9]


def test_pages_that_are_appended_during_repairs_are_not_lost(tmp_path: Path, pipeline: Pipeline) -> None:
    """Another writer appends pages while one repair after the other removes duplicates: 0 lost, 0 doubled."""
    pages, late = 12, list[Exception]()

    def append() -> None:
        catalog = catalog_settings(tmp_path).load()
        try:
            for number in range(1, pages):
                Pipeline(catalog, None).write([*range(number * 5, number * 5 + 5), number * 5])
        except Exception as error:
            late.append(error)
        finally:
            catalog.close()

    pipeline.write([*range(5), 0])
    writer = threading.Thread(target=append)
    writer.start()
    mender, removed, whole = TableMender(pipeline.catalog), 0, [span(0, pages * 5)]
    while writer.is_alive() or removed < pages:
        removed += mender.mend(mender.look(SERIES, whole, []), [], "why")
    writer.join()
    assert late == [] and removed == pages
    assert [minute for minute, _ in closes(stored(pipeline))] == list(range(pages * 5))
