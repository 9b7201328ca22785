"""Time after the last trade that REST alone calls quiet: it is provisional until a later trade proves it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from dexorder_common.model.realtime import ProvisionalReason, ProvisionalSpan
from dexorder_common.model.time_range import TimeRange, merge, subtract

_REASON = ProvisionalReason.ONE_SOURCE


class AloneTime:
    """That time of one market, less the parts that the exchange's own candles confirm."""

    def __init__(self, known: Iterable[ProvisionalSpan]) -> None:
        """Continue with the spans of an earlier dispatch, as one: what it had confirmed between them is asked again."""
        spans = sorted(each for each in known if each.reason is _REASON and not each.first_id)
        self._all: ProvisionalSpan | None = None
        if spans:
            self._all = spans[0]._replace(span=TimeRange(spans[0].span.start_ns, spans[-1].span.end_ns))
        self._witnessed: list[TimeRange] = []

    def spans(self) -> list[ProvisionalSpan]:
        """Return the parts that are not confirmed."""
        found = self._all
        return [found._replace(span=part) for part in subtract([found.span], self._witnessed)] if found else []

    def add(self, start_ns: int, end_ns: int, *, clock_ns: int) -> None:
        """Add time that REST alone calls quiet, at the exchange's time ``clock_ns``; it joins what there is."""
        if self._all is None:
            self._all = ProvisionalSpan(TimeRange(start_ns, end_ns), _REASON, since_ns=clock_ns)
        else:
            self._all = self._all._replace(span=TimeRange(self._all.span.start_ns, end_ns))

    def witnessed(self, span: TimeRange) -> None:
        """Note that the exchange's own closed candles confirm the trades of a span."""
        if self._all and span.overlaps(self._all.span):
            self._witnessed = merge([*self._witnessed, span])

    def proven(self) -> None:
        """Note that a later trade has come: its number proves all of it."""
        self._all, self._witnessed = None, []
