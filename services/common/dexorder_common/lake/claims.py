"""Claims of coverage: the files that commits of candles and trades name, and ``trading.coverage``, which collects them.

A commit of such a table names a small file with its claims (``commit_state``), so claims are visible with their rows.
The pipeline's maintenance appends them to ``trading.coverage`` later; the summary of that append names, for each table,
the newest snapshot with claims that ``trading.coverage`` then has. ``read_coverage`` reads both places.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from dexorder_common.lake.commit import CommitLost, append_rows, commit_files
from dexorder_common.lake.commit_state import CommitState, ancestors, summary_of
from dexorder_common.lake.coverage import CoverageRow, decode_coverage, encode_coverage
from dexorder_common.lake.tables import (
    COVERAGE,
    OHLC,
    TICKERS,
    TICKS,
    IcebergTable,
    present_columns,
    udf_tables,
)
from dexorder_common.model.errors import Unavailable
from dexorder_common.model.history import PageResult
from dexorder_common.model.proof import join_evidence, proofs_of, provisional_ranges
from dexorder_common.model.time_range import TimeRange, joined, merge

CLAIMING = (OHLC, TICKS)
"""Tables with commits that claim coverage."""
_ATTEMPTS = 5
_MAX_JOINED_EMPTY = 1_000
_MAX_JOINED_EVIDENCE = 100_000
"""Characters of evidence; a proof has about 100, and a row at most ``MAX_PROOFS``."""
ALWAYS_TRUE = AlwaysTrue()


def claim_rows(pages: Iterable[PageResult], *, now_ns: int) -> list[CoverageRow]:
    """Return the claims of good pages: one row for each contiguous run of pages of one dispatch.

    A page with an empty span makes no claim.

    Args:
        now_ns: Time of the commit.
    """
    given = sorted({page for page in pages if page.span}, key=lambda page: (page.dispatch_id, page.series, page.span))
    rows = (
        CoverageRow(p.series, p.span, p.dispatch, p.fetched_ns, p.empty, now_ns, p.rows, evidence=p.evidence)
        for p in given
    )
    return joined(rows, _join)


def join_pages(pages: Iterable[PageResult]) -> list[PageResult]:
    """Return the same pages with each contiguous run of good pages of one dispatch as one page."""
    pages = list(pages)
    good = (page for page in pages if page.refused is None)
    ordered = sorted(good, key=lambda page: (page.dispatch_id, page.series, page.span))
    return [*joined(ordered, _join_page), *(page for page in pages if page.refused is not None)]


def _join_page(page: PageResult, following: PageResult) -> PageResult | None:
    if page.dispatch_id != following.dispatch_id or not _continues(page, following):
        return None
    span = TimeRange(page.span.start_ns, following.span.end_ns)
    fetched_ns = min(page.fetched_ns, following.fetched_ns)
    return replace(page, span=span, rows=page.rows + following.rows, fetched_ns=fetched_ns)


def _continues(one: CoverageRow | PageResult, following: CoverageRow | PageResult) -> bool:
    return one.series == following.series and one.span.end_ns == following.span.start_ns


def _join(row: CoverageRow, following: CoverageRow) -> CoverageRow | None:
    """Return two rows as one if they are of one dispatch and follow one another."""
    if row.dispatch != following.dispatch or not _continues(row, following):
        return None
    return replace(
        row,
        span=TimeRange(row.span.start_ns, following.span.end_ns),
        fetched_ns=min(row.fetched_ns, following.fetched_ns),
        empty=tuple(merge([*row.empty, *following.empty])),
        rows=row.rows + following.rows,
        evidence=join_evidence(row.evidence, following.evidence),
    )


def join_claims(rows: pa.Table) -> pa.Table:
    """Return rows of coverage with adjacent rows of one series and dispatch joined.

    Claims and retractions are ordered by their dispatches, so the joined row claims the same against any retraction. It
    has the later time of commit: a reader of the rows since a time misses no claim. Rows with provisional absences stay
    as they are because an absence is as old as its row.
    """
    found = set(map(decode_coverage, COVERAGE.rows(rows)))  # one may be there twice
    return _encoded(joined(_ordered(found), _join_collected))


def _join_collected(row: CoverageRow, following: CoverageRow) -> CoverageRow | None:
    if (
        row.dispatch == 0
        or len(row.empty) + len(following.empty) > _MAX_JOINED_EMPTY
        or len(row.evidence) + len(following.evidence) > _MAX_JOINED_EVIDENCE
        or any(provisional_ranges(proofs_of(each.evidence), each.empty) for each in (row, following))
    ):
        return None
    both = _join(row, following)
    return both and replace(both, committed_ns=max(row.committed_ns, following.committed_ns))


def _ordered(rows: Iterable[CoverageRow]) -> list[CoverageRow]:
    return sorted(rows, key=lambda row: (row.dispatch, row.series, row.span))


def _encoded(rows: Iterable[CoverageRow]) -> pa.Table:
    return pa.Table.from_pylist(list(map(encode_coverage, rows)), schema=COVERAGE.arrow)


def write_claims(table: Table, rows: Sequence[CoverageRow]) -> str:
    """Write rows to a file beside the table's metadata and return its path; the next commit names it."""
    path = table.location_provider().new_metadata_location(f"claims-{uuid.uuid4()}.parquet")
    with table.io.new_output(path).create() as file:
        pq.write_table(_encoded(rows), cast(Any, file))
    return path


