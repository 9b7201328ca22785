"""Judgement of a dispatch whose exchange was faulty for a time, and of the second one after it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dexorder_common.model.periods import open_times
from dexorder_common.model.time_range import TimeRange, intersect, merge, subtract
from dexorder_ingestor.history.job import Missing
from dexorder_ingestor.history.paging import CandlePage

Truth = Mapping[int, tuple[float, ...]]
_PERIOD = 60


@dataclass
class Table:
    """Rows, verified-empty, provisional and missing ranges of a series after some dispatches."""

    rows: dict[int, tuple[float, ...]] = field(default_factory=dict)
    doubled: int = 0
    empty: list[TimeRange] = field(default_factory=list)
    provisional: list[TimeRange] = field(default_factory=list)
    missing: list[TimeRange] = field(default_factory=list)

    def add(self, pages: Sequence[CandlePage], missing: Sequence[Missing]) -> None:
        """Add what a dispatch brought; later rows and claims replace earlier ones, as in Iceberg."""
        seen = Counter(c.open_ns for page in pages for c in page.candles)
        self.doubled += seen.total() - len(seen)
        spans = merge(page.span for page in pages)
        empty, young = list[TimeRange](), list[TimeRange]()
        for page in pages:
            empty += page.empty
            young += [p for proof in page.proofs if proof.is_provisional for p in intersect(page.empty, proof.span)]
            self.rows |= {c.open_ns: tuple(c[1:6]) for c in page.candles}
        self.empty = merge([*subtract(self.empty, spans), *empty])
        self.provisional = merge([*subtract(self.provisional, spans), *young])
        self.missing = merge([*subtract(self.missing, spans), *(m.span for m in missing)])

    @property
    def open_ranges(self) -> list[TimeRange]:
        """Ranges to query again."""
        return merge([*self.provisional, *self.missing])


@dataclass(frozen=True, slots=True)
class TimedOutcome:
    """Number of candles by what became of them.

    Attributes:
        wrong: Rows that are duplicate, or whose values are not the exchange's.
        final: Existing candles called empty, finally, or not accounted for: lost without a word.
        provisional: Existing candles called empty, provisionally.
        named: Existing candles named as missing.
        there: Rows in ranges that are named as missing.
    """

    wrong: int = 0
    final: int = 0
    provisional: int = 0
    named: int = 0
    there: int = 0

    @property
    def is_equal(self) -> bool:
        """Whether every candle is there, and only these."""
        return self == TimedOutcome()

    @property
    def is_silently_wrong(self) -> bool:
        """Whether someone who reads the table and the notification believes something untrue."""
        return bool(self.wrong or self.final)


def judge(truth: Truth, span: TimeRange, table: Table) -> TimedOutcome:
    """Compare a table with the candles that exist in a range."""
    inside = {t: row for t, row in table.rows.items() if span.start_ns <= t < span.end_ns}
    lost = [t for t in truth if span.start_ns <= t < span.end_ns and t not in inside]
    missing, provisional, empty = (_opens(r) for r in (table.missing, table.provisional, table.empty))
    named = [t for t in lost if t in missing]
    young = [t for t in lost if t in provisional and t in empty and t not in missing]
    return TimedOutcome(
        wrong=table.doubled + sum(truth.get(t) != row for t, row in inside.items()),
        final=len(lost) - len(named) - len(young),
        provisional=len(young),
        named=len(named),
        there=sum(t in missing for t in inside),
    )


def _opens(ranges: Sequence[TimeRange]) -> set[int]:
    return {t for each in ranges for t in open_times(each, _PERIOD)}
