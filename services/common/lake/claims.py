"""Claims of coverage: the files that commits of ``trading.ohlc`` name, and ``trading.coverage``, which collects them.

A commit of candles names a small file with its claims (``commit_state``), so claims are visible with their rows. The
pipeline's maintenance appends them to ``trading.coverage`` later; the summary of that append names the newest snapshot
of the candles whose claims the table then has. Whoever reads coverage reads both (``read_coverage``).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice, takewhile
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from services.common.lake.commit import CommitLost, append_rows, commit_files
from services.common.lake.commit_state import CommitState, ancestors, summary_of
from services.common.lake.coverage import CoverageRow, encode_coverage
from services.common.lake.tables import COVERAGE, MICROSECONDS, OHLC, present_columns
from services.common.model.errors import Unavailable
from services.common.model.history import PageResult
from services.common.model.proof import join_evidence
from services.common.model.time_range import TimeRange, merge

_COLLECTED = "dexorder.ohlc-snapshot"
_ATTEMPTS = 5
ALWAYS_TRUE = AlwaysTrue()


def claim_rows(pages: Iterable[PageResult], *, now_ns: int) -> list[CoverageRow]:
    """Return the claims of good pages: one row for each contiguous run of pages of one dispatch.

    Args:
        now_ns: Time of the commit.
    """
    rows: list[CoverageRow] = []
    last = ""
    for page in sorted(set(pages), key=lambda page: (page.dispatch_id, page.series, page.span)):
        claimed = page.series, page.span, page.dispatch, page.fetched_ns, page.empty
        row = CoverageRow(*claimed, now_ns, page.rows, evidence=page.evidence)
        if rows and page.dispatch_id == last and _continues(rows[-1], row):
            rows[-1] = _joined(rows[-1], row)
        else:
            rows.append(row)
        last = page.dispatch_id
    return rows


def _continues(row: CoverageRow, following: CoverageRow) -> bool:
    return row.series == following.series and row.span.end_ns == following.span.start_ns


def _joined(row: CoverageRow, following: CoverageRow) -> CoverageRow:
    return replace(
        row,
        span=TimeRange(row.span.start_ns, following.span.end_ns),
        fetched_ns=min(row.fetched_ns, following.fetched_ns),
        empty=tuple(merge([*row.empty, *following.empty])),
        rows=row.rows + following.rows,
        evidence=join_evidence(row.evidence, following.evidence),
    )


def write_claims(candles: Table, rows: Sequence[CoverageRow]) -> str:
    """Write rows to a file beside the table's metadata and return its path; the next commit names it."""
    path = candles.location_provider().new_metadata_location(f"claims-{uuid.uuid4()}.parquet")
    data = pa.Table.from_pylist([encode_coverage(row) for row in rows], schema=COVERAGE.arrow)
    with candles.io.new_output(path).create() as file:
        pq.write_table(data, cast(Any, file))
    return path


def read_coverage(
    catalog: Catalog, row_filter: BooleanExpression = ALWAYS_TRUE, columns: tuple[str, ...] = ("*",)
) -> Iterator[pa.Table]:
    """Yield all rows of coverage. Those that are not collected yet come unfiltered and with all columns.

    A row may come twice, which changes nothing.
    """
    collected, waiting = _read_waiting(catalog)
    if collected is not None:
        wanted = columns if columns == ("*",) else present_columns(collected, columns)
        for batch in collected.scan(row_filter=row_filter, selected_fields=wanted).to_arrow_batch_reader():
            yield pa.Table.from_batches([batch])
    yield from waiting


def _read_waiting(catalog: Catalog) -> tuple[Table | None, list[pa.Table]]:
    """Return ``trading.coverage`` and the claims that it lacks."""
    for _ in range(_ATTEMPTS):
        candles, collected = OHLC.load(catalog), COVERAGE.load(catalog)
        with suppress(FileNotFoundError):  # collected and removed since the tables were loaded
            return collected, [_read(candles, path) for path in _waiting(candles, collected)]
    raise Unavailable(f"files of claims that {OHLC.name} names are missing")


