"""Answers to questions about coverage: known ranges, their pages, the result of a verification. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from html import escape
from typing import Any

from dexorder_common.model.datasets import CANDLES, Dataset
from dexorder_common.model.history import Progress, RequestRecord, RequestStatus, range_json
from dexorder_common.model.periods import count_periods
from dexorder_common.model.time_range import TimeRange, subtract
from dexorder_common.model.times import iso
from dexorder_common.model.values import ValueComparison

SHOWN_ROWS = 50
"""Rows of a table in a notebook."""


class CoverageKind(StrEnum):
    """Content of each period of a range: a row, the proof that the candle does not exist, or unknown.

    A candle of a PROVISIONAL range may still turn up: its absence was queried too early, or too briefly. In
    PROVISIONAL_ROWS one source alone calls the trades, or the trades of the candles, complete.
    """

    ROWS = "rows"
    EMPTY = "empty"
    PROVISIONAL = "provisional"
    PROVISIONAL_ROWS = "provisional rows"
    MISSING = "missing"


@dataclass(frozen=True, slots=True, order=True)
class CoverageRange:
    """A half-open range of one kind."""

    span: TimeRange
    kind: CoverageKind

    def as_json(self, period_seconds: int) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"kind": str(self.kind), **range_json(self.span), "periods": count_periods(self.span, period_seconds)}


def known_ranges(
    covered: Iterable[TimeRange],
    empty: Iterable[TimeRange],
    provisional: Iterable[TimeRange] = (),
    doubtful: Iterable[TimeRange] = (),
) -> list[CoverageRange]:
    """Return covered ranges, their verified-empty part and the provisional part of that, by kind, in time order.

    Args:
        doubtful: Ranges that realtime has settled, but one source alone calls complete.
    """
    doubtful = list(doubtful)
    covered, provisional = list(covered), [*provisional, *doubtful]
    rows = subtract(covered, empty)
    absent = subtract(covered, rows)
    final, proven = subtract(absent, provisional), subtract(rows, doubtful)
    kinds = [
        (CoverageKind.ROWS, proven),
        (CoverageKind.PROVISIONAL_ROWS, subtract(rows, proven)),
        (CoverageKind.EMPTY, final),
        (CoverageKind.PROVISIONAL, subtract(absent, final)),
    ]
    return sorted(CoverageRange(span, kind) for kind, spans in kinds for span in spans)


@dataclass(frozen=True, slots=True)
class CoveragePage:
    """A row of ``trading.coverage`` and the part of it that no longer counts.

    ``dexorder_common/lake/coverage.py`` describes the other fields.

    Attributes:
        retracted: Parts that were retracted later.
    """

    span: TimeRange
    rows: int
    empty: tuple[TimeRange, ...]
    evidence: str
    fetched_ns: int
    committed_ns: int
    retracted: tuple[TimeRange, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON values, with times as UTC text."""
        return {
            "kind": "page",
            **range_json(self.span),
            "rows": self.rows,
            "empty": list(map(range_json, self.empty)),
            "evidence": self.evidence,
            "fetched_at": iso(self.fetched_ns),
            "committed_at": iso(self.committed_ns),
            "retracted": list(map(range_json, self.retracted)),
        }


def html_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> str:
    """Return text as an HTML table of at most ``SHOWN_ROWS``, and a line below it."""
    head = "".join(f"<th>{escape(each)}</th>" for each in columns)
    lines = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows[:SHOWN_ROWS])
    more = f"; {len(rows) - SHOWN_ROWS:,} more rows" if len(rows) > SHOWN_ROWS else ""
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{escape(title)}{more}</p>"


@dataclass(frozen=True, slots=True, repr=False)
class Coverage:
    """Coverage of one series.

    Attributes:
        known: Ranges of kinds rows, empty and provisional in time order; adjacent ranges differ in kind.
        pages: Their rows in the coverage table, by start; only if requested.
    """

    ticker: str
    period_seconds: int
    known: tuple[CoverageRange, ...]
    pages: tuple[CoveragePage, ...] = ()
    dataset: Dataset = CANDLES

    def whole(self, since_ns: int | None = None, until_ns: int | None = None) -> list[CoverageRange]:
        """Return the ranges with the holes as kind missing: between them, and out to the given ends."""
        spans = [each.span for each in self.known]
        ends = [*(span.start_ns for span in spans[:1]), *(span.end_ns for span in spans[-1:])]
        start_ns = since_ns if since_ns is not None else min(ends, default=until_ns)
        end_ns = until_ns if until_ns is not None else max(ends, default=start_ns)
        if start_ns is None or end_ns is None or end_ns < start_ns:
            return list(self.known)
        holes = subtract([TimeRange(start_ns, end_ns)], spans)
        return sorted([*self.known, *(CoverageRange(hole, CoverageKind.MISSING) for hole in holes)])

    def why_incomplete(self, span: TimeRange) -> str:
        """Return a sentence that names the unknown parts of a range; empty if all of it is known."""
        missing = subtract([span], [each.span for each in self.known])
        if not missing:
            return ""
        more = f" and {len(missing) - 3:,} more ranges" if len(missing) > 3 else ""
        name = f"{self.ticker} {self.dataset.period_name(self.period_seconds)}"
        return f"{name} is not complete: nothing is known of {', '.join(map(str, missing[:3]))}{more}"

    def __repr__(self) -> str:
        name = f"{self.ticker} {self.dataset.period_name(self.period_seconds)}"
        if not self.known:
            return f"Coverage of {name}: nothing is covered"
        ends = f"{iso(self.known[0].span.start_ns)} to {iso(self.known[-1].span.end_ns)}"
        return f"Coverage of {name}: {len(self.known):,} ranges from {ends}"

    def _repr_html_(self) -> str:
        """Return the ranges and the holes between them as HTML, for a notebook."""
        rows = [(iso(each.span.start_ns), iso(each.span.end_ns), str(each.kind)) for each in self.whole()]
        return html_table(("since", "until", "kind"), rows, repr(self))

    def periods(self, ranges: Iterable[CoverageRange]) -> dict[CoverageKind, int]:
        """Return the number of periods of each kind."""
        counts = dict.fromkeys(CoverageKind, 0)
        for each in ranges:
            counts[each.kind] += count_periods(each.span, self.period_seconds)
        return counts


