from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions.visitors import _ManifestEvalVisitor
from pyiceberg.table import Table

from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.commit import CommitLost, append_rows, commit_files
from dexorder_common.lake.commit_state import CommitState, state_of
from dexorder_common.lake.tables import OHLC
from tests.fakes.pages import control
from tests.fakes.staged import files_of_pages


@pytest.fixture
def load(catalog: CatalogSettings) -> Callable[[], Table]:
    return lambda: catalog.load().load_table(OHLC.name)


def test_a_commit_that_lost_changes_nothing_and_leaves_no_files(load: Callable[[], Table]) -> None:
    looked = load()
    files = files_of_pages(looked, [control(0, 5)])
    commit_files(load(), added=files_of_pages(looked, [control(0, 5)]))
    before = {str(path) for path in _metadata(looked)}
    with pytest.raises(CommitLost, match=r"trading\.ohlc has changed since it was read"):
        commit_files(looked, added=files)
    assert load().scan().count() == 5
    assert {str(path) for path in _metadata(looked)} == before
    commit_files(load(), added=files)
    assert load().scan().count() == 10, "the files are still there for another try"


def test_two_first_commits_of_an_empty_table_do_not_both_succeed(load: Callable[[], Table]) -> None:
    one, other = load(), load()
    commit_files(one, properties=CommitState(dispatch=1).encode())
    with pytest.raises(CommitLost):
        commit_files(other, properties=CommitState(dispatch=2).encode())
    assert state_of(load().metadata).dispatch == 1


def test_an_append_of_rows_loses_against_a_foreign_writer(load: Callable[[], Table]) -> None:
    looked = load()
    files_of_pages(looked, [control(0, 5)], commit=True)
    rows = load().scan().to_arrow().cast(OHLC.arrow)
    load().append(rows)
    with pytest.raises(CommitLost):
        append_rows(looked, rows)
    assert load().scan().count() == 10


def test_files_are_replaced_in_one_snapshot(load: Callable[[], Table]) -> None:
    files_of_pages(load(), [control(0, 5)], commit=True)
    old = [task.file for task in load().scan().plan_files()]
    files_of_pages(load(), [control(5, 5)], commit=True)
    new = files_of_pages(load(), [control(0, 5, job=2)], price=200.0)
    snapshot_id = commit_files(load(), added=new, removed=old, properties={"note": "x"})
    found = load()
    assert found.metadata.current_snapshot_id == snapshot_id
    prices = found.scan().to_arrow().column("open").to_pylist()
    assert (prices.count(100.0), prices.count(200.0)) == (5, 5)
    assert len(found.metadata.snapshots) == 3
    summary = found.current_snapshot().summary  # type: ignore[union-attr]
    assert summary and summary["note"] == "x"


def test_files_of_many_manifests_are_found_while_threads_read_them(
    load: Callable[[], Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    for month in range(6):
        files_of_pages(load(), [control(month * 45_000, 5)], commit=True)

    class Interrupted:
        """A field whose writer is interrupted, so that other threads run before it is read."""

        def __get__(self, visitor: Any, _: type) -> Any:
            return visitor.partitions_kept

        def __set__(self, visitor: Any, partitions: Any) -> None:
            visitor.partitions_kept = partitions
            sleep(0.01)

    monkeypatch.setattr(_ManifestEvalVisitor, "partition_fields", Interrupted(), raising=False)
    old = [task.file for task in load().scan().plan_files()]
    assert len({str(file.partition) for file in old}) == 6
    for keeps_rows in (False, True):
        added = files_of_pages(load(), [control(0, 5, job=2)])
        commit_files(load(), added=added, removed=[old.pop(0)], keeps_rows=keeps_rows)
    assert load().scan().count() == 30


def test_an_answer_that_was_lost_does_not_hide_the_commit(
    load: Callable[[], Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = load()
    files = files_of_pages(looked, [control(0, 5)])
    commit = SqlCatalog.commit_table

    def lost(*given: Any) -> Any:
        commit(*given)
        raise ConnectionError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", lost)
        with pytest.raises(ConnectionError):
            commit_files(looked, added=files, properties=CommitState({"s": {0: 5}}).encode())
    assert state_of(load().metadata).offsets == {"s": {0: 5}}
    assert load().scan().count() == 5


def _metadata(table: Table) -> list[Path]:
    return list((Path(table.location().removeprefix("file://")) / "metadata").glob("*"))
