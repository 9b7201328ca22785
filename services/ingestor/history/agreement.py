"""Number of answers that must agree, given how often the answers of an exchange turned out to be untrue. Pure.

docs/completeness.md explains the measured probability p of an untrue answer and the formulas under "How many answers
must agree". Both formulas need p to be below one half, and few answers cannot show that. So the answers on one side
must also be as many as a rate of one half would rarely give.
"""

from __future__ import annotations

from math import ceil, log, sqrt

ODDS = 1e-6
"""Largest probability of one wrong decision."""
MIN_ANSWERS = 2
"""Answers that must agree, however reliable an exchange has been."""
_MAX_COUNTED = 2_000
_HOPELESS = 0.49
"""From this share on a majority is not proof."""
_DEVIATIONS = 3.1
"""Standard deviations by which true answers must outnumber untrue ones; if half were untrue, one count in a thousand
would."""


class UntrueShare:
    """Measured share of untrue answers of one kind."""

    def __init__(self, prior_answers: int) -> None:
        """Assume one untrue answer in ``prior_answers`` before the first."""
        self._prior_answers = prior_answers
        self._answers = 0.0
        self._untrue = 0.0

    def note(self, *, true: int = 0, untrue: int = 0) -> None:
        """Count answers."""
        self._answers += true + untrue
        self._untrue += untrue
        if self._answers > _MAX_COUNTED:
            self._answers = self._answers / 2
            self._untrue = self._untrue / 2

    def value(self, *, true: int = 0, untrue: int = 0) -> float:
        """Return p, above 0, including answers that are not counted yet."""
        return (self._untrue + untrue + 1) / (self._answers + true + untrue + self._prior_answers)

    def is_minority(self, *, true: int = 0, untrue: int = 0) -> bool:
        """Return whether fewer than half are untrue beyond reasonable doubt, including answers not counted yet."""
        total = self._answers + true + untrue
        ahead = total - 2 * (self._untrue + untrue)
        return ahead > 0 and ahead >= _DEVIATIONS * sqrt(total)


class Agreement:
    """Agreement that the answers of one exchange need, for all of its dispatches."""

    def __init__(self) -> None:
        self.incomplete = UntrueShare(prior_answers=20)
        """Answers that lack candles which exist."""
        self.foreign = UntrueShare(prior_answers=10)
        """Answers with another market's candles."""

    def agreeing(self, *, true: int = 0, untrue: int = 0) -> int:
        """Return how many answers without a candle prove that it does not exist, given those about it so far."""
        return agreeing(self.incomplete.value(true=true, untrue=untrue))

    def lead(self, *, true: int = 0, untrue: int = 0) -> int:
        """Return by how many answers a series must lead over any other, given those for it and those against it.

        If some are against it, the exchange counts as no more reliable than these show, whatever it answered earlier.
        """
        seen = (untrue + 1) / (true + untrue + 2) if untrue else 0.0
        return lead(max(seen, self.foreign.value(true=true, untrue=untrue)))

    def is_lead(self, votes: int, against: int) -> bool:
        """Return whether so many answers show whose candles they hold."""
        if not self.foreign.is_minority(true=votes, untrue=against):
            return False
        return votes - against >= self.lead(true=votes, untrue=against)

    def outweighs(self, votes: int, empty: int) -> bool:
        """Return whether answers with the same candles prove them against ``empty`` answers that have none.

        As many as half of the empty answers may be untrue.
        """
        if votes < empty:
            return False
        return votes * -log(self.foreign.value()) - empty * log(2) >= 1.5 * -log(ODDS)

    def disproves(self, empty: int, votes: int) -> bool:
        """Return whether answers without candles disprove ``votes`` answers with some, though half may lack candles."""
        return empty > 3 * votes and empty * log(2) + votes * log(self.foreign.value()) >= -log(ODDS)


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
