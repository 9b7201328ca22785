"""Comparison of rows with the truth, candle by candle, and the verdict on an answer. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dexorder_common.model.time_range import TimeRange, merge

Values = tuple[float | None, ...]
"""Open, high, low, close, volume."""
Row = tuple[int | None, Values]
"""Open time in nanoseconds, and the values."""

QUIET = "ends"
"""The end of a caller that is told nothing."""
HANG = "hang"
_STATUSES_NAMING = ("ERROR", "TIMEOUT")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a comparison of rows with the truth.

    Attributes:
        candles: Candles that exist in the range.
        lost: Candles of the range whose open time no row has.
        doubled: Duplicate rows of an open time.
        wrong: Rows whose values differ from the truth, or whose candle does not exist.
        null: Rows that lack a value.
        unnamed: Lost candles outside all ranges named as missing.
        named_though_there: Rows inside such a range.
    """

    candles: int
    lost: int = 0
    doubled: int = 0
    wrong: int = 0
    null: int = 0
    unnamed: int = 0
    named_though_there: int = 0

    @property
    def spoiled(self) -> int:
        """Number of rows that are duplicate, wrong or null."""
        return self.doubled + self.wrong + self.null


def judge(
    truth: Mapping[int, Values], rows: Iterable[Row], span: TimeRange, missing: Sequence[TimeRange] = ()
) -> Verdict:
    """Compare rows in any order with the candles that exist.

    Args:
        truth: Candles by open time, at least those of ``span``, and those outside it if there may be rows of them.
        missing: Ranges named as missing.
    """
    named, seen = merge(missing), Counter[int]()
    wrong = null = 0
    for open_ns, values in rows:
        if open_ns is not None:
            seen[open_ns] += 1
        if open_ns is None or None in values:
            null += 1
        elif truth.get(open_ns) != values:
            wrong += 1
    exist = [open_ns for open_ns in truth if _holds([span], open_ns)]
    lost = [open_ns for open_ns in exist if open_ns not in seen]
    return Verdict(
        candles=len(exist),
        lost=len(lost),
        doubled=seen.total() - len(seen),
        wrong=wrong,
        null=null,
        unnamed=sum(not _holds(named, open_ns) for open_ns in lost),
        named_though_there=sum(_holds(named, open_ns) for open_ns in seen),
    )


def _holds(ranges: Sequence[TimeRange], time_ns: int) -> bool:
    """Return whether one of the sorted ranges holds a time."""
    after = bisect_right(ranges, time_ns, key=lambda each: each.start_ns)
    return after > 0 and time_ns < ranges[after - 1].end_ns


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one way to fetch the candles of one cell.

    Attributes:
        end: What the caller is told: ``QUIET``, ``raises …``, a status of ours; ``HANG``; what broke the measurement.
        verdict: None where there was nothing to compare.
        calls: To the exchange for candles or trades.
        faults: Faulty answers among them.
        calls_in_ban: Calls before the exchange's Retry-After was over.
        latest_in_ban_ms: After its answer with a Retry-After, the latest of these; a few ms is a call on the wire.
        ranges: How many ranges were named as missing.
    """

    end: str
    verdict: Verdict | None = None
    calls: int = 0
    faults: int = 0
    calls_in_ban: int = 0
    latest_in_ban_ms: float = 0
    seconds: float = 0
    ranges: int = 0

    @property
    def whole(self) -> bool:
        """Return whether every candle is there once with the right values, and the caller was told so."""
        good = self.verdict is not None and not self.verdict.lost and not self.verdict.spoiled
        empty = self.verdict is not None and not self.verdict.candles
        return good and (self.end in ("OK", QUIET) or (empty and self.end == "NOT_FOUND"))

    @property
    def named(self) -> bool:
        """Return whether all rows are right, and the ranges named as missing are those that lack rows."""
        v = self.verdict
        return v is not None and self.end in _STATUSES_NAMING and not (v.spoiled or v.unnamed or v.named_though_there)

    @property
    def honest(self) -> bool:
        """Return whether the caller knows which candles are there."""
        return self.whole or self.named
