"""Spans that REST alone calls complete, until it has been asked again much later. Pure.

A span is settled without the socket if it was not alive then: two different answers agree on it, or REST is silent for
long. A replica that has lost its feed together with the socket agrees with itself, so the span is provisional. It
is final once an answer reaches back before it ``FINAL_NS`` after it was settled: a trade of it that is not known is
released late by then. Where answers no longer reach back so far, the last one that did counts if it came ``LATEST_NS``
after the span was settled; otherwise the span stays provisional. Times are the exchange's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dexorder_common.model.realtime import ProvisionalReason, ProvisionalSpan
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS

FINAL_NS = 600 * SECOND_NS
LATEST_NS = 60 * SECOND_NS
MAX_SPANS = 100
"""Spans of one market; older ones are joined, with the time between them."""


@dataclass(slots=True)
class _Doubt:
    span: TimeRange
    since_ns: int
    seen_ns: int = 0
    """Time of the last answer that reached back before it."""
    queries: int = 0
    is_inherited: bool = False

    @property
    def age_ns(self) -> int:
        return self.seen_ns - self.since_ns


class Doubts:
    """The provisional spans of one market."""

    def __init__(self, known: Iterable[ProvisionalSpan] = ()) -> None:
        """Continue with the spans of the dispatch before."""
        self._doubts = [
            _Doubt(each.span, each.since_ns, queries=each.queries, is_inherited=True) for each in sorted(known)
        ]

    @property
    def spans(self) -> tuple[ProvisionalSpan, ...]:
        """The spans, by start."""
        one_source = ProvisionalReason.ONE_SOURCE
        return tuple(ProvisionalSpan(d.span, one_source, "", "", d.since_ns, d.queries) for d in self._doubts)

    def inherits(self, time_ns: int) -> bool:
        """Return whether a time is in a provisional span of the dispatch before."""
        return any(d.is_inherited and d.span.start_ns <= time_ns < d.span.end_ns for d in self._doubts)

    def add(self, span: TimeRange, clock_ns: int) -> None:
        """Add a span that was settled now; it joins the one before if that ends where it starts and is as young."""
        last = self._doubts[-1] if self._doubts else None
        if last and last.span.end_ns == span.start_ns and clock_ns - last.since_ns < LATEST_NS:
            last.span = TimeRange(last.span.start_ns, span.end_ns)
        else:
            self._doubts.append(_Doubt(span, clock_ns))
        if len(self._doubts) > MAX_SPANS:
            first, second = self._doubts[:2]
            joined = TimeRange(first.span.start_ns, max(first.span.end_ns, second.span.end_ns))
            is_inherited = first.is_inherited and second.is_inherited
            self._doubts[:2] = [_Doubt(joined, second.since_ns, second.seen_ns, second.queries, is_inherited)]

    def answered(self, first_ns: int, clock_ns: int) -> None:
        """Count an answer with all trades after ``first_ns``, once its late trades are released."""
        kept = []
        for doubt in self._doubts:
            if first_ns < doubt.span.start_ns:
                doubt.seen_ns = clock_ns
                if doubt.age_ns < FINAL_NS:
                    kept.append(doubt)
            elif doubt.age_ns < LATEST_NS:
                kept.append(doubt)
        self._doubts = kept
