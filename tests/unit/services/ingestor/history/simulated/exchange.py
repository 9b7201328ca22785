"""An exchange that lies, as a job sees it: venue and session in one, without sockets, with a log of its faults.

Lies keep the promise of `Session.candles`: valid candles inside the window, in time order. Faults that one answer shows
by itself are caught before; these are the lies that only other answers can show.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable, Collection

from dexorder_common.model.page import Candle
from dexorder_common.model.periods import count_periods
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.agreement import Agreement
from dexorder_ingestor.exchange.answer_shape import AnswerShapes
from dexorder_ingestor.exchange.dialect import CandleFacts, Dialect
from dexorder_ingestor.exchange.failures import ExchangeFailure, ImpossibleCandle
from tests.unit.services.ingestor.history.one_venue import OneVenue
from tests.unit.services.ingestor.history.simulated.world import BEFORE, BEHIND, SYMBOL, World

Rows = list[Candle]
CALL_NS = SECOND_NS // 10
"""Time of a call in worlds where time matters."""
FAILURE = "no sound answer, says the test"


def _hole(rows: Rows, other: Rows, dice: random.Random) -> Rows:
    first = dice.randrange(len(rows)) if rows else 0
    return rows[:first] + rows[first + dice.randint(1, max(1, len(rows))) :]


LIES: dict[str, Callable[[Rows, Rows, random.Random], Rows]] = {
    "nothing": lambda rows, other, dice: [],
    "short": lambda rows, other, dice: rows[: dice.randrange(len(rows))] if rows else [],
    "no first": lambda rows, other, dice: rows[1:],
    "no last": lambda rows, other, dice: rows[:-1],
    "hole": _hole,
    "other symbol": lambda rows, other, dice: other,
}
"""Kind -> what is answered instead of the true rows, given those of another symbol too."""


def _edited(rows: Rows, dice: random.Random) -> Rows:
    """Return candles of which some have another close and volume, as before a correction."""
    return [c._replace(close=c.low, volume=c.volume * 2) if dice.random() < 0.05 else c for c in rows]


FILES: dict[str, Callable[[Rows, random.Random], Rows]] = {
    "true": lambda rows, dice: rows,
    "other symbol": lambda rows, dice: rows,
    "edited": _edited,
    "shifted": lambda rows, dice: [
        b._replace(open_ns=a.open_ns) for a, b in zip(rows, rows[1:] + rows[:1], strict=True)
    ],
}
"""Kind -> what a file of a day holds, given its true candles, or another symbol's."""
ANY_FILES = "any"
"""Each file is of any kind, or there is none."""
DROPPING = tuple(kind for kind in LIES if kind != "other symbol")
"""The kinds that invent nothing."""


def _as_of(rows: Rows, view_ns: int, period_seconds: int) -> Rows:
    """Return candles as they were at a time; the last is half-finished."""
    shown = [c for c in rows if c.open_ns < view_ns]
    if shown and shown[-1].open_ns + period_seconds * SECOND_NS > view_ns:
        shown[-1] = shown[-1]._replace(volume=shown[-1].volume / 2, close=shown[-1].open)
    return shown


class Killed(BaseException):
    """Death of the ingestor; nothing of it survives."""