def read_coverage(
    catalog: Catalog, row_filter: BooleanExpression = ALWAYS_TRUE, columns: tuple[str, ...] = ("*",)
) -> Iterator[pa.Table]:
    """Yield all rows of coverage. Rows that are not collected yet come unfiltered and with all columns.

    A row may come twice, which is harmless.
    """
    collected, waiting = _read_waiting(catalog)
    if collected is not None:
        wanted = columns if columns == ("*",) else present_columns(collected, columns)
        for batch in collected.scan(row_filter=row_filter, selected_fields=wanted).to_arrow_batch_reader():
            yield pa.Table.from_batches([batch])
    yield from waiting


def collect_claims(catalog: Catalog, *, now_ns: int) -> int:
    """Append the claims that are not in ``trading.coverage`` yet, as committed now; return the number of their rows.

    Adjacent claims of one dispatch become one row. Then their files are removed; a process that was reading one of them
    reads the tables again.

    Raises:
        CommitLost: Another process has appended to the table since it was loaded; the table is unchanged.
    """
    tables, collected = _load(catalog)
    waiting = [(each, path) for each in tables for _, path in each.newer(collected)]
    if collected is None or not waiting:
        return 0
    try:
        found = [decode_coverage(row) for each, path in waiting for row in COVERAGE.rows(each.read(path))]
    except FileNotFoundError as error:
        raise CommitLost(f"another process has collected claims of {_names()}, or one is lost: {error}") from error
    # The time of this commit, so that who reads the rows since a time misses none.
    rows = [replace(row, committed_ns=now_ns) for row in joined(_ordered(found), _join)]
    newest = {each.mark: each.table.metadata.current_snapshot_id for each in tables}
    marks = collected_mark(collected) | {mark: str(snapshot_id) for mark, snapshot_id in newest.items() if snapshot_id}
    append_rows(collected, _encoded(rows), marks)
    for each, path in waiting:
        with suppress(Exception):  # one that stays is removed as a file that no snapshot references
            each.table.io.delete(path)
    return len(rows)


