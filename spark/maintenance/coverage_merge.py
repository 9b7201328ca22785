"""The ledger's lines made fewer in the table (rules: ``spark/maintenance/coverage_rows.py``), by its one writer.

One commit takes old lines out and puts the merged ones in, or does not happen. Lines that stay go with them as they
are, so that the table is one file again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

from services.common.lake.catalog import COVERAGE_TABLE, RETRACTION_TABLE
from services.common.model.errors import InvalidRequest
from services.common.model.time_range import TimeRange
from spark.maintenance.coverage_rows import MERGED_PREFIX, CoverageRow, Retraction, merge_rows
from spark.maintenance.policy import MergeCoverage
from spark.pipeline.columns import MICROS, schema

# Times as integers: Python's own would take most of the time.
_MARKET = (pa.field("ticker", pa.string()), pa.field("period_seconds", pa.int32()))
_SPAN = (pa.field("start_time", pa.int64()), pa.field("end_time", pa.int64()))
_LINE = schema(
    *_MARKET,
    *_SPAN,
    pa.field("rows", pa.int64()),
    pa.field("empty", pa.list_(pa.struct(list(_SPAN)))),
    pa.field("evidence", pa.string()),
    pa.field("fetched_at", pa.int64()),
    pa.field("committed_at", pa.int64()),
)
_RETRACTION = schema(*_MARKET, *_SPAN, pa.field("retracted_at", pa.int64()))


@dataclass(frozen=True)
class Merged:
    """What a step came to.

    Attributes:
        before: Lines in the table.
        after: Lines behind it; as many as before if merging did not pay.
        left: Of these, the old enough ones: looking again is idle until there are more.
    """

    before: int
    after: int
    left: int


def merge_coverage(catalog: Catalog, step: MergeCoverage) -> Merged:
    """Merge the lines that are old enough, if enough of them go."""
    table = catalog.load_table(COVERAGE_TABLE)
    ledger = table.scan().to_arrow()
    old = _old(ledger, step.before_ns)
    picked = dict(_lines(_pick(old, step.max_rows)))
    merged = Counter(merge_rows(picked.values(), _retractions(catalog)))
    gone = []
    for row, line in picked.items():
        if merged[line]:
            merged[line] -= 1  # it stays, in its row
        else:
            gone.append(row)
    new = list(merged.elements())
    saved = len(gone) - len(new)
    if saved < step.min_rows:
        return Merged(len(ledger), len(ledger), len(old))
    stays = pc.invert(pc.is_in(pa.array(range(len(ledger))), value_set=pa.array(gone)))
    fresh = pa.Table.from_pylist([_row(line) for line in new], schema=ledger.schema)
    together = pa.concat_tables([ledger.filter(stays), fresh])
    # The commit is refused if the table is not as it was read.
    table.overwrite(together.sort_by([(name, "ascending") for name in ("ticker", "period_seconds", "start_time")]))
    return Merged(len(ledger), len(ledger) - saved, len(old) - saved)


def _old(ledger: pa.Table, before_ns: int) -> pa.Table:
    """Lines committed before then, with the column ``row``: which of the ledger's it is."""
    numbered = ledger.append_column("row", pa.array(range(len(ledger))))
    return numbered.filter(pc.less(ledger.column("committed_at"), pa.scalar(before_ns // 1_000, MICROS)))


def _pick(lines: pa.Table, limit: int) -> pa.Table:
    """About ``most``, all of a ticker's or none; those tickers first that have the most never merged."""
    if len(lines) <= limit:
        return lines
    single = pc.invert(pc.starts_with(lines.column("evidence"), MERGED_PREFIX))
    tickers = lines.append_column("single", single).group_by("ticker").aggregate([("single", "sum"), ([], "count_all")])
    tickers = tickers.sort_by([("single_sum", "descending"), ("ticker", "ascending")])
    count = tickers.column("count_all")
    ahead = pc.subtract(pc.cumulative_sum(count), count)
    return lines.filter(
        pc.is_in(lines.column("ticker"), tickers.filter(pc.less(ahead, pa.scalar(limit))).column("ticker"))
    )


def _lines(found: pa.Table) -> Iterator[tuple[int, CoverageRow]]:
    """Row and line; a row that is no line is passed over, and so stays as it is."""
    for number, row in zip(found.column("row").to_numpy(), _rows(found, _LINE), strict=True):
        with suppress(InvalidRequest):
            yield (
                int(number),
                CoverageRow(
                    row["ticker"],
                    row["period_seconds"],
                    _span(row),
                    row["fetched_at"] * 1_000,
                    row["committed_at"] * 1_000,
                    row["rows"],
                    tuple(_span(part) for part in row["empty"]),
                    row["evidence"],
                ),
            )


def _retractions(catalog: Catalog) -> list[Retraction]:
    try:
        table = catalog.load_table(RETRACTION_TABLE)
    except (NoSuchTableError, NoSuchNamespaceError):  # the relay makes it when it first takes something back
        return []
    rows = _rows(table.scan(selected_fields=tuple(_RETRACTION.names)).to_arrow(), _RETRACTION)
    return [Retraction(r["ticker"], r["period_seconds"], _span(r), r["retracted_at"] * 1_000) for r in rows]


def _rows(found: pa.Table, columns: pa.Schema) -> Sequence[dict[str, Any]]:
    return found.select(columns.names).cast(columns).to_pylist()


def _span(row: dict[str, Any]) -> TimeRange:
    return TimeRange(row["start_time"] * 1_000, row["end_time"] * 1_000)


def _row(line: CoverageRow) -> dict[str, Any]:
    return {
        "ticker": line.ticker,
        "period_seconds": line.period_seconds,
        **_micros(line.span),
        "rows": line.rows,
        "empty": [_micros(part) for part in line.empty],
        "evidence": line.evidence,
        "fetched_at": line.fetched_ns // 1_000,
        "committed_at": line.committed_ns // 1_000,
    }


def _micros(span: TimeRange) -> dict[str, int]:
    return {"start_time": span.start_ns // 1_000, "end_time": span.end_ns // 1_000}
