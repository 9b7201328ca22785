"""Pages of trades from an exchange that answers as Kraken does, or worse."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dexorder_common.model.page import Candle
from dexorder_common.model.periods import (
    MONTH_SECONDS,
    PERIODS,
    WEEK_SECONDS,
    floor_to_grid,
    is_on_grid,
    next_open,
)
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS, parse_time
from dexorder_ingestor.exchange.answers import BadAnswer
from dexorder_ingestor.exchange.dialects.kraken import read_trades
from dexorder_ingestor.exchange.trade_pager import OrderedCandleBuilder, TradePager
from tests.examples import few
from tests.unit.services.ingestor.conftest import MINUTE_NS, minutes

WINDOW = minutes(0, 10)
START_S = WINDOW.start_ns // SECOND_NS
MS_NS = 1_000_000
NEEDED = 3
Rows = list[list[Any]]
Spoil = Callable[[Rows], Rows]


def row(time_ms: int, number: int | None, price: str = "2.5", amount: str = "0.1") -> list[Any]:
    """A raw trade, milliseconds after the window's start."""
    known = [price, amount, (START_S * 1000 + time_ms) / 1000, "b", "l", ""]
    return known if number is None else [*known, number]


def tape(*times_ms: int, ids: bool = True) -> Rows:
    return [row(t, n if ids else None, price=f"{n}.5") for n, t in enumerate(times_ms, 1)]


def time_ns(raw: list[Any]) -> int:
    return round(float(raw[2]) * 1000) * MS_NS


@dataclass
class Tape:
    """The exchange. ``grain_ns`` is what it cuts ``since`` to; exclusive ones leave out a trade of that very moment."""

    rows: Rows
    page: int = 5
    grain_ns: int = 1
    exclusive: bool = False

    def answer(self, since_ns: int) -> tuple[Rows, str]:
        since_ns -= since_ns % self.grain_ns
        found = [r for r in self.rows if time_ns(r) > since_ns or (time_ns(r) == since_ns and not self.exclusive)]
        found = [list(r) for r in found[: self.page]]
        return found, str(time_ns(found[-1]) if found else since_ns)


def oracle(rows: Rows, window: TimeRange = WINDOW) -> list[Candle]:
    builder = OrderedCandleBuilder(60)
    for r in rows:
        if window.start_ns <= time_ns(r) < window.end_ns:
            builder.add(time_ns(r), Decimal(r[0]), Decimal(r[1]))
    return builder.candles()


def walked(
    tape: Tape, *, candles: int = 1000, spoil: Callable[[int], Spoil | None] = lambda turn: None
) -> tuple[list[Candle], int]:
    """Page with up to eight attempts for a query, as a session does; return the candles and the number of answers."""
    walk, turns = TradePager(WINDOW, 60, candles=candles, answers=NEEDED, page=tape.page), 0
    while ask := walk.next_query():
        for attempt in range(8):
            rows, last = tape.answer(ask.since_ns)
            spoiler, turns = spoil(turns), turns + 1
            rows = spoiler(rows) if spoiler else rows
            try:
                walk.add(read_trades(rows, last, since_ns=ask.since_ns))
                break
            except BadAnswer:
                if attempt == 7:
                    raise
    return walk.candles(), turns


def test_one_answer_that_reaches_over_both_ends_is_enough() -> None:
    rows = tape(-1_000, 0, 59_999, 60_000, 600_000)
    assert walked(Tape(rows)) == (oracle(rows), 1)


def test_trades_of_one_moment_at_the_border_of_a_page_are_neither_lost_nor_doubled() -> None:
    rows = tape(-1, *[1_000] * 7, *[2_000] * 3, 600_000)
    assert walked(Tape(rows, page=8))[0] == oracle(rows)
    assert oracle(rows)[0].trade_count == 10


def test_moment_with_more_trades_than_a_page_ends_instead_of_going_round() -> None:
    with pytest.raises(BadAnswer, match="5 trades or more at 2023-11-01T00:00:01Z: no query reaches past them"):
        walked(Tape(tape(-1, *[1_000] * 6, 600_000)))


def test_newest_trades_take_several_answers_that_agree() -> None:
    rows = tape(-1_000, 0, 1_000)
    assert walked(Tape(rows)) == (oracle(rows), 1 + NEEDED + 1)


def test_answer_that_always_ends_early_is_found_out_by_the_windows_end() -> None:
    rows = tape(-1_000, 0, 1_000, 2_000, 700_000)

    def cut(rows: Rows) -> Rows:
        return [r for r in rows if r[6] != 4 and (r[6] != 5 or len(rows) == 1)]

    with pytest.raises(BadAnswer, match="ends at 2023-11-01T00:00:01Z although later trades exist"):
        walked(Tape(rows), spoil=lambda turn: cut)


