"""Proof and its price, against a model exchange that drops candles from its answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.common.market import TimeRange, open_times
from services.common.page import Candle
from services.ingestor.evidence import Ask, Evidence, Settled
from services.ingestor.paging import CallLimits, plan_pages
from tests.unit.services.ingestor.conftest import minutes

Fault = Callable[[list[Candle]], list[Candle]]


def candle(open_ns: int, close: float = 1.5) -> Candle:
    return Candle(open_ns, 1.0, 2.0, 0.5, close, 10.0)


def opens(*numbers: int) -> list[int]:
    return [minutes(n, 0).start_ns for n in numbers]


class Model:
    """An exchange that has exactly these minutes; faults strike its first answers, one each."""

    def __init__(self, present: Iterable[int], limits: CallLimits, faults: Iterable[Fault | None] = ()) -> None:
        self.present = sorted(opens(*present))
        self.limits = limits
        self.faults = list(faults)
        self.asks: list[Ask] = []

    def answer(self, ask: Ask) -> list[Candle]:
        if not self.limits.wide:
            assert ask.window.end_ns - ask.window.start_ns <= minutes(0, self.limits.candles).end_ns - opens(0)[0]
        self.asks.append(ask)
        inside = [candle(t) for t in self.present if ask.window.start_ns <= t < ask.window.end_ns]
        rows = inside[: self.limits.candles]
        fault = self.faults.pop(0) if self.faults else None
        return fault(rows) if fault else rows

    def settle(self, span: TimeRange, *, page: int, closed_end: int, hole_answers: int = 3) -> list[Settled]:
        evidence = Evidence(60, self.limits, closed_end_ns=minutes(closed_end, 0).start_ns, hole_answers=hole_answers)
        settled = []
        for part in plan_pages(span, 60, page):
            asked = len(self.asks)
            while ask := evidence.next_ask(part):
                assert len(self.asks) - asked < 60, f"no end of questions about {part}"
                assert evidence.add(ask.window, self.answer(ask), fetched_ns=len(self.asks)) is None
            settled.append(evidence.settle(part))
            filled = [c.open_ns for c in settled[-1].candles] + [
                t for r in settled[-1].empty for t in open_times(r, 60)
            ]
            assert sorted(filled) == open_times(part, 60)
        return settled


def found(settled: list[Settled]) -> list[int]:
    return [c.open_ns for page in settled for c in page.candles]


WIDE, PLAIN = CallLimits(100, wide=True), CallLimits(100)
EVERYWHERE = [n for n in range(-500, 3000) if n % 7 and n % 33]


@pytest.mark.parametrize("limits", [WIDE, PLAIN])
@pytest.mark.parametrize(
    ("name", "present", "most_calls"),
    [
        ("no hole", range(-500, 3000), 20),
        ("one hole", [n for n in range(-500, 3000) if n != 555], 21),
        ("one hole at a page's start", [n for n in range(-500, 3000) if n != 500], 21),
        ("one hole at a page's end", [n for n in range(-500, 3000) if n != 599], 21),
        ("one hole in the first and the last minute", [n for n in range(-500, 3000) if n not in (0, 1999)], 22),
        ("holes everywhere", EVERYWHERE, 44),
    ],
)
def test_price_of_proof(limits: CallLimits, name: str, present: Iterable[int], most_calls: int) -> None:
    model = Model(present, limits)
    settled = model.settle(minutes(0, 2000), page=100, closed_end=2500)
    assert found(settled) == opens(*(n for n in present if 0 <= n < 2000))
    assert len(model.asks) <= most_calls
    assert not any(ask.spaced for ask in model.asks), "known candles stand on both sides"


@pytest.mark.parametrize(
    ("name", "present", "most_calls"),
    [
        ("nothing at all", [], 4),
        ("nothing before the listing", range(1500, 3000), 9),
        ("nothing after the delisting", range(-500, 500), 13),
        ("a long outage", [n for n in range(-500, 3000) if not 500 <= n < 1500], 14),
    ],
)
def test_long_empty_stretches_cost_few_calls_where_windows_may_be_wide(
    name: str, present: Iterable[int], most_calls: int
) -> None:
    model = Model(present, WIDE)
    settled = model.settle(minutes(0, 2000), page=100, closed_end=2500)
    assert found(settled) == opens(*(n for n in present if 0 <= n < 2000))
    assert len(model.asks) <= most_calls


@pytest.mark.parametrize("hole_answers", [2, 3, 5])
def test_span_without_neighbours_needs_that_many_spaced_answers(hole_answers: int) -> None:
    model = Model([], PLAIN)
    model.settle(minutes(0, 20), page=20, closed_end=2500, hole_answers=hole_answers)
    assert [ask.spaced for ask in model.asks] == [
        False, *[True] * (hole_answers - 1),
    ]  # fmt: skip


def test_no_question_reaches_beyond_the_last_closed_candle() -> None:
    model = Model([n for n in range(-500, 150) if n % 7], WIDE)
    model.settle(minutes(0, 140), page=100, closed_end=140)
    assert max(ask.window.end_ns for ask in model.asks) == minutes(140, 0).start_ns


DROPS: dict[str, Fault] = {
    "everything": lambda rows: [],
    "first": lambda rows: rows[1:],
    "last": lambda rows: rows[:-1],
    "middle": lambda rows: rows[: len(rows) // 2 - 5] + rows[len(rows) // 2 + 5 :],
    "second half": lambda rows: rows[: len(rows) // 2],
    "every third": lambda rows: [row for n, row in enumerate(rows) if n % 3],
}


@pytest.mark.parametrize("present", [range(-500, 3000), EVERYWHERE], ids=["full", "holed"])
@pytest.mark.parametrize("turn", range(4))
@pytest.mark.parametrize("drop", DROPS)
def test_one_bad_answer_loses_nothing(drop: str, turn: int, present: Iterable[int]) -> None:
    model = Model(present, WIDE, [*[None] * turn, DROPS[drop]])
    settled = model.settle(minutes(0, 300), page=100, closed_end=2500)
    assert found(settled) == opens(*(n for n in present if 0 <= n < 300))


@settings(deadline=None, max_examples=150)
@given(
    present=st.sets(st.integers(-30, 150))
    | st.sets(st.integers(-30, 150), max_size=12).map(lambda holes: set(range(-30, 150)) - holes),
    limits=st.builds(CallLimits, st.integers(12, 40), wide=st.booleans()),
    page=st.integers(5, 60),
    dropped=st.lists(st.sets(st.integers(-30, 150)) | st.just(set(range(-30, 150))), max_size=6),
    closed=st.integers(100, 150),
)
def test_a_candle_is_never_lost_unless_two_answers_dropped_it(
    present: set[int], limits: CallLimits, page: int, dropped: list[set[int]], closed: int
) -> None:
    seen: set[int] = set()

    def drop_once(numbers: set[int]) -> Fault:
        def fault(rows: list[Candle]) -> list[Candle]:
            gone = (set(opens(*numbers)) & {c.open_ns for c in rows}) - seen
            seen.update(gone)
            return [c for c in rows if c.open_ns not in gone]

        return fault

    model = Model(present, limits, [drop_once(numbers) for numbers in dropped])
    settled = model.settle(minutes(0, 100), page=page, closed_end=closed)
    assert found(settled) == opens(*sorted(n for n in present if 0 <= n < 100))


def test_answer_that_contradicts_a_published_candle_proves_nothing() -> None:
    evidence = Evidence(60, PLAIN, closed_end_ns=minutes(2500, 0).start_ns, hole_answers=3)
    evidence.add(minutes(0, 100), [candle(t) for t in open_times(minutes(0, 100), 60)], fetched_ns=1)
    evidence.settle(minutes(0, 100))
    reason = evidence.add(
        minutes(50, 100), [candle(t, close=1.6) for t in open_times(minutes(50, 100), 60)], fetched_ns=2
    )
    assert reason is not None
    assert "close=1.5" in reason
    assert evidence.next_ask(minutes(100, 50)) == Ask(minutes(100, 50))


def test_answer_that_contradicts_an_unpublished_candle_has_to_be_confirmed() -> None:
    evidence = Evidence(60, PLAIN, closed_end_ns=minutes(2500, 0).start_ns, hole_answers=3)
    page, hole = minutes(0, 100), opens(40)[0]
    evidence.add(page, [candle(t) for t in open_times(page, 60) if t != hole], fetched_ns=1)
    ask = evidence.next_ask(page)
    assert ask is not None
    changed = [candle(t, close=1.6) for t in open_times(ask.window, 60) if t != hole]
    assert evidence.add(ask.window, changed, fetched_ns=2) is not None
    assert evidence.next_ask(page) == Ask(page), "what came before no longer counts"
    evidence.add(page, [candle(t, close=1.6) for t in open_times(page, 60) if t != hole], fetched_ns=3)
    assert evidence.next_ask(page) is None
    settled = evidence.settle(page)
    assert {c.close for c in settled.candles} == {1.6}
    assert (settled.empty, settled.fetched_ns) == ((TimeRange(hole, opens(41)[0]),), 3)


def test_candle_to_avoid_is_in_no_window() -> None:
    evidence = Evidence(60, WIDE, closed_end_ns=minutes(2500, 0).start_ns, hole_answers=3)
    evidence.avoid(opens(40)[0])
    evidence.avoid(opens(90)[0])
    page = minutes(41, 49)
    asked = []
    while ask := evidence.next_ask(page):
        asked.append(ask.window)
        evidence.add(ask.window, [candle(t) for t in open_times(ask.window, 60) if t != opens(60)[0]], fetched_ns=1)
    assert len(asked) == 2 or len(asked) == 3
    assert all(window.start_ns > opens(40)[0] and window.end_ns <= opens(90)[0] for window in asked)
    assert evidence.settle(page).empty == (TimeRange(opens(60)[0], opens(61)[0]),)
