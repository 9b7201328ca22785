from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog

from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.claims import (
    claim_rows,
    collect_claims,
    collected_mark,
    join_pages,
    needed_snapshots,
    read_coverage,
    renew_marks,
    write_claims,
)
from dexorder_common.lake.commit import CommitLost, commit_files
from dexorder_common.lake.commit_state import CommitState, state_of
from dexorder_common.lake.coverage import CoverageRow, decode_coverage
from dexorder_common.lake.tables import COVERAGE, OHLC, TICKS
from dexorder_common.model.errors import Unavailable
from dexorder_common.model.history import PageResult
from dexorder_common.model.instrument import Series
from dexorder_common.model.periods import TRADES_PERIOD
from tests.fakes.pages import TICKER, dispatch_id, span

SERIES = Series(TICKER, 60)
NOW_NS = 1_800_000_000_000_000_000


def page(dispatch: int, first: int, count: int, *holes: int, fetched_ns: int = 5_000) -> PageResult:
    empty = tuple(span(minute, 1) for minute in holes)
    return PageResult(dispatch_id(dispatch), SERIES, span(first, count), empty, None, fetched_ns, count - len(empty))


def commit(tables: Catalog, *pages: PageResult, name: str = OHLC.name) -> int:
    """Commit claims as the pipeline does; return the snapshot."""
    table = tables.load_table(name)
    claims = write_claims(table, claim_rows(pages, now_ns=NOW_NS))
    return commit_files(table, properties=CommitState(claims=claims).encode())


def metadata(tables: Catalog) -> Path:
    return Path(tables.load_table(OHLC.name).location().removeprefix("file://")) / "metadata"