@dataclass(frozen=True, slots=True)
class VerificationProgress:
    """Progress of a verification.

    Attributes:
        windows: Number of windows; 0 until it is known.
        lost_periods: Periods that seem lost so far; they are checked again before they are reported.
        request_id: The request that the verification waits for now; empty if it does not wait for any.
        request: Progress of that request.
    """

    windows: int
    checked_windows: int
    rows: int
    lost_periods: int
    request_id: str = ""
    request: Progress | None = None


@dataclass(frozen=True, slots=True)
class VerificationResult:
    """Differences between the table and its coverage. Lists have at most 10,000 ranges; the counts cover all of them.

    Attributes:
        checked: From the first to the last period that coverage or the table has; None if both are empty.
        rows: Rows of the series.
        row_periods: Periods that coverage claims as rows.
        empty_periods: Periods that coverage claims as verified empty.
        lost: Ranges that coverage claims as rows and that lack them.
        unexpected: Ranges claimed as empty that have a row.
        duplicates: Periods with more than one row.
        surplus_rows: Rows beyond the first of a period.
        off_grid: Periods in which these rows are.
        off_grid_rows: Rows with an open time that is not on the period's grid.
        unclaimed_periods: Periods with a row that coverage does not claim; not a fault.
        repairs: Ids of the requests that this verification submitted to fetch ranges again.
        repaired_periods: Lost periods that these requests fetch.
        removed_rows: Unexpected, surplus and off-grid rows that this verification removed.
        values: Comparison of the values with the exchange; None if it was not requested.
        values_after_repair: The same for the ranges that the repair fetched again; None if it fetched none.
    """

    ticker: str
    period_seconds: int
    checked: TimeRange | None
    rows: int
    row_periods: int
    empty_periods: int
    lost: tuple[TimeRange, ...]
    lost_periods: int
    unexpected: tuple[TimeRange, ...]
    unexpected_periods: int
    duplicates: tuple[TimeRange, ...]
    surplus_rows: int
    off_grid: tuple[TimeRange, ...]
    off_grid_rows: int
    unclaimed_periods: int
    repairs: tuple[str, ...]
    repaired_periods: int
    removed_rows: int
    values: ValueComparison | None = None
    values_after_repair: ValueComparison | None = None

    @property
    def wrong_rows(self) -> int:
        """Number of rows that the table must not have."""
        return self.unexpected_periods + self.surplus_rows + self.off_grid_rows

    def well(self, repaired: Sequence[RequestRecord] = ()) -> bool:
        """Return whether table, coverage and exchange agree, given the records of the requests among ``repairs``.

        A range that a repair has fetched again agrees with the exchange, even if the exchange's own candles contradict
        each other.
        """
        mended = self.wrong_rows == self.removed_rows and self.lost_periods == self.repaired_periods
        if self.values:
            mended = mended and not self.values.errors
            mended = mended and self.values.differing_periods == self.values.repaired_periods
        ended = [each.request_id for each in repaired if each.status in (RequestStatus.OK, RequestStatus.NOT_FOUND)]
        return mended and set(ended) == set(self.repairs)

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "ticker": self.ticker,
            "period_seconds": self.period_seconds,
            "since": iso(self.checked.start_ns) if self.checked else None,
            "until": iso(self.checked.end_ns) if self.checked else None,
            "rows": self.rows,
            "row_periods": self.row_periods,
            "empty_periods": self.empty_periods,
            "lost_periods": self.lost_periods,
            "lost": list(map(range_json, self.lost)),
            "unexpected_periods": self.unexpected_periods,
            "unexpected": list(map(range_json, self.unexpected)),
            "surplus_rows": self.surplus_rows,
            "duplicates": list(map(range_json, self.duplicates)),
            "off_grid_rows": self.off_grid_rows,
            "off_grid": list(map(range_json, self.off_grid)),
            "unclaimed_periods": self.unclaimed_periods,
            "repaired_periods": self.repaired_periods,
            "removed_rows": self.removed_rows,
            "values": self.values.as_json() if self.values else None,
            "values_after_repair": self.values_after_repair.as_json() if self.values_after_repair else None,
        }
