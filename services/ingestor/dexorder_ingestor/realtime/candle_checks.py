"""Closed candles of a realtime job that are compared with the exchange's own, several times. Pure.

The exchange's candles are checksums of its trades. A comparison soon after the close may be with a replica that lacks
the same trades as we, so each candle is compared again after each of `DELAYS_NS`. Candles that were compared equally
often are kept as their sum, one candle. A candle without volume counts as absent, because some exchanges fill gaps.
Where an exchange has a candle for each period, and each is equal to ours, number of trades included, ten minutes after
the end and once before, it is the second source that the trades are complete.
The quote volume is compared too, where the exchange's is the sum of its trades: it shows each correction of a price
that leaves open, high, low and close as they are.
Times are the exchange's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dexorder_common.model.page import Candle
from dexorder_common.model.periods import count_periods, next_open, open_times
from dexorder_common.model.realtime import UncheckedCandles
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.realtime.live_candles import ClosedCandles

DELAYS_NS = tuple(seconds * SECOND_NS for seconds in (60, 600, 3_600, 86_400))
"""The last three are those after which history asks for absent candles again."""
_SIZES = (1, 10, 60, 500)
"""Largest number of candles that are compared as one, by the number of comparisons before."""
_RETRY_NS, _LONGEST_RETRY_NS = 30 * SECOND_NS, 3_600 * SECOND_NS
_GIVEN_UP_NS = 2 * 86_400 * SECOND_NS
"""Age at which a candle that still differs is given up."""
_MAX_GROUPS = 300
_TOLERANCE = 1e-8
"""Relative difference of volumes that rounding explains."""


@dataclass(frozen=True, slots=True)
class Group:
    """Adjacent candles that are compared as one.

    Attributes:
        candles: Each of them; None if only their sum is known.
        attempts: Number of comparisons in which they differed since the last one in which they were equal.
        not_before_ns: Time before which they are not compared.
    """

    known: UncheckedCandles
    candles: Mapping[int, Candle] | None = None
    attempts: int = 0
    not_before_ns: int = 0

    @property
    def span(self) -> TimeRange:
        """Time of the candles."""
        return self.known.span

    @property
    def due_ns(self) -> int:
        """Time of the next comparison."""
        return max(self.span.end_ns + DELAYS_NS[self.known.comparisons], self.not_before_ns)

    @property
    def trades(self) -> int:
        """Number of trades in them."""
        return (self.known.candle.trade_count or 0) if self.known.candle else 0


class CandleChecks:
    """Candles that are still to be compared, by period."""

    def __init__(
        self, periods: Iterable[int], known: Iterable[UncheckedCandles] = (), *, has_quotes: bool = False
    ) -> None:
        """Continue with the candles of an earlier dispatch; quote volumes are compared if ``has_quotes``."""
        self._has_quotes = has_quotes
        self._groups: dict[int, list[Group]] = {period: [] for period in periods}
        self.given_up = 0
        """Candles that differed to the end, and candles beyond the number that is kept."""
        for each in known:
            if each.period_seconds in self._groups:
                comparisons = min(each.comparisons, len(DELAYS_NS) - 1)
                self._groups[each.period_seconds].append(Group(each._replace(comparisons=comparisons)))

    def add(self, closed: ClosedCandles) -> None:
        """Add candles; amended ones start again."""
        period, found = closed.period_seconds, {candle.open_ns: candle for candle in closed.candles}
        opens = open_times(closed.span, period)
        many = len(opens) > _SIZES[1]
        parts = [closed.span] if many else [TimeRange(open_ns, next_open(open_ns, period)) for open_ns in opens]
        groups = [group for part in parts for group in self._without(period, part)]
        for part in parts:
            inside = {open_ns: candle for open_ns, candle in found.items() if part.start_ns <= open_ns < part.end_ns}
            groups.append(Group(UncheckedCandles(period, part, 0, joined(inside.values())), None if many else inside))
        kept = [each for each in self._groups[period] if not each.span.overlaps(closed.span)]
        self._groups[period] = sorted([*kept, *groups], key=lambda each: each.span)
        while len(self._groups[period]) > _MAX_GROUPS:
            self._give_up(self._groups[period][0])

    def due(self, exchange_ns: int) -> list[Group]:
        """Return the groups to compare now."""
        return [each for groups in self._groups.values() for each in groups if each.due_ns <= exchange_ns]

    def unchecked(self) -> tuple[UncheckedCandles, ...]:
        """Return all that is still to be compared."""
        return tuple(each.known for groups in self._groups.values() for each in groups)

    def group_of(self, period_seconds: int, open_ns: int) -> Group | None:
        """Return the group of a candle."""
        groups = self._groups.get(period_seconds, [])
        return next((each for each in groups if each.span.start_ns <= open_ns < each.span.end_ns), None)

    def differing(self, group: Group, theirs: Sequence[Candle]) -> list[int]:
        """Return the open times of the candles of a group that differ from the exchange's own, or may do so."""
        inside = [c for c in theirs if c.volume > 0 and group.span.start_ns <= c.open_ns < group.span.end_ns]
        real = {c.open_ns: c if self._has_quotes else c._replace(quote_volume=None) for c in inside}
        if equal(group.known.candle, joined(real.values())):
            return []
        ours = group.candles
        opens = open_times(group.span, group.known.period_seconds)
        return opens if ours is None else [t for t in opens if not equal(ours.get(t), real.get(t))]

    def are_witnessed(self, group: Group, theirs: Sequence[Candle]) -> bool:
        """Return whether the exchange's candles show that the trades of a group are all; it is equal to them.

        The exchange has to have a candle of each period, if only a flat one without volume: one that leaves candles out
        may lack them now. A first comparison does not count, because a replica may lack the same trades as we.
        """
        opens = open_times(group.span, group.known.period_seconds)
        inside = {c.open_ns: c for c in theirs if group.span.start_ns <= c.open_ns < group.span.end_ns}
        if not group.known.comparisons or any(open_ns not in inside for open_ns in opens):
            return False
        counts = [candle.trade_count for candle in inside.values()]
        ours = group.known.candle.trade_count if group.known.candle else 0
        return ours is None or None in counts or sum(count or 0 for count in counts) == ours

    def confirm(self, group: Group) -> None:
        """Note that the candles of a group are right; they are compared again after the next delay, if there is one."""
        known, period = group.known, group.known.period_seconds
        groups = self._groups[period]
        if group not in groups:  # amended since
            return
        groups.remove(group)
        if known.comparisons + 1 == len(DELAYS_NS):
            return
        stage = known.comparisons + 1
        confirmed = Group(known._replace(comparisons=stage), group.candles if stage == 1 else None)
        before = next((each for each in groups if each.span.end_ns == known.span.start_ns), None)
        if before is not None and (both := _join(before, confirmed)):
            groups.remove(before)
            confirmed = both
        self._groups[period] = sorted([*groups, confirmed], key=lambda each: each.span)

    def postpone(self, group: Group, exchange_ns: int) -> None:
        """Compare a group that differs again later; give it up when it is too old."""
        groups = self._groups[group.known.period_seconds]
        if group not in groups:
            return
        if exchange_ns > group.span.end_ns + _GIVEN_UP_NS:
            self._give_up(group)
            return
        wait_ns = min(_RETRY_NS << min(group.attempts, 16), _LONGEST_RETRY_NS)
        later = replace(group, attempts=group.attempts + 1, not_before_ns=exchange_ns + wait_ns)
        groups[groups.index(group)] = later

    def forget(self, group: Group) -> None:
        """Stop comparing a group, because the exchange does not offer candles of its period."""
        groups = self._groups[group.known.period_seconds]
        self._groups[group.known.period_seconds] = [each for each in groups if each != group]

    def _give_up(self, group: Group) -> None:
        self.forget(group)
        self.given_up += count_periods(group.span, group.known.period_seconds)

    def _without(self, period: int, part: TimeRange) -> list[Group]:
        """Return the rests of the groups around a part that leaves them."""
        found = []
        for group in self._groups[period]:
            if group.candles is None or not group.span.overlaps(part):
                continue
            for span in (TimeRange(group.span.start_ns, part.start_ns), TimeRange(part.end_ns, group.span.end_ns)):
                if span.start_ns < span.end_ns:
                    inside = {t: c for t, c in group.candles.items() if span.start_ns <= t < span.end_ns}
                    known = group.known._replace(span=span, candle=joined(inside.values()))
                    found.append(Group(known, inside))
        return found