def needed_snapshots(catalog: Catalog) -> set[int]:
    """Return the snapshots of all tables that must not expire: those with the state, and with claims to collect."""
    tables, collected = _load(catalog)
    needed = {snapshot.snapshot_id for each in tables for snapshot, _ in each.newer(collected)}
    others = (each.load(catalog) for each in (TICKERS, *udf_tables(catalog)))
    for table in (*(each.table for each in tables), *filter(None, others)):
        stateful = (each for each in ancestors(table.metadata) if CommitState.decode(summary_of(each)))
        needed |= {each.snapshot_id for each in islice(stateful, 1)}
    if collected is not None:
        marked = (each for each in ancestors(collected.metadata) if _marks(each))
        needed |= {each.snapshot_id for each in islice(marked, 1)}
    return needed


def renew_marks(catalog: Catalog, *, before_ns: int) -> None:
    """Commit state and mark again in an empty snapshot where a compaction has followed them.

    Otherwise the files from before the compaction would stay until the next batch.

    Args:
        before_ns: A current snapshot that is younger is left alone because a batch may follow soon.

    Raises:
        CommitLost: Another writer was faster.
    """
    stateful = (*CLAIMING, TICKERS, *udf_tables(catalog))
    for declared, marks in (*((each, _state_alone) for each in stateful), (COVERAGE, collected_mark)):
        table = declared.load(catalog)
        current = table.current_snapshot() if table is not None else None
        if table is None or current is None or current.timestamp_ms * 1_000_000 >= before_ns:
            continue
        if (found := marks(table)) and not found.keys() <= summary_of(current).keys():
            commit_files(table, properties=found)


def collected_mark(collected: Table) -> dict[str, str]:
    """Return the properties that say which claims ``trading.coverage`` has; each commit that has one has all."""
    return next(filter(None, map(_marks, ancestors(collected.metadata))), {})


def _state_alone(table: Table) -> dict[str, str]:
    """Return the properties of the state, without claims, which belong to one snapshot alone."""
    states = (CommitState.decode(summary_of(each)) for each in ancestors(table.metadata))
    return next((replace(state, claims="").encode() for state in states if state), {})


def _marks(snapshot: Snapshot) -> dict[str, str]:
    names = map(_mark_of, CLAIMING)
    return {name: mark for name in names if (mark := summary_of(snapshot).get(name))}


def _mark_of(declared: IcebergTable) -> str:
    return f"dexorder.{declared.name.rpartition('.')[2]}-snapshot"


def _names() -> str:
    return " and ".join(each.name for each in CLAIMING)


@dataclass(frozen=True)
class _Claimer:
    """A table with commits that claim coverage; the property ``mark`` says which of them ``trading.coverage`` has."""

    mark: str
    table: Table

    def newer(self, collected: Table | None) -> Iterator[tuple[Snapshot, str]]:
        """Yield the files of claims that are not collected, newest first, with the snapshots that name them."""
        done = collected_mark(collected).get(self.mark) if collected is not None else None
        for snapshot in takewhile(lambda each: str(each.snapshot_id) != done, ancestors(self.table.metadata)):
            state = CommitState.decode(summary_of(snapshot))
            if state and state.claims:
                yield snapshot, state.claims

    def read(self, path: str) -> pa.Table:
        with self.table.io.new_input(path).open() as file:
            return pq.read_table(cast(Any, file)).cast(COVERAGE.arrow)


def _load(catalog: Catalog) -> tuple[list[_Claimer], Table | None]:
    """Return the tables, and ``trading.coverage`` loaded after them, so that it has all claims collected before."""
    found = [(_mark_of(declared), declared.load(catalog)) for declared in CLAIMING]
    return [_Claimer(mark, table) for mark, table in found if table is not None], COVERAGE.load(catalog)


def _read_waiting(catalog: Catalog) -> tuple[Table | None, list[pa.Table]]:
    """Return ``trading.coverage`` and the claims that it lacks."""
    for _ in range(_ATTEMPTS):
        tables, collected = _load(catalog)
        with suppress(FileNotFoundError):  # collected and removed since the tables were loaded
            return collected, [each.read(path) for each in tables for _, path in each.newer(collected)]
    raise Unavailable(f"files of claims that {_names()} name are missing")