def spans(tables: Catalog) -> list[tuple[int, int]]:
    rows = [decode_coverage(row) for part in read_coverage(tables) for row in COVERAGE.rows(part)]
    start = span(0, 1).start_ns
    return sorted(((row.span.start_ns - start) // 60_000_000_000, row.rows) for row in rows)


def test_a_run_of_pages_of_one_dispatch_is_one_row() -> None:
    pages = [page(1, 10, 10, 12), page(1, 0, 10, 9, fetched_ns=4_000), page(1, 30, 5), page(2, 20, 10)]
    expected = [
        CoverageRow(SERIES, span(0, 20), 1, 4_000, (span(9, 1), span(12, 1)), NOW_NS, 18, evidence="page"),
        CoverageRow(SERIES, span(30, 5), 1, 5_000, (), NOW_NS, 5, evidence="page"),
        CoverageRow(SERIES, span(20, 10), 2, 5_000, (), NOW_NS, 10, evidence="page"),
    ]
    assert claim_rows([*pages, pages[0]], now_ns=NOW_NS) == expected, "a record that Kafka has twice counts once"
    assert claim_rows([page(1, 0, 3, 2), page(1, 3, 3, 3)], now_ns=NOW_NS)[0].empty == (span(2, 2),)


def test_claims_are_visible_with_their_snapshot_and_collected_once(catalog: CatalogSettings) -> None:
    tables = catalog.load()
    assert (spans(tables), collect_claims(tables, now_ns=NOW_NS)) == ([], 0)
    commit(tables, page(1, 0, 10))
    commit(tables, page(2, 20, 10))
    assert spans(tables) == [(0, 10), (20, 10)]
    assert collect_claims(tables, now_ns=NOW_NS) == 2
    assert collect_claims(tables, now_ns=NOW_NS) == 0
    commit(tables, page(3, 40, 10))
    assert spans(tables) == [(0, 10), (20, 10), (40, 10)], "each once"
    assert collect_claims(tables, now_ns=NOW_NS + 5_000) == 1
    assert not list(metadata(tables).glob("claims-*.parquet")), "collected files are removed"
    rows = COVERAGE.rows(tables.load_table(COVERAGE.name).scan().to_arrow())
    assert sorted(row["committed_at"] * 1_000 - NOW_NS for row in rows) == [0, 0, 5_000], "the time of the collection"


def test_adjacent_claims_of_one_dispatch_are_collected_as_one_row(catalog: CatalogSettings) -> None:
    tables = catalog.load()
    for first in (0, 20, 10, 40):
        commit(tables, page(1, first, 10))
    commit(tables, page(2, 30, 10))
    assert collect_claims(tables, now_ns=NOW_NS) == 3
    assert spans(tables) == [(0, 30), (30, 10), (40, 10)]


def test_claims_of_trades_are_read_and_collected_beside_those_of_candles(catalog: CatalogSettings) -> None:
    tables = catalog.load()

    def trades(first: int, count: int) -> PageResult:
        return replace(page(1, first, count), series=Series(TICKER, TRADES_PERIOD))

    commit(tables, page(2, 100, 10))
    for first, count in ((0, 10), (10, 0), (10, 5)):
        commit(tables, trades(first, count), name=TICKS.name)
    assert spans(tables) == [(0, 10), (10, 5), (100, 10)], "an empty span claims nothing"
    assert collect_claims(tables, now_ns=NOW_NS) == 2
    newest = {name: tables.load_table(name).metadata.current_snapshot_id for name in (OHLC.name, TICKS.name)}
    assert collected_mark(tables.load_table(COVERAGE.name)) == {
        "dexorder.ohlc-snapshot": str(newest[OHLC.name]),
        "dexorder.ticks-snapshot": str(newest[TICKS.name]),
    }
    commit(tables, trades(15, 5), name=TICKS.name)
    assert spans(tables) == [(0, 15), (15, 5), (100, 10)]
    assert newest[OHLC.name] in needed_snapshots(tables), "it has the state of its table"
    assert collect_claims(tables, now_ns=NOW_NS) == 1
    assert (spans(tables), collect_claims(tables, now_ns=NOW_NS)) == ([(0, 15), (15, 5), (100, 10)], 0)


def test_pages_are_reported_as_runs_but_refused_ones_each(catalog: CatalogSettings) -> None:
    refused = replace(page(1, 30, 5), refused="no", rows=0)
    joined = join_pages([page(1, 10, 10), refused, page(1, 0, 10, fetched_ns=4_000), page(2, 20, 5), page(1, 20, 0)])
    assert joined == [page(1, 0, 20, fetched_ns=4_000), page(2, 20, 5), refused]


def test_what_is_not_collected_and_the_newest_state_must_not_expire(catalog: CatalogSettings) -> None:
    tables = catalog.load()
    first, second = commit(tables, page(1, 0, 10)), commit(tables, page(2, 20, 10))
    commit_files(tables.load_table(OHLC.name))  # a compaction
    assert needed_snapshots(tables) == {first, second}
    collect_claims(tables, now_ns=NOW_NS)
    mark = tables.load_table(COVERAGE.name).metadata.current_snapshot_id
    assert needed_snapshots(tables) == {second, mark}
    assert collected_mark(tables.load_table(COVERAGE.name)) == {
        "dexorder.ohlc-snapshot": str(tables.load_table(OHLC.name).metadata.current_snapshot_id)
    }


def test_marks_are_renewed_after_a_compaction_so_that_its_old_files_may_go(catalog: CatalogSettings) -> None:
    tables = catalog.load()
    commit(tables, page(1, 0, 10))
    collect_claims(tables, now_ns=NOW_NS)
    state = state_of(tables.load_table(OHLC.name).metadata)
    for name in (OHLC.name, COVERAGE.name):
        commit_files(tables.load_table(name))  # a compaction
    renew_marks(tables, before_ns=0)
    assert len(tables.load_table(OHLC.name).metadata.snapshots) == 2, "a batch may follow soon"
    for _ in range(2):
        renew_marks(tables, before_ns=2 * NOW_NS)
    found = [tables.load_table(name).metadata for name in (OHLC.name, COVERAGE.name)]
    assert [len(each.snapshots) for each in found] == [3, 3], "once"
    assert needed_snapshots(tables) == {each.current_snapshot_id for each in found}
    assert state_of(found[0]) == replace(state, claims="")
    assert spans(tables) == [(0, 10)]


@pytest.fixture
def collected_meanwhile(catalog: CatalogSettings, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """A claim that another process collects when the coverage has been read."""
    tables = catalog.load()
    commit(tables, page(1, 0, 10))
    load: Callable[..., object] = type(COVERAGE).load

    def meanwhile(table: object, given: Catalog) -> object:
        found = load(table, given)
        if table is COVERAGE:
            monkeypatch.undo()
            assert collect_claims(catalog.load(), now_ns=NOW_NS) == 1
        return found

    monkeypatch.setattr(type(COVERAGE), "load", meanwhile)
    return tables


def test_two_processes_that_collect_do_not_double_a_claim(collected_meanwhile: Catalog) -> None:
    with pytest.raises(CommitLost):
        collect_claims(collected_meanwhile, now_ns=NOW_NS)
    assert collected_meanwhile.load_table(COVERAGE.name).scan().count() == 1


def test_a_reader_between_two_tables_sees_claims_that_are_collected_meanwhile(collected_meanwhile: Catalog) -> None:
    assert spans(collected_meanwhile) == [(0, 10)]


def test_a_missing_file_of_claims_is_an_error_and_not_a_hole(catalog: CatalogSettings) -> None:
    tables = catalog.load()
    commit(tables, page(1, 0, 10))
    (claims,) = metadata(tables).glob("claims-*.parquet")
    claims.unlink()
    with pytest.raises(Unavailable, match=r"claims that trading\.ohlc and trading\.ticks name are missing"):
        list(read_coverage(tables))
