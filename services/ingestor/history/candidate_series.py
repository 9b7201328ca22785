"""Answers that tell of one series of candles, told apart from those of another market. Pure.

Nothing in many exchanges' answers says whose candles they are. Two answers tell of the same series if they agree on
more than half of the candles they share; one that shares none with any other is a series of its own until an answer
joins them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from services.common.model.page import Candle
from services.common.model.time_range import TimeRange


@dataclass(frozen=True, slots=True)
class Answer:
    """What an exchange said once.

    Attributes:
        window: What it speaks of: ends after the last candle when the call's limit cut it.
        inner: From its first to the end of its last candle; None without one.
    """

    window: TimeRange
    opens: frozenset[int]
    inner: TimeRange | None
    fetched_ns: int


@dataclass(slots=True, eq=False)
class CandidateSeries:
    """The candles some answers agree on.

    Attributes:
        votes: Answers that told of it, also those forgotten since.
        disputed: Candles on which they differ: how many answers gave each value.
        published: Some of its candles were handed on.
    """

    known: dict[int, Candle] = field(default_factory=dict)
    answers: list[Answer] = field(default_factory=list)
    votes: int = 0
    disputed: dict[int, Counter[Candle]] = field(default_factory=dict)
    published: bool = False

    def agrees(self, candles: Sequence[Candle]) -> bool:
        """Whether these are candles of this series."""
        shared = [c for c in candles if c.open_ns in self.known]
        return 2 * sum(self.known[c.open_ns] == c for c in shared) > len(shared)

    def shares(self, other: CandidateSeries) -> bool:
        """Whether both have a candle of the same time."""
        return not self.known.keys().isdisjoint(other.known)

    def take(self, answer: Answer, candles: Sequence[Candle], *, final: TimeRange) -> Candle | None:
        """Count an answer; returns a candle in which it differs. What was published, in ``final``, stays as it is."""
        told = {c.open_ns: c for c in candles}
        odd = [c for t, c in told.items() if t in self.known and (self.known[t] != c or t in self.disputed)]
        settled = final if self.published else TimeRange(0, 0)
        late = [c for t, c in told.items() if settled.start_ns <= t < settled.end_ns and self.known.get(t) != c]
        for c in odd:
            if c not in late:
                self._dispute(c)
        for t, c in told.items():
            if t not in self.known and not settled.start_ns <= t < settled.end_ns:
                self.known[t] = c
        self.answers.append(answer)
        self.votes += 1
        return next(iter(late + [c for c in odd if self.known[c.open_ns] != c]), None)

    def is_denied(self, answer: Answer) -> bool:
        """Whether an answer speaks of a time at which this series has a candle, and has none."""
        window = answer.window
        return any(window.start_ns <= t < window.end_ns and t not in answer.opens for t in self.known)

    def told(self, open_ns: int) -> int:
        """Answers with a candle of that time."""
        return sum(open_ns in a.opens for a in self.answers)

    def join(self, other: CandidateSeries) -> None:
        """Take in a series that is the same."""
        for open_ns in self.known.keys() & other.known.keys() - self.disputed.keys():
            if self.known[open_ns] != other.known[open_ns]:
                self.disputed[open_ns] = Counter({s.known[open_ns]: s.told(open_ns) for s in (self, other)})
        self.known = other.known | self.known
        self.answers += other.answers
        self.votes += other.votes
        self.published |= other.published
        for open_ns, votes in other.disputed.items():
            self.disputed.setdefault(open_ns, Counter()).update(votes)

    def settle_disputes(self, lead: int) -> None:
        """End those in which one value leads by so many answers."""
        for open_ns, votes in list(self.disputed.items()):
            (_, most), *rest = votes.most_common(2)
            if most - (rest[0][1] if rest else 0) >= lead:
                del self.disputed[open_ns]

    def forget(self, before_ns: int, *, keep_ns: int, keep_last: int) -> list[Answer]:
        """Drop answers that end by ``before_ns``, and candles before ``keep_ns`` but the last; returns the answers."""
        gone = [a for a in self.answers if a.window.end_ns <= before_ns]
        self.answers = [a for a in self.answers if a.window.end_ns > before_ns]
        if keep_last:
            keep_ns = min([keep_ns, *sorted(self.known)[-keep_last:]])
        self.known = {t: c for t, c in self.known.items() if t >= keep_ns}
        self.disputed = {t: v for t, v in self.disputed.items() if t >= before_ns}
        return gone

    def _dispute(self, candle: Candle) -> None:
        open_ns = candle.open_ns
        if open_ns not in self.disputed:
            self.disputed[open_ns] = Counter({self.known[open_ns]: self.told(open_ns)})
        votes = self.disputed[open_ns]
        votes[candle] += 1
        self.known[open_ns] = votes.most_common(1)[0][0]


def whole(answers: Iterable[Answer], known: Sequence[int]) -> list[Answer]:
    """The answers that hold every known candle of their window; ``known`` ascends."""
    return [
        a
        for a in answers
        if a.opens.issuperset(known[bisect_left(known, a.window.start_ns) : bisect_left(known, a.window.end_ns)])
    ]
