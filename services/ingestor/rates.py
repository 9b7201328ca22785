"""How many answers must agree, from how often an exchange's answers turned out untrue. Pure.

If an answer is untrue with probability p, and independently of others, n answers tell the same untruth with p^n. A lead
of n answers over those that say otherwise is wrong with (p / (1 - p))^n. Each is held below ``ODDS`` a decision.

p is counted as answers are proven true or untrue, over about the last 2,000. Before the first it is 1 in 20, and one
untrue answer more than was seen is always assumed, so that p falls to 1 in 1,000 with the thousandth true answer.
"""

from __future__ import annotations

from math import ceil, log

ODDS = 1e-6
LEAST = 2
"""Answers that must agree however true an exchange has been."""
_PRIOR_ANSWERS, _PRIOR_UNTRUE = 20, 1
_MOST_ANSWERS = 2_000
_HOPELESS = 0.49
"""A majority is no proof from here on."""


class Rate:
    """The share of untrue answers of one kind."""

    def __init__(self) -> None:
        self._answers = 0.0
        self._untrue = 0.0

    def note(self, *, true: int = 0, untrue: int = 0) -> None:
        """Count answers."""
        self._answers += true + untrue
        self._untrue += untrue
        if self._answers > _MOST_ANSWERS:
            self._answers, self._untrue = self._answers / 2, self._untrue / 2

    @property
    def value(self) -> float:
        """p, above 0."""
        return (self._untrue + _PRIOR_UNTRUE) / (self._answers + _PRIOR_ANSWERS)


class Rates:
    """One exchange's."""

    def __init__(self) -> None:
        self.incomplete = Rate()
        """Answers that lack candles which exist."""
        self.foreign = Rate()
        """Answers with another market's candles."""

    def agreeing(self) -> int:
        """Answers without a candle that prove that it does not exist."""
        return agreeing(self.incomplete.value)

    def lead(self) -> int:
        """Answers by which one series of candles must lead over any other."""
        return lead(self.foreign.value)


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
