"""``dexorder coverage``: what the table is known to hold of a market."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

from dexorder.cli import output
from dexorder.client import Client
from dexorder.request import read_part
from services.common.model.coverage import Coverage, CoverageKind, CoveragePage, CoverageRange
from services.common.model.periods import PERIODS, count_periods
from services.common.model.times import iso

_WORDS = {CoverageKind.ROWS: "rows", CoverageKind.EMPTY: "verified empty", CoverageKind.MISSING: "not covered"}


def run(
    ticker: str, period: str, since: str | None, until: str | None, detail: bool, as_json: bool, relay: str | None
) -> None:
    """Print the ranges with the holes between them; with ``detail`` the pages too."""
    _, since_ns, until_ns = read_part(period, since, until)
    with Client(relay) as client:
        found = client.coverage(ticker, period, since_ns, until_ns, detail=detail)
    whole = found.whole(since_ns, until_ns)
    if as_json:
        _lines(each.as_json(found.period_seconds) for each in whole)
        _lines(page.as_json() for page in found.pages)
        return
    out, name = output.stdout(), f"{found.ticker} {PERIODS[found.period_seconds]}"
    if not whole:
        out.print(f"{name}: nothing is covered", markup=False)
        return
    out.print(output.plain_table(("since", "until", "periods", "what"), (_cells(each, found) for each in whole)))
    if found.pages:
        columns = ("since", "until", "rows", "empty ranges", "evidence", "fetched", "committed", "taken back")
        out.print(output.plain_table(columns, map(_page_cells, found.pages)))
    out.print(f"{name}: {_shares(found, whole)}", markup=False)


def _shares(found: Coverage, whole: list[CoverageRange]) -> str:
    counts = found.periods(whole)
    total = sum(counts.values())
    parts = (f"{counts[kind]:,} {_WORDS[kind]} ({counts[kind] / total:.1%})" for kind in CoverageKind)
    return f"{total:,} periods: {', '.join(parts)}"


def _cells(each: CoverageRange, found: Coverage) -> tuple[str, ...]:
    periods = count_periods(each.span, found.period_seconds)
    return iso(each.span.start_ns), iso(each.span.end_ns), f"{periods:,}", _WORDS[each.kind]


def _page_cells(page: CoveragePage) -> tuple[str, ...]:
    taken_back = ", ".join(map(str, page.retracted)) or "-"
    return (
        iso(page.span.start_ns),
        iso(page.span.end_ns),
        f"{page.rows:,}",
        f"{len(page.empty):,}",
        page.evidence,
        iso(page.fetched_ns),
        iso(page.committed_ns),
        taken_back,
    )


def _lines(values: Iterable[dict[str, Any]]) -> None:
    for value in values:
        sys.stdout.write(json.dumps(value) + "\n")
