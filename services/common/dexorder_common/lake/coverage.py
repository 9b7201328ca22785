"""Rows of the coverage and retraction tables, and the rule that combines them. Pure.

Rows are only ever added to either table. A claim of coverage holds where no later retraction overlaps it, so both
tables together determine coverage. The relay numbers dispatches and retractions in one sequence, which is their order.

Rows are encoded to and decoded from dictionaries with times as integers in microseconds, as ``IcebergTable.rows``
returns them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dexorder_common.model.instrument import Series
from dexorder_common.model.proof import NO_PROOF
from dexorder_common.model.time_range import RangeSet, TimeRange, merge, subtract

CLAIM_COLUMNS = (
    "ticker",
    "period_seconds",
    "dataset",
    "start_time",
    "end_time",
    "empty",
    "fetched_at",
    "dispatch",
    "evidence",
)
"""Columns of the coverage table that a Claim needs."""


class Order(NamedTuple):
    """Place of a claim or a retraction among the others.

    Attributes:
        dispatch: Its number; 0 in rows from before numbers were issued, which come first.
        time_ns: Time of the fetch or of the retraction. It decides between rows without a number only,
            because a claim and a retraction never share one.
    """

    dispatch: int
    time_ns: int


@dataclass(frozen=True, slots=True, order=True)
class Claim:
    """A range that is settled: every period has a candle in the table or lies in an empty range.

    Attributes:
        dispatch: Number of the dispatch that settled it.
        fetched_ns: Time at which the exchange answered, in whole microseconds.
        empty: Ranges verified to be without candles.
        evidence: Proofs as `dexorder_common.model.proof` encodes them; ``page``, or the merged kinds, in older
            rows.
    """

    series: Series
    span: TimeRange
    dispatch: int
    fetched_ns: int
    empty: tuple[TimeRange, ...]
    evidence: str = field(default=NO_PROOF, kw_only=True)

    @property
    def order(self) -> Order:
        """Its place among claims and retractions."""
        return Order(self.dispatch, self.fetched_ns)


@dataclass(frozen=True, slots=True, order=True)
class CoverageRow(Claim):
    """A row of the coverage table: a claim and where it comes from.

    Attributes:
        committed_ns: Time at which the row was written, after its candles.
        rows: Number of candles in ``span``.
    """

    committed_ns: int
    rows: int


class Retraction(NamedTuple):
    """A row of the retraction table: earlier claims of coverage of ``span`` no longer hold.

    Two rows with equal fields are the same retraction.
    """

    series: Series
    span: TimeRange
    order: Order


class Retractions:
    """All retractions of one series."""

    def __init__(self) -> None:
        self._taken: dict[Order, RangeSet] = {}

    def add(self, span: TimeRange, order: Order) -> None:
        """Add a retraction; they may come in any sequence. Where two overlap, the later one holds."""
        for part in self.claimed(span, order):
            for older in [each for each in self._taken if each < order]:
                self._taken[older].remove(part)
                if not self._taken[older]:
                    del self._taken[older]
            self._taken.setdefault(order, RangeSet()).add(part)

    def in_force(self) -> dict[Order, tuple[TimeRange, ...]]:
        """Return, for each retraction, the ranges that no later one covers."""
        return {order: tuple(taken) for order, taken in self._taken.items()}

    def claimed(self, span: TimeRange, order: Order) -> list[TimeRange]:
        """Return the part of a claim that still holds."""
        return subtract([span], self.taken(span, order))

    def taken(self, span: TimeRange, order: Order) -> list[TimeRange]:
        """Return the part of a claim that is retracted."""
        later = (taken for retracted, taken in self._taken.items() if retracted > order)
        return merge(part for taken in later for part in taken.within(span))


def encode_coverage(row: CoverageRow) -> dict[str, Any]:
    """Return a row of the coverage table."""
    return {
        **_encode_key(row.series, row.span),
        "rows": row.rows,
        "empty": [_encode_span(part) for part in row.empty],
        "evidence": row.evidence,
        "fetched_at": row.fetched_ns // 1_000,
        "committed_at": row.committed_ns // 1_000,
        "dispatch": row.dispatch,
    }


def decode_claim(row: Mapping[str, Any]) -> Claim:
    """Parse the columns ``CLAIM_COLUMNS`` of a row; InvalidRequest if a range is reversed."""
    empty = tuple(map(_span, row["empty"] or ()))
    return Claim(
        _series(row),
        _span(row),
        row.get("dispatch") or 0,
        row["fetched_at"] * 1_000,
        empty,
        evidence=row.get("evidence") or NO_PROOF,
    )


def decode_coverage(row: Mapping[str, Any]) -> CoverageRow:
    """Parse a row of the coverage table; InvalidRequest if a range is reversed."""
    claim = decode_claim(row)
    return CoverageRow(
        claim.series,
        claim.span,
        claim.dispatch,
        claim.fetched_ns,
        claim.empty,
        committed_ns=row["committed_at"] * 1_000,
        rows=row["rows"],
        evidence=claim.evidence,
    )


def encode_retraction(retraction: Retraction, reason: str) -> dict[str, Any]:
    """Return a row of the retraction table."""
    return {
        **_encode_key(retraction.series, retraction.span),
        "reason": reason,
        "retracted_at": retraction.order.time_ns // 1_000,
        "dispatch": retraction.order.dispatch,
    }


def decode_retraction(row: Mapping[str, Any]) -> Retraction:
    """Parse a row of the retraction table; InvalidRequest if the range is reversed."""
    return Retraction(_series(row), _span(row), Order(row.get("dispatch") or 0, row["retracted_at"] * 1_000))


def _encode_key(series: Series, span: TimeRange) -> dict[str, Any]:
    return {**series.encode(), **_encode_span(span)}


def _encode_span(span: TimeRange) -> dict[str, int]:
    return {"start_time": span.start_ns // 1_000, "end_time": span.end_ns // 1_000}


def _series(row: Mapping[str, Any]) -> Series:
    return Series.decode(row["ticker"], row["period_seconds"], row.get("dataset") or "")


def _span(row: Mapping[str, Any]) -> TimeRange:
    return TimeRange(row["start_time"] * 1_000, row["end_time"] * 1_000)