def _join(one: Group, other: Group) -> Group | None:
    """Return two adjacent groups as one, unless it would be too large or they were not compared equally often."""
    first, second = one.known, other.known
    span = TimeRange(first.span.start_ns, second.span.end_ns)
    if first.comparisons != second.comparisons or count_periods(span, first.period_seconds) > _SIZES[first.comparisons]:
        return None
    known = first._replace(span=span, candle=joined(each for each in (first.candle, second.candle) if each))
    has_all = one.candles is not None and other.candles is not None
    return Group(known, {**(one.candles or {}), **(other.candles or {})} if has_all else None)


def joined(candles: Iterable[Candle]) -> Candle | None:
    """Return candles joined into one; None without any that has a volume."""
    parts = sorted(candle for candle in candles if candle.volume > 0)
    if not parts:
        return None
    count = None if any(each.trade_count is None for each in parts) else sum(each.trade_count or 0 for each in parts)
    quote = None if not all(each.quote_volume for each in parts) else sum(each.quote_volume or 0.0 for each in parts)
    return Candle(
        parts[0].open_ns,
        parts[0].open,
        max(each.high for each in parts),
        min(each.low for each in parts),
        parts[-1].close,
        sum(each.volume for each in parts),
        quote,
        count,
    )


def equal(one: Candle | None, other: Candle | None) -> bool:
    """Return whether two candles have the same prices and volumes; None is a candle without volume.

    A quote volume that is absent or 0 is ignored.
    """
    if one is None or other is None or not (one.volume and other.volume):
        return not (one and one.volume) and not (other and other.volume)
    quotes = one.quote_volume, other.quote_volume
    return one[1:5] == other[1:5] and _near(one.volume, other.volume) and (not all(quotes) or _near(*quotes))


def _near(one: float | None, other: float | None) -> bool:
    assert one is not None and other is not None
    return abs(one - other) <= _TOLERANCE * max(one, other)