def test_beginning_without_an_earlier_trade_takes_several_answers_that_agree() -> None:
    rows = tape(5_000, 6_000, 700_000)
    asks: list[int] = []

    class Heard(Tape):
        def answer(self, since_ns: int) -> tuple[Rows, str]:
            asks.append((WINDOW.start_ns - since_ns) // SECOND_NS)
            return super().answer(since_ns)

    assert walked(Heard(rows)) == (oracle(rows), NEEDED)
    assert asks == [60, 960, 15_360], "each from elsewhere, so that one fault does not repeat"


def test_first_trade_an_answer_held_is_never_forgotten() -> None:
    with pytest.raises(BadAnswer, match="starts after a trade that an earlier answer held"):
        walked(Tape(tape(5_000, 6_000, 700_000)), spoil=lambda turn: (lambda r: r[1:]) if turn else None)


def test_window_without_trades_has_no_candles() -> None:
    for rows in (tape(), tape(-1_000), tape(600_000), tape(-1_000, 600_000)):
        assert walked(Tape(rows))[0] == []


def test_walk_stops_when_it_has_enough_whole_candles() -> None:
    rows = tape(-1, *range(0, 600_000, 10_000), 600_000)
    found, answers = walked(Tape(rows), candles=2)
    assert found == oracle(rows)[:2]
    assert answers == 4, "14 of 62 trades, five a page, the first of each known"


def test_skipped_id_is_believed_when_several_answers_skip_it() -> None:
    rows = [row(-1_000, 1), row(0, 2), row(1_000, 5), row(600_000, 6)]
    assert walked(Tape(rows)) == (oracle(rows), NEEDED)


def test_trades_without_ids_are_believed_when_two_answers_are_equal() -> None:
    rows = tape(-1_000, 0, 0, 1_000, 600_000, ids=False)
    assert walked(Tape(rows)) == (oracle(rows), 2)
    found, answers = walked(Tape(rows), spoil=lambda turn: (lambda r: r[:2] + r[3:]) if turn == 1 else None)
    assert (found, answers) == (oracle(rows), 4)


def test_impossible_trade_names_its_candle_and_only_there() -> None:
    rows = tape(-1_000, 61_000, 600_000)
    rows[1][0] = "0.0"
    with pytest.raises(BadAnswer, match=r"trade \['0\.0', '0\.1', .* lacks a price above 0") as caught:
        walked(Tape(rows))
    assert caught.value.opens == (WINDOW.start_ns + MINUTE_NS,)
    for outside in (-61_000, 600_001):
        rows[1] = row(outside, 2, price="x")
        rows.sort(key=time_ns)
        tape_of = [[*r[:6], n] for n, r in enumerate(rows)]
        assert walked(Tape(tape_of))[0] == []


LAST = str(WINDOW.end_ns)
UNREADABLE: list[tuple[Rows | list[Any], Any, str]] = [
    ([None], LAST, "is not a trade"),
    ([["1", "1"]], LAST, "is not a trade"),
    ([["1", "1", None, "b", "l", ""]], LAST, "lacks a time in seconds"),
    ([["1", "1", "1698796800", "b", "l", ""]], LAST, "lacks a time in seconds"),
    ([row(0, 1), row(1, None)], LAST, "only some of the trades have an id"),
    ([row(1, 1), row(0, 2)], LAST, "comes after"),
    ([row(0, 2), row(1, 1)], LAST, "comes after"),
    ([row(0, 1), row(0, 1)], LAST, "comes after"),
    ([row(-2_000, 1)], LAST, "older than the queried time"),
    ([row(0, 1)], None, "cursor is"),
    ([row(0, 1)], str(WINDOW.start_ns - 2_000), "cursor goes back"),
    ([], str(WINDOW.start_ns - SECOND_NS), "cursor goes back"),
]


@pytest.mark.parametrize(("rows", "last", "reason"), UNREADABLE)
def test_garbage_is_no_trade(rows: Rows, last: Any, reason: str) -> None:
    with pytest.raises(BadAnswer, match=reason):
        read_trades(rows, last, since_ns=WINDOW.start_ns)


def test_times_stay_on_their_side_of_a_border() -> None:
    rows = [["1", "1", t, "b", "l", "", n] for n, t in enumerate((1688669999.999999, 1688670000, 1688670000.0000002))]
    seconds = [trade.time_ns // SECOND_NS for trade in read_trades(rows, 10**19, since_ns=0)]
    assert seconds == [1688669999, 1688670000, 1688670000]


# ---- whatever happens: the candles of all trades, or none at all


def faults(chance: random.Random) -> Callable[[int], Spoil | None]:
    """Of four answers in a row at most two are spoiled: one less than have to agree."""
    kinds: list[Spoil] = [
        lambda r: r[1:],
        lambda r: r[:-1],
        lambda r: r[: len(r) // 2],
        lambda r: r[:1],
        lambda r: [],
        lambda r: r[: len(r) // 3] + r[len(r) // 3 + 1 :],
        lambda r: r + r[-2:],
        lambda r: r[::-1],
    ]
    recent: list[bool] = []

    def spoil(turn: int) -> Spoil | None:
        bad = chance.random() < 0.5 and sum(recent[-3:]) < 2
        recent.append(bad)
        return chance.choice(kinds) if bad else None

    return spoil


@settings(deadline=None, max_examples=few(80))
@given(
    gaps_ms=st.lists(st.sampled_from([0, 0, 0, 1, 900, 20_000, 61_000, 400_000]), max_size=40),
    first_ms=st.sampled_from([-2_000_000, -50_000, -1, 0, 30_000]),
    skips=st.sets(st.integers(1, 40), max_size=3),
    grain_ns=st.sampled_from([1, MS_NS, SECOND_NS]),
    exclusive=st.booleans(),
    candles=st.integers(1, 12),
    seed=st.integers(0, 10**6),
)
def test_candles_are_those_of_all_trades_whatever_the_answers(
    gaps_ms: list[int], first_ms: int, skips: set[int], grain_ns: int, exclusive: bool, candles: int, seed: int
) -> None:
    rows, at_ms, number = [], first_ms, 1
    for n, gap_ms in enumerate(gaps_ms):
        at_ms, number = at_ms + gap_ms, number + (2 if n in skips else 1)
        rows.append(row(at_ms, number, price=f"{n % 7 + 1}.5"))
    # A page of 50 holds all trades of any second, so every question has an answer; 7 does not always.
    for page in (50, 7):
        tape = Tape(rows, page, grain_ns, exclusive)
        try:
            found, _ = walked(tape, candles=candles, spoil=faults(random.Random(seed)))
        except BadAnswer:
            assert page == 7 or skips, "an exchange that is right every other time can be walked"
            continue
        assert found == oracle(rows)[:candles]


# ---- candles of trades

DAY_NS = parse_time("2024-02-28")
Made = list[tuple[int, str, str]]


def built(trades: Made, period_seconds: int = 60) -> list[Candle]:
    builder = OrderedCandleBuilder(period_seconds)
    for time_ns, price, amount in trades:
        builder.add(time_ns, Decimal(price), Decimal(amount))
    found = builder.candles()
    assert len(builder) == len(found)
    return found


def test_candle_of_its_trades() -> None:
    trades = [(DAY_NS + 59, "3", "0.1"), (DAY_NS + 59, "5", "0.2"), (DAY_NS + 60, "1", "0.3"), (DAY_NS + 61, "2", "0")]
    assert built(trades) == [Candle(DAY_NS, 3.0, 5.0, 1.0, 2.0, 0.6, quote_volume=1.6, trade_count=4)]


def test_period_without_trades_has_no_candle_and_borders_are_exact() -> None:
    minute_ns = 60 * SECOND_NS
    trades = [(DAY_NS + t, "1", "1") for t in (0, minute_ns - 1, minute_ns, 5 * minute_ns)]
    assert [(c.open_ns - DAY_NS, c.trade_count) for c in built(trades)] == [(0, 2), (minute_ns, 1), (5 * minute_ns, 1)]


@pytest.mark.parametrize(
    ("period_seconds", "days", "opens"),
    [
        (WEEK_SECONDS, ["2024-02-25", "2024-02-26", "2024-03-03"], ["2024-02-19", "2024-02-26"]),
        (MONTH_SECONDS, ["2024-02-01", "2024-02-29", "2024-03-31"], ["2024-02-01", "2024-03-01"]),
    ],
)
def test_weeks_begin_on_monday_and_months_on_the_first(period_seconds: int, days: list[str], opens: list[str]) -> None:
    candles = built([(parse_time(day), "1", "1") for day in days], period_seconds)
    assert [c.open_ns for c in candles] == [parse_time(day) for day in opens]


def test_volume_is_the_decimal_sum() -> None:
    assert built([(DAY_NS, "1", "0.1")] * 10)[0].volume == 1.0  # floats make 0.9999999999999999 of it


AMOUNTS = st.decimals(min_value=0, max_value=10**6, places=8, allow_nan=False).map(str)


@given(
    st.lists(st.tuples(st.integers(0, 10**17), st.sampled_from(["1", "2.5", "7"]), AMOUNTS), max_size=30).map(sorted),
    st.sampled_from(sorted(PERIODS)),
)
def test_nothing_is_lost_or_doubled(trades: Made, period_seconds: int) -> None:
    candles = built(trades, period_seconds)
    assert sum(c.trade_count or 0 for c in candles) == len(trades)
    assert [c.open_ns for c in candles] == sorted({floor_to_grid(t, period_seconds) for t, _, _ in trades})
    for candle in candles:
        assert is_on_grid(candle.open_ns, period_seconds)
        end_ns = next_open(candle.open_ns, period_seconds)
        inside = [(Decimal(p), Decimal(a)) for t, p, a in trades if candle.open_ns <= t < end_ns]
        assert (candle.open, candle.close) == (float(inside[0][0]), float(inside[-1][0]))
        assert (candle.low, candle.high) == (float(min(inside)[0]), float(max(inside)[0]))
        assert candle.volume == float(sum(amount for _, amount in inside))
