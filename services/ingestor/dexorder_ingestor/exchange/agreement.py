"""Number of answers that must agree, given how often the answers of an exchange turned out to be untrue. Pure.

docs/completeness.md explains the measured probability p of an untrue answer and the formulas under "How many answers
must agree". Both formulas need p to be below one half, and few answers cannot show that. So the answers on one side
must also be as many as a rate of one half would rarely give.
"""

from __future__ import annotations

from math import ceil, log, sqrt
from typing import NamedTuple

from dexorder_common.model.times import SECOND_NS

ODDS = 1e-6
"""Largest probability of one wrong decision."""
MIN_ANSWERS = 2
"""Answers that must agree, however reliable an exchange has been."""
HALF_LIFE_NS = 3_600 * SECOND_NS
"""Time after which an answer counts half: 2,000 true ones of yesterday are no evidence today."""
_MAX_COUNTED = 2_000.0
_KEPT_INCOMPLETE = 40.0
_KEPT_FOREIGN = 4.0
"""Answers that still count, in proportion, once one turns out to be untrue: an exchange that goes bad was good before.
Fewer where only the number of answers decides: after one answer with another market's candles, the next job needs
nine."""
_HOPELESS = 0.49
"""Largest share of untrue answers that is assumed; with more, a majority would not be a proof."""
_DEVIATIONS = 3.1
"""Standard deviations by which true answers must outnumber untrue ones; if half were untrue, one count in a thousand
would."""
_DEVIATIONS_DISPUTED = 4.0
"""The same for answers of which some disagree: they are counted again after each, for up to hundreds of answers."""


class Counted(NamedTuple):
    """Answers counted so far, each less the older it is."""

    answers: float = 0.0
    untrue: float = 0.0

    def aged(self, elapsed_ns: int) -> Counted:
        """Return the count after a time."""
        return self._scaled(0.5 ** (max(0, elapsed_ns) / HALF_LIFE_NS))

    def plus(self, *, true: int, untrue: int, kept: float) -> Counted:
        """Return the count with more answers; of older ones only ``kept`` count if one of these is untrue."""
        most = kept if untrue else _MAX_COUNTED
        older = self._scaled(min(1.0, most / self.answers)) if self.answers else self
        return Counted(older.answers + true + untrue, older.untrue + untrue)

    def _scaled(self, share: float) -> Counted:
        return Counted(self.answers * share, self.untrue * share)


class UntrueShare:
    """Measured share of untrue answers of one kind."""

    def __init__(self, prior_answers: int, *, kept: float) -> None:
        """Assume one untrue answer in ``prior_answers`` before the first; ``kept`` is `Counted.plus`'s."""
        self._prior_answers = prior_answers
        self._kept = kept
        self._new = (0, 0)
        self.counted = Counted()

    def note(self, *, true: int = 0, untrue: int = 0) -> None:
        """Count answers."""
        self.counted = self._counted_with(true, untrue)
        self._new = self._new[0] + true, self._new[1] + untrue

    def share(self, counted: Counted) -> None:
        """Add the answers counted since the last call to the count of all processes, and take the sum."""
        (true, untrue), self._new = self._new, (0, 0)
        self.counted = counted
        self.counted = self._counted_with(true, untrue)

    def value(self, *, true: int = 0, untrue: int = 0) -> float:
        """Return p, above 0, including answers that are not counted yet."""
        counted = self._counted_with(true, untrue)
        return (counted.untrue + 1) / (counted.answers + self._prior_answers)

    def is_minority(self, *, true: int = 0, untrue: int = 0) -> bool:
        """Return whether fewer than half are untrue beyond reasonable doubt, including answers not counted yet."""
        counted = self._counted_with(true, untrue)
        ahead = counted.answers - 2 * counted.untrue
        return ahead > 0 and ahead >= _DEVIATIONS * sqrt(counted.answers)

    def _counted_with(self, true: int, untrue: int) -> Counted:
        return self.counted.plus(true=true, untrue=untrue, kept=self._kept)


class Agreement:
    """Agreement that the answers of one exchange need, for all of its dispatches."""

    def __init__(self) -> None:
        self.incomplete = UntrueShare(prior_answers=20, kept=_KEPT_INCOMPLETE)
        """Answers that lack candles which exist."""
        self.foreign = UntrueShare(prior_answers=10, kept=_KEPT_FOREIGN)
        """Answers with another market's candles."""
        self._now_ns = 0

    def advance(self, now_ns: int) -> None:
        """Let the answers counted so far age; without effect if the time is not later than the last one."""
        elapsed_ns = now_ns - self._now_ns if self._now_ns else 0
        if elapsed_ns > 0:
            for share in (self.incomplete, self.foreign):
                share.counted = share.counted.aged(elapsed_ns)
        self._now_ns = max(self._now_ns, now_ns)

    def agreeing(self, *, true: int = 0, untrue: int = 0) -> int:
        """Return how many answers without a candle prove that it does not exist, given those about it so far."""
        return agreeing(max(_seen(true, untrue), self.incomplete.value(true=true, untrue=untrue)))

    def lead(self, *, true: int = 0, untrue: int = 0) -> int:
        """Return by how many answers a series must lead over any other, given those for it and those against it."""
        return lead(max(_seen(true, untrue), self.foreign.value(true=true, untrue=untrue)))

    def is_lead(self, votes: int, against: int) -> bool:
        """Return whether this number of answers shows that the candles are the queried market's."""
        if not self.foreign.is_minority(true=votes, untrue=against):
            return False
        if against and votes - against < _DEVIATIONS_DISPUTED * sqrt(votes + against):
            return False  # no earlier answer vouches
        return votes - against >= self.lead(true=votes, untrue=against)


def _seen(true: int, untrue: int) -> float:
    """Return the share of untrue answers about the same candles; if some disagree, no earlier answer vouches."""
    return (untrue + 1) / (true + untrue + 2) if untrue else 0.0


def agreeing(share: float) -> int:
    """Return the least n with share^n <= ODDS.

    >>> [agreeing(share) for share in (0.0005, 0.01, 0.05, 0.2, 0.5)]
    [2, 3, 5, 9, 20]
    """
    return max(MIN_ANSWERS, ceil(log(ODDS) / log(min(share, 0.99)) - 1e-9))


def lead(share: float) -> int:
    """Return the least n with (share / (1 - share))^n <= ODDS.

    >>> [lead(share) for share in (0.0005, 0.01, 0.05, 0.2)]
    [2, 4, 5, 10]
    """
    share = min(share, _HOPELESS)
    return max(MIN_ANSWERS, ceil(log(ODDS) / log(share / (1 - share)) - 1e-9))
