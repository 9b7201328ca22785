"""Loads and commits of a table with a long history, beside writers that know nothing of ours."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.commit import commit_files
from dexorder_common.lake.tables import OHLC
from tests.examples import few
from tests.fakes.pages import control
from tests.fakes.staged import files_of_pages


def expire(table: Table) -> None:
    """Expire the oldest snapshot that may expire."""
    named = {ref.snapshot_id for ref in table.metadata.refs.values()}
    for snapshot in [each for each in table.metadata.snapshots if each.snapshot_id not in named][:1]:
        table.maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()


def tag(table: Table) -> None:
    if snapshot := table.metadata.current_snapshot_id:
        table.manage_snapshots().create_tag(snapshot, f"tag-{snapshot}-{len(table.metadata.refs)}").commit()


CHANGES: dict[str, Callable[[Table], Any]] = {
    "commit": commit_files,
    "append": lambda table: table.append(table.schema().as_arrow().empty_table()),
    "tag": tag,
    "expire": expire,
    "property": lambda table: table.transaction().set_properties(note=table.metadata_location).commit_transaction(),
}


@settings(max_examples=few(10), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(sorted(CHANGES))), min_size=4, max_size=16))
def test_every_reader_sees_the_same_metadata_whoever_has_committed(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[int, str]]
) -> None:
    place = CatalogSettings.local(tmp_path_factory.mktemp("lake"))
    writers: list[Catalog] = [place.load(), place.load(), load_catalog(place.name, **place.properties())]
    writers[0].create_namespace("trading")
    OHLC.load_or_create(writers[0])
    for writer, change in history:
        CHANGES[change](writers[writer].load_table(OHLC.name))
        one, other, plain = (each.load_table(OHLC.name).metadata for each in writers)
        assert one == other == plain
    for each in writers:
        each.close()


def test_two_writers_that_start_together_create_one_table(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both look before either has created anything."""
    place = CatalogSettings.local(tmp_path_factory.mktemp("lake"))
    first, second = place.load(), place.load()
    created = OHLC.load_or_create(first)
    with monkeypatch.context() as before:
        before.setattr(second, "namespace_exists", lambda _: False)
        second.create_namespace_if_not_exists("trading")
    monkeypatch.setattr(second, "table_exists", lambda _: False)
    other = second.create_table_if_not_exists(OHLC.name, OHLC.schema)
    assert other.metadata == created.metadata


def test_a_commit_handles_its_own_snapshot_only(catalog: CatalogSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """At 1,000 snapshots a batch took four times as long as on a young table, and twelve times at 3,000."""
    tables, other = catalog.load(), catalog.load()
    for _ in range(20):
        commit_files(tables.load_table(OHLC.name))
    handled: list[str] = []

    def counted(name: str) -> None:
        method = getattr(Snapshot, name)
        called = getattr(method, "__func__", method)

        def count(self: Any, *given: Any, **named: Any) -> Any:
            handled.append(name)
            return called(self, *given, **named)

        monkeypatch.setattr(Snapshot, name, classmethod(count) if called is not method else count)

    other.load_table(OHLC.name)
    for name in ("model_validate", "model_dump_json", "model_copy", "__deepcopy__"):
        counted(name)
    commit_files(tables.load_table(OHLC.name))
    assert handled == ["model_dump_json"]
    assert len(other.load_table(OHLC.name).metadata.snapshots) == 21
    assert handled == ["model_dump_json", "model_validate"], "a foreign commit is read, not the history before it"


def test_files_of_a_long_history_are_bounded(catalog: CatalogSettings) -> None:
    tables = catalog.load()
    for minute in range(70):
        looked = tables.load_table(OHLC.name)
        commit_files(looked, added=files_of_pages(looked, [control(minute, 1)]))
    table = tables.load_table(OHLC.name)
    snapshot = table.current_snapshot()
    assert snapshot and len(snapshot.manifests(table.io)) <= 16 and table.scan().count() == 70