class Exchange(OneVenue):
    """Exchange of a world; the clock moves only by sleeping.

    Attributes:
        calls: Queries so far.
        lies: Queries answered with a lie.
        failed: Queries that failed at random.
        files: Files of days that were fetched.
        tallies: Whether each of these agreed with coarser candles.
        log: A line for each faulty answer.
        on_call: Called at each query; may raise Killed.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.limits = world.call
        super().__init__(
            Agreement(),
            now_ns=world.closed_end_ns + SECOND_NS // 2,
            page_candles=world.page,
            hole_spacing_seconds=0.2 if world.untruth else 0.0,
        )
        self.agreement.incomplete.note(true=world.good_answers)
        self.agreement.foreign.note(true=world.good_answers)
        self.calls = self.lies = self.failed = self.files = 0
        self.tallies: list[bool] = []
        self.log: list[str] = []
        self.on_call: Callable[[], None] = lambda: None
        self._dice = random.Random(f"{world.seed}/lies")
        facts = CandleFacts(world.call.candles, volume_tolerance=1e-9 if world.cells else None)
        self.dialect = Dialect("sim", facts)
        self.offered = (world.period_seconds, *world.cells)
        self.shapes = AnswerShapes()
        self._connection = 0
        self._kinds = world.kinds or tuple(LIES)
        self._began_ns = self.clock_ns
        self._coarse: dict[tuple[str, int], tuple[list[int], Rows]] = {}
        self._impossible = {world.open_ns(number) for number in world.impossible}
        self._rows = {"asked": list(world.market.values()), "other": list(world.other.values())}
        self._opens = {symbol: [c.open_ns for c in rows] for symbol, rows in self._rows.items()}

    # ---- what a venue has

    async def timeframe(self, session: object, symbol: str, period_seconds: int) -> str:
        assert (symbol, period_seconds) == (SYMBOL, self.world.period_seconds)
        return "a timeframe"

    hosts = 1

    def renew_connection(self) -> None:
        self._connection += 1

    # ---- what a session has

    async def candles(
        self, symbol: str, timeframe: str, period_seconds: int, window: TimeRange, skip: Collection[int] = ()
    ) -> tuple[list[Candle], int]:
        assert window, "an empty window asks nothing"
        assert self.limits.wide or count_periods(window, period_seconds) <= self.limits.candles, str(window)
        self.on_call()
        self.calls += 1
        self.clock_ns += CALL_NS if self.world.untruth else 1
        if self._dice.random() < self.world.failures:
            self.failed += 1
            self._note(window, "fails")
            raise ExchangeFailure(FAILURE)
        honest = self._answer("asked", window, period_seconds)
        if self._impossible:
            self._refuse_impossible(honest, window, skip)
            honest = [c for c in honest if c.open_ns not in skip]
        return self._perhaps_a_lie(honest, window, period_seconds), self.clock_ns

    async def day_file(self, symbol: str, period_seconds: int, day: TimeRange) -> tuple[list[Candle], int] | None:
        """Return a file, which is whole where the history is; before and after the history any candles will do."""
        kind, known = self.world.files, range(-BEFORE, self.world.periods + BEHIND)
        if kind == ANY_FILES:
            kind = self._dice.choice(["", "true", *FILES])
        if not kind:
            return None  # late, absent, cut or damaged: the product has no candles then
        rows = self.world.other if kind == "other symbol" else self.world.market
        found = [
            rows.get(t) or Candle(t, 1, 1, 1, 1, 0) for t in range(day.start_ns, day.end_ns, period_seconds * SECOND_NS)
        ]
        if any(c.open_ns not in rows and self.number(c.open_ns) in known for c in found):
            return None  # the product refuses a file with an absent candle
        self.files += 1
        return FILES[kind](found, self._dice), self.clock_ns

    def judge_file(self, *, tallies: bool) -> None:
        self.tallies.append(tallies)

    def number(self, open_ns: int) -> int:
        """Return the number of the period of a time."""
        world, start_ns = self.world, self.world.span.start_ns
        if open_ns < start_ns:
            return -count_periods(TimeRange(open_ns, start_ns), world.period_seconds)
        return count_periods(TimeRange(start_ns, open_ns), world.period_seconds)

    # ---- honest and not

    def _answer(self, whose: str, window: TimeRange, period_seconds: int) -> Rows:
        opens, rows = self._table(whose, period_seconds)
        first, end = bisect_left(opens, window.start_ns), bisect_left(opens, window.end_ns)
        absent, untruth = self._absent(), self.world.untruth
        if untruth and untruth.intact and period_seconds != self.world.period_seconds:
            absent = None
        if absent and period_seconds != self.world.period_seconds and self.world.untruth and self.world.untruth.deep:
            left = [c for c in self._rows[whose] if not absent.start_ns <= c.open_ns < absent.end_ns]
            rows, first, end, absent = self.world.coarse(left, period_seconds), 0, len(rows), None
            rows = [c for c in rows if window.start_ns <= c.open_ns < window.end_ns]
        rows = [c for c in rows[first:end] if not absent or not absent.start_ns <= c.open_ns < absent.end_ns]
        rows = rows[: self.limits.candles]
        if returned := self.world.returned:
            rows = rows[:returned] if returned > 0 else rows[returned:]
        if rows and rows[-1].open_ns >= self.world.closed_end_ns:  # such a candle still runs, so it changes
            rows = [
                c if c.open_ns < self.world.closed_end_ns else c._replace(volume=c.volume + self.calls) for c in rows
            ]
        return rows

    def _table(self, whose: str, period_seconds: int) -> tuple[list[int], Rows]:
        """Return open times and candles of a period, as far as the exchange has them by now."""
        rows = self._rows[whose]
        coarse = period_seconds != self.world.period_seconds
        behind_ns = self._behind_ns()
        if behind_ns:
            rows = _as_of(rows, self.clock_ns - behind_ns, self.world.period_seconds)
        if self.world.untruth and (lag_ns := self.world.untruth.lag_s * SECOND_NS):
            late_ns = self.clock_ns - lag_ns - self.world.period_seconds * SECOND_NS
            rows = [c for c in rows if c.open_ns <= late_ns]
        elif not coarse and not behind_ns:
            return self._opens[whose], rows
        elif not behind_ns and (whose, period_seconds) in self._coarse:
            return self._coarse[whose, period_seconds]
        rows = self.world.coarse(rows, period_seconds) if coarse else rows
        table = [c.open_ns for c in rows], rows
        if not behind_ns and not (self.world.untruth and self.world.untruth.lag_s):
            self._coarse[whose, period_seconds] = table
        return table

    def _behind_ns(self) -> int:
        """Return by how much an answer is behind now."""
        untruth = self.world.untruth
        is_behind = untruth and untruth.behind_s and not self._connection % untruth.replicas
        return round(untruth.behind_s * SECOND_NS) if untruth and is_behind else 0

    def _absent(self) -> TimeRange | None:
        """Return the range whose candles an untruth hides now."""
        untruth = self.world.untruth
        if untruth is None or not untruth.count or self._connection % untruth.replicas:
            return None
        if untruth.share < 1 and self._dice.random() >= untruth.share:
            return None
        began_ns = self._began_ns + untruth.calls * CALL_NS
        lasts = began_ns <= self.clock_ns < began_ns + untruth.lasts_s * SECOND_NS
        hidden = TimeRange(self.world.open_ns(untruth.first), self.world.open_ns(untruth.first + untruth.count))
        return hidden if lasts else None

    def _refuse_impossible(self, rows: Rows, window: TimeRange, skip: Collection[int]) -> None:
        """Raise as `Session.candles` does after too many equal impossible candles."""
        bad = [c.open_ns for c in rows if c.open_ns in self._impossible and c.open_ns not in skip]
        if bad:
            self._note(window, f"has impossible candles, periods {list(map(self.number, bad))}")
            raise ImpossibleCandle(f"SIM keeps answering candle {bad[0]} with low > high", bad)

    def _perhaps_a_lie(self, honest: Rows, window: TimeRange, period_seconds: int) -> Rows:
        if self._dice.random() >= self.world.lies:
            return honest
        kind = self._dice.choice(self._kinds)
        told = LIES[kind](honest, self._answer("other", window, period_seconds), self._dice)
        about = {c.open_ns for c in set(honest) ^ set(told)}
        if not about:
            return honest
        self.lies += 1
        numbers = sorted(map(self.number, about))
        self._note(window, f"{kind}: {len(about)} of {len(honest)} wrong, periods {numbers[0]} to {numbers[-1]}")
        return told

    def _note(self, window: TimeRange, what: str) -> None:
        at = f"[{self.number(window.start_ns)}, {self.number(window.end_ns)})"
        self.log.append(f"call {self.calls} {at} {what}")
