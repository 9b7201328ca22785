"""What is known of a market's history, as plain values; protobuf stops here. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dexorder.records import ranges_json
from services.common.model.periods import count_periods
from services.common.model.time_range import TimeRange, subtract
from services.common.model.times import iso
from services.gen.dexorder.relay.v1 import relay_service_pb2 as pb


class Kind(StrEnum):
    """What each period of a range has: a row, the proof that there is no candle, or nothing known."""

    ROWS = "rows"
    EMPTY = "empty"
    MISSING = "missing"


@dataclass(frozen=True, slots=True, order=True)
class Known:
    """A half-open range of one kind."""

    span: TimeRange
    kind: Kind

    def as_json(self, period_seconds: int) -> dict[str, Any]:
        """Plain JSON values."""
        return {"kind": str(self.kind), **ranges_json(self.span), "periods": count_periods(self.span, period_seconds)}


@dataclass(frozen=True, slots=True)
class Page:
    """One row of ``trading.coverage``.

    Attributes:
        rows: Candles inside.
        empty: Ranges inside verified to have no candle.
        evidence: How the range came to be settled.
        fetched_ns: When the exchange answered.
        committed_ns: When the row was written, after the candles.
        retracted: Parts that were taken back later and no longer count.
    """

    span: TimeRange
    rows: int
    empty: tuple[TimeRange, ...]
    evidence: str
    fetched_ns: int
    committed_ns: int
    retracted: tuple[TimeRange, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values; times as UTC text."""
        return {
            "kind": "page",
            **ranges_json(self.span),
            "rows": self.rows,
            "empty": list(map(ranges_json, self.empty)),
            "evidence": self.evidence,
            "fetched_at": iso(self.fetched_ns),
            "committed_at": iso(self.committed_ns),
            "retracted": list(map(ranges_json, self.retracted)),
        }


@dataclass(frozen=True, slots=True)
class Coverage:
    """What is known of one market.

    Attributes:
        known: Kinds rows and empty, in time order; neighbours that touch differ in kind.
        pages: What that rests on, by start; only where asked for.
    """

    ticker: str
    period_seconds: int
    known: tuple[Known, ...]
    pages: tuple[Page, ...] = ()

    def whole(self, since_ns: int | None = None, until_ns: int | None = None) -> list[Known]:
        """The same with the holes as kind missing: between the ranges, and out to the given ends."""
        spans = [each.span for each in self.known]
        ends = [*(span.start_ns for span in spans[:1]), *(span.end_ns for span in spans[-1:])]
        start_ns = since_ns if since_ns is not None else min(ends, default=until_ns)
        end_ns = until_ns if until_ns is not None else max(ends, default=start_ns)
        if start_ns is None or end_ns is None or end_ns < start_ns:
            return list(self.known)
        holes = subtract([TimeRange(start_ns, end_ns)], spans)
        return sorted([*self.known, *(Known(hole, Kind.MISSING) for hole in holes)])

    def periods(self, of: Iterable[Known]) -> dict[Kind, int]:
        """How many periods of each kind."""
        counts = dict.fromkeys(Kind, 0)
        for each in of:
            counts[each.kind] += count_periods(each.span, self.period_seconds)
        return counts


def known_from(message: pb.CoverageRange) -> Known:
    """A range of an answer."""
    kind = pb.CoverageKind.Name(message.kind).removeprefix("COVERAGE_KIND_").lower()
    return Known(TimeRange(message.start_time, message.end_time), Kind(kind))


def page_from(message: pb.CoveragePage) -> Page:
    """A page of an answer."""
    return Page(
        TimeRange(message.start_time, message.end_time),
        message.rows,
        ranges_from(message.empty),
        message.evidence,
        message.fetched_at,
        message.committed_at,
        ranges_from(message.retracted),
    )


def ranges_from(messages: Iterable[pb.TimeRange]) -> tuple[TimeRange, ...]:
    """Ranges of an answer."""
    return tuple(TimeRange(each.start_time, each.end_time) for each in messages)
