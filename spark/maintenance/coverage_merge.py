"""Merge of rows in the coverage table (rules: ``spark/maintenance/coverage_rows.py``) by its only writer.

One commit removes the old rows and adds the merged ones. It rewrites the remaining rows unchanged, so that the table is
one file again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog

from services.common.lake.coverage import CoverageRow, Retraction, decode_coverage, decode_retraction, encode_coverage
from services.common.lake.tables import COVERAGE, MICROSECONDS, RETRACTIONS
from services.common.model.errors import InvalidRequest
from spark.maintenance.coverage_rows import MERGED_PREFIX, merge_rows
from spark.maintenance.policy import MergeCoverage


@dataclass(frozen=True)
class Merged:
    """Outcome of a step.

    Attributes:
        before: Rows in the table before the step.
        after: Rows after it; as many as before if a merge was not worth it.
        left: Of these, the rows that are old enough to be merged. Another step is useless until there are more.
    """

    before: int
    after: int
    left: int


def merge_coverage(catalog: Catalog, step: MergeCoverage) -> Merged:
    """Merge the rows that are old enough, if this removes enough of them."""
    table = catalog.load_table(COVERAGE.name)
    found = table.scan().to_arrow()
    old = _committed_before(found, step.before_ns)
    picked = dict(_decode(_pick(old, step.max_rows)))
    merged = Counter(merge_rows(picked.values(), _retractions(catalog)))
    removed = []
    for number, row in picked.items():
        if merged[row]:
            merged[row] -= 1  # unchanged
        else:
            removed.append(number)
    new = list(merged.elements())
    saved = len(removed) - len(new)
    if saved < step.min_rows:
        return Merged(len(found), len(found), len(old))
    kept = found.filter(pc.invert(pc.is_in(pa.array(range(len(found))), value_set=pa.array(removed))))
    added = pa.Table.from_pylist([encode_coverage(row) for row in new], schema=found.schema)
    together = pa.concat_tables([kept, added])
    # The commit fails if the table has changed since it was read.
    table.overwrite(together.sort_by([(name, "ascending") for name in ("ticker", "period_seconds", "start_time")]))
    return Merged(len(found), len(found) - saved, len(old) - saved)


def _committed_before(found: pa.Table, before_ns: int) -> pa.Table:
    """Return the rows committed before this time, with their position in the table as column ``row``."""
    numbered = found.append_column("row", pa.array(range(len(found))))
    return numbered.filter(pc.less(found.column("committed_at"), pa.scalar(before_ns // 1_000, MICROSECONDS)))


def _pick(rows: pa.Table, limit: int) -> pa.Table:
    """Return about ``limit`` rows, all rows of a ticker or none; first the tickers with most rows never merged."""
    if len(rows) <= limit:
        return rows
    single = pc.invert(pc.starts_with(rows.column("evidence"), MERGED_PREFIX))
    tickers = rows.append_column("single", single).group_by("ticker").aggregate([("single", "sum"), ([], "count_all")])
    tickers = tickers.sort_by([("single_sum", "descending"), ("ticker", "ascending")])
    count = tickers.column("count_all")
    rows_before = pc.subtract(pc.cumulative_sum(count), count)
    picked = tickers.filter(pc.less(rows_before, pa.scalar(limit))).column("ticker")
    return rows.filter(pc.is_in(rows.column("ticker"), picked))


def _decode(found: pa.Table) -> Iterator[tuple[int, CoverageRow]]:
    """Yield position and row; skip rows that are malformed, which therefore stay as they are."""
    for number, row in zip(found.column("row").to_numpy(), COVERAGE.rows(found), strict=True):
        with suppress(InvalidRequest):
            yield int(number), decode_coverage(row)


def _retractions(catalog: Catalog) -> list[Retraction]:
    table = RETRACTIONS.load(catalog)
    if table is None:  # the relay creates it with the first retraction
        return []
    columns = tuple(name for name in RETRACTIONS.arrow.names if name != "reason")
    return [decode_retraction(row) for row in RETRACTIONS.rows(table.scan(selected_fields=columns).to_arrow())]
