"""Batches of one candle each, committed to a warehouse in a local folder as driver and maintenance do without Java."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from itertools import count
from pathlib import Path

from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.claims import claim_rows, collect_claims, read_coverage, write_claims
from dexorder_common.lake.commit import commit_files
from dexorder_common.lake.commit_state import CommitState
from dexorder_common.lake.coverage import decode_coverage
from dexorder_common.lake.tables import COVERAGE, OHLC
from dexorder_common.model.history import PageResult
from dexorder_common.model.instrument import Series
from dexorder_common.model.page import PageHeaders
from dexorder_spark.maintenance.merge import merge_small_files
from dexorder_spark.tables.table import ensure_tables
from tests.fakes.pages import MINUTE_NS, TICKER, control, dispatch_id, span
from tests.fakes.staged import files_of_pages

MERGED = 4
"""Batches between two merges of small files."""
COLLECTED = 7
"""Batches between two collections of claims."""
_SERIES = Series(TICKER, MINUTE_NS // 1_000_000_000)


def warehouse(folder: Path) -> Iterator[int]:
    catalog = CatalogSettings.local(folder).load()
    ensure_tables(catalog)
    for number in count():
        table = catalog.load_table(OHLC.name)
        head: PageHeaders = control(number, 1, job=number + 1)
        claimed = PageResult(dispatch_id(number + 1), _SERIES, span(number, 1), rows=1, fetched_ns=number)
        claims = write_claims(table, claim_rows([claimed], now_ns=number))
        added = files_of_pages(table, [head])
        commit_files(table, added=added, properties=CommitState(claims=claims).encode())
        if number % MERGED == MERGED - 1:
            merge_small_files(catalog, OHLC, max_bytes=1 << 20, alone=nullcontext)
        if number % COLLECTED == COLLECTED - 1:
            collect_claims(catalog, now_ns=number)
        yield number


def minutes_of(folder: Path) -> set[int]:
    """Return the numbers of the candles that the table has and that coverage claims."""
    catalog, first = CatalogSettings.local(folder).load(), span(0, 1).start_ns
    rows = OHLC.rows(catalog.load_table(OHLC.name).scan().to_arrow())
    stored = {(int(row["open_time"]) * 1_000 - first) // MINUTE_NS for row in rows}
    spans = [decode_coverage(row).span for part in read_coverage(catalog) for row in COVERAGE.rows(part)]
    claimed = {
        minute
        for each in spans
        for minute in range((each.start_ns - first) // MINUTE_NS, (each.end_ns - first) // MINUTE_NS)
    }
    return stored & claimed
