"""How many answers must agree, from how often an exchange's answers turned out untrue. Pure.

If an answer is untrue with probability p, and independently of others, n answers tell the same untruth with p^n. A lead
of n answers over those that say otherwise is wrong with (p / (1 - p))^n. Each is held below ``ODDS`` a decision.

Both need p to be below one half, and few answers do not show that: so the answers seen must also be as many of one side
as half and half rarely gives.

p is counted as answers are proven true or untrue, over about the last 2,000. Before the first it is 1 in 20 for those
that lack candles and 1 in 10 for those of another market, and one untrue answer more than was seen is always assumed,
so that p falls to 1 in 1,000 with the thousandth true answer.
"""

from __future__ import annotations

from math import ceil, log, sqrt

ODDS = 1e-6
LEAST = 2
"""Answers that must agree however true an exchange has been."""
_MOST_ANSWERS = 2_000
_HOPELESS = 0.49
"""A majority is no proof from here on."""
_DEVIATIONS = 3.1
"""Standard deviations by which true answers must outnumber untrue ones, if half were: one count in a thousand does."""


class UntrueShare:
    """The share of untrue answers of one kind."""

    def __init__(self, prior_answers: int) -> None:
        """Assume one untrue answer in so many before the first."""
        self._prior_answers = prior_answers
        self._answers = 0.0
        self._untrue = 0.0

    def note(self, *, true: int = 0, untrue: int = 0) -> None:
        """Count answers."""
        self._answers += true + untrue
        self._untrue += untrue
        if self._answers > _MOST_ANSWERS:
            self._answers = self._answers / 2
            self._untrue = self._untrue / 2

    def value(self, *, true: int = 0, untrue: int = 0) -> float:
        """p, above 0, with answers that are not counted yet."""
        return (self._untrue + untrue + 1) / (self._answers + true + untrue + self._prior_answers)

    def is_minor(self, *, true: int = 0, untrue: int = 0) -> bool:
        """Whether less than half are untrue, beyond reasonable doubt; with answers that are not counted yet."""
        total = self._answers + true + untrue
        ahead = total - 2 * (self._untrue + untrue)
        return ahead > 0 and ahead >= _DEVIATIONS * sqrt(total)


class Agreement:
    """One exchange's."""

    def __init__(self) -> None:
        self.incomplete = UntrueShare(prior_answers=20)
        """Answers that lack candles which exist."""
        self.foreign = UntrueShare(prior_answers=10)
        """Answers with another market's candles."""

    def agreeing(self, *, true: int = 0, untrue: int = 0) -> int:
        """Answers without a candle that prove that it does not exist, given those about it so far."""
        return agreeing(self.incomplete.value(true=true, untrue=untrue))

    def lead(self, *, true: int = 0, untrue: int = 0) -> int:
        """Answers by which one series of candles must lead over any other, given those for it and against it.

        Where some are against it, no earlier answer makes the exchange better than these show it.
        """
        seen = (untrue + 1) / (true + untrue + 2) if untrue else 0.0
        return lead(max(seen, self.foreign.value(true=true, untrue=untrue)))

    def outweighs(self, votes: int, silent: int) -> bool:
        """Whether answers that tell the same candles prove them although no fewer said nothing, as half of them may."""
        if votes < silent:
            return False
        return votes * -log(self.foreign.value()) - silent * log(2) >= 1.5 * -log(ODDS)

    def disproves(self, silent: int, votes: int) -> bool:
        """Whether answers without candles disprove those that told some, although half of them may lack candles."""
        return silent > 3 * votes and silent * log(2) + votes * log(self.foreign.value()) >= -log(ODDS)


def agreeing(rate: float, odds: float = ODDS) -> int:
    """Least n with rate^n <= odds.

    >>> [agreeing(rate) for rate in (0.0005, 0.01, 0.05, 0.2, 0.5)]
    [2, 3, 5, 9, 20]
    """
    return max(LEAST, ceil(log(odds) / log(min(rate, 0.99)) - 1e-9))


def lead(rate: float, odds: float = ODDS) -> int:
    """Least n with (rate / (1 - rate))^n <= odds.

    >>> [lead(rate) for rate in (0.0005, 0.01, 0.05, 0.2)]
    [2, 4, 5, 10]
    """
    rate = min(rate, _HOPELESS)
    return max(LEAST, ceil(log(odds) / log(rate / (1 - rate)) - 1e-9))