def collect_claims(catalog: Catalog, *, now_ns: int) -> int:
    """Append the claims that are not in ``trading.coverage`` yet, as committed now; return the number of their rows.

    Then their files are removed; whoever was reading one of them reads both tables again.

    Raises:
        CommitLost: Another process has appended to the table meanwhile; nothing has changed.
    """
    candles, collected = OHLC.load(catalog), COVERAGE.load(catalog)
    waiting = _waiting(candles, collected)
    if candles is None or collected is None or not waiting:
        return 0
    try:
        rows = pa.concat_tables([_read(candles, path) for path in waiting]).combine_chunks()
    except FileNotFoundError as error:
        raise CommitLost(f"another process has collected claims of {OHLC.name}, or one is lost: {error}") from error
    newest = candles.metadata.current_snapshot_id
    # The time of this commit, so that who reads the rows since a time misses none.
    times = pa.array([now_ns // 1_000] * rows.num_rows, pa.int64()).cast(MICROSECONDS)
    column = COVERAGE.arrow.get_field_index("committed_at")
    rows = rows.set_column(column, COVERAGE.arrow.field("committed_at"), times)
    append_rows(collected, rows, {_COLLECTED: str(newest)})
    for path in waiting:
        with suppress(Exception):  # one that stays is removed as a file that no snapshot references
            candles.io.delete(path)
    return rows.num_rows


def needed_snapshots(catalog: Catalog) -> set[int]:
    """Return the snapshots of both tables that must not expire: those with the state, and with claims to collect."""
    candles, collected = OHLC.load(catalog), COVERAGE.load(catalog)
    needed = {snapshot.snapshot_id for snapshot, _ in _newer(candles, collected)}
    if candles is not None:
        stateful = (each for each in ancestors(candles.metadata) if CommitState.decode(summary_of(each)))
        needed |= {each.snapshot_id for each in islice(stateful, 1)}
    if collected is not None:
        marked = (each for each in ancestors(collected.metadata) if _COLLECTED in summary_of(each))
        needed |= {each.snapshot_id for each in islice(marked, 1)}
    return needed


def renew_marks(catalog: Catalog, *, before_ns: int) -> None:
    """Commit state and mark again in an empty snapshot where a compaction has followed them.

    Otherwise the files from before the compaction would stay until the next batch.

    Args:
        before_ns: A current snapshot that is younger is left alone, as a batch may follow soon.

    Raises:
        CommitLost: Another writer was faster.
    """
    for table, marks in ((OHLC.load(catalog), _state_alone), (COVERAGE.load(catalog), collected_mark)):
        current = table.current_snapshot() if table is not None else None
        if table is None or current is None or current.timestamp_ms * 1_000_000 >= before_ns:
            continue
        if (found := marks(table)) and not found.keys() <= summary_of(current).keys():
            commit_files(table, properties=found)


def _state_alone(candles: Table) -> dict[str, str]:
    """Return the properties of the state, without claims, which belong to one snapshot alone."""
    states = (CommitState.decode(summary_of(each)) for each in ancestors(candles.metadata))
    return next((replace(state, claims="").encode() for state in states if state), {})


def collected_mark(collected: Table) -> dict[str, str]:
    """Return the properties that say which claims ``trading.coverage`` has."""
    marks = (summary_of(each).get(_COLLECTED) for each in ancestors(collected.metadata))
    return next(({_COLLECTED: mark} for mark in marks if mark), {})


def _waiting(candles: Table | None, collected: Table | None) -> list[str]:
    """Return the files of claims that are not collected, newest first."""
    return [path for _, path in _newer(candles, collected)]


def _newer(candles: Table | None, collected: Table | None) -> Iterator[tuple[Snapshot, str]]:
    if candles is None:
        return
    done = collected_mark(collected).get(_COLLECTED) if collected is not None else None
    for snapshot in takewhile(lambda each: str(each.snapshot_id) != done, ancestors(candles.metadata)):
        state = CommitState.decode(summary_of(snapshot))
        if state and state.claims:
            yield snapshot, state.claims


def _read(candles: Table | None, path: str) -> pa.Table:
    assert candles is not None
    with candles.io.new_input(path).open() as file:
        return pq.read_table(cast(Any, file)).cast(COVERAGE.arrow)
