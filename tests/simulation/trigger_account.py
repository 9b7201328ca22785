"""What a client knows of a trigger in a run, and whether the trigger's firings agree with it. Pure.

Nobody sees when the triggers' process takes a change. So the account looks for moments at which it may have taken each
one that explain what fired and what did not: not before what the client knew to be evaluated when it asked, and not
after what the answers promise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass
class Trade:
    """A trade that counts, in the order of the log."""

    ticker: str
    price: float
    level: int


@dataclass
class Change:
    """An edit, a pause or a resumption.

    Attributes:
        value: The new level, or whether it is a pause.
        evaluated: Number of trades that the client knew to be evaluated when it asked.
        asked_at: Number of trades when it asked.
        answered_at: Number of trades when it was answered.
        taken_at: Number of trades when the client was told that the process has it.
    """

    value: int
    evaluated: int
    asked_at: int
    answered_at: int | None = None
    taken_at: int | None = None

    @property
    def begins_at(self) -> int:
        """First trade for which it may be in force; what came true in a pause never fires."""
        return self.evaluated if self.value else self.asked_at

    def is_due(self, place: int, final_at: int) -> bool:
        """Tell whether it must be in force for a trade."""
        ends = (final_at, self.taken_at, None if self.value else self.answered_at)
        return any(end is not None and place >= end for end in ends)


class _Moment(NamedTuple):
    """How far a trigger is: 0 not running, 1 running, 2 gone; and how many changes of each kind it has."""

    phase: int = 0
    edits: int = 0
    pauses: int = 0


@dataclass
class Known:
    """A trigger as its client knows it.

    Attributes:
        level: Trades above so many thousands fire it at first.
        asked_at: Number of trades when its registration was sent.
        running_at: Number of trades when it was answered.
        deleted: The deletion was asked for.
        edits: Changes of its level, in order.
        pauses: Pauses and resumptions, in turn.
        silent: Trades of pauses that had ended before the process heard of the trigger: they never fire it.
    """

    ticker: str
    level: int
    registered: bool = False
    asked_at: int = 0
    running_at: int | None = None
    deleted: bool = False
    edits: list[Change] = field(default_factory=list)
    pauses: list[Change] = field(default_factory=list)
    silent: set[int] | None = None

    @property
    def is_paused(self) -> bool:
        """The last change of this kind is a pause."""
        return bool(self.pauses and self.pauses[-1].value)

    def is_heard_of(self, *, resumed: bool) -> None:
        """Note that the triggers' process hears of it, and whether as of one that has been resumed.

        What was settled in the only pause before is silent then: no row was evaluated for it before.
        """
        if self.silent is None:
            self.silent = set()
            if resumed and len(self.pauses) == 2:
                pause, resumption = self.pauses
                if pause.answered_at is not None and resumption.answered_at is not None:
                    self.silent = {*range(pause.answered_at, resumption.asked_at)}

    def fires_last(self, level: int) -> bool:
        """Tell whether a trade fires it once it has every change."""
        return not self.is_paused and level >= (self.edits[-1].value if self.edits else self.level)

    def unexplained(self, traded: Sequence[Trade], fired: Iterable[float], *, final_at: int) -> Trade | None:
        """Return the first trade that no moments of its changes explain; None if all are explained.

        Args:
            fired: Prices of the trades that it fired for.
            final_at: Number of trades before those at which every change was taken long ago.
        """
        did, moments = {*fired}, {_Moment()}
        for place, trade in enumerate(traded):
            if trade.ticker != self.ticker:
                continue
            moments = {
                later
                for each in moments
                for later in self._later(each, place, final_at)
                if self._fires(later, trade) == (trade.price in did)
                and not (trade.price in did and place in (self.silent or ()))
            }
            if not moments:
                return trade
        return None

    def _fires(self, moment: _Moment, trade: Trade) -> bool:
        is_paused = moment.pauses and self.pauses[moment.pauses - 1].value
        level = self.edits[moment.edits - 1].value if moment.edits else self.level
        return moment.phase == 1 and not is_paused and trade.level >= level

    def _later(self, moment: _Moment, place: int, final_at: int) -> Iterator[_Moment]:
        """Yield the moments in which it may be at a trade, after it was in another one at the trade before."""
        for phase in range(moment.phase, 3):
            if phase == 0 and self.running_at is not None and place >= self.running_at:
                continue
            if (phase == 1 and place < self.asked_at) or (phase == 2 and not self.deleted):
                continue
            for edits in self._edits(moment.edits, place, final_at):
                for pauses in self._pauses(moment.pauses, place, final_at):
                    yield _Moment(phase, edits, pauses)

    def _edits(self, count: int, place: int, final_at: int) -> Iterator[int]:
        for taken in range(count, len(self.edits) + 1):
            if taken > count and place < self.edits[taken - 1].evaluated:
                return
            if not any(each.is_due(place, final_at) for each in self.edits[taken:]):
                yield taken

    def _pauses(self, count: int, place: int, final_at: int) -> Iterator[int]:
        rest = self.pauses[count:]
        if not any(each.is_due(place, final_at) for each in rest):
            yield count
        if rest and place >= rest[0].begins_at:
            yield from self._pauses(count + 1, place, final_at)
            if len(rest) > 1 and not rest[0].value and rest[0].taken_at is None:
                yield from self._pauses(count + 2, place, final_at)  # the pause behind it has undone it
