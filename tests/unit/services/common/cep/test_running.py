"""``on=tick`` and ``on=bar``: conditions on the candle that forms, against an evaluation of every prefix of trades."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dexorder_cep.run.running as running
from dexorder_cep import Engine, Firing, InvalidSql, Outcome, Suspension, backtest, compile_trigger

MINUTE_NS = 60_000_000_000
OVER = "(PARTITION BY ticker ORDER BY ts ROWS BETWEEN 2 PRECEDING AND CURRENT ROW)"
LAG = "LAG(close, 1) OVER (PARTITION BY ticker ORDER BY ts)"


class Trade(NamedTuple):
    time_ns: int
    trade_id: str
    price: float
    amount: float
    side: str | None


class Candle(NamedTuple):
    open_ns: int
    open: float
    high: float
    low: float
    close: float
    volume: float
    quote_volume: float
    trades: int


class Condition(NamedTuple):
    """A query, and the same condition on candles of which the last one still forms; None if it drops that row."""

    sql: str
    holds: Callable[[list[Candle]], bool | None]


def mean_of_three(candles: list[Candle]) -> float:
    closes = [each.close for each in candles[-3:]]
    return sum(closes) / len(closes)


CONDITIONS = [
    Condition("SELECT close FROM ohlc WHERE close > 3", lambda rows: rows[-1].close > 3),
    Condition("SELECT close FROM ohlc WHERE high - low >= 2", lambda rows: rows[-1].high - rows[-1].low >= 2),
    Condition("SELECT close FROM ohlc WHERE volume > 4", lambda rows: rows[-1].volume > 4),
    Condition(
        "SELECT close FROM ohlc WHERE trades >= 2 AND close < open",
        lambda rows: rows[-1].trades >= 2 and rows[-1].close < rows[-1].open,
    ),
    Condition(
        f"SELECT close FROM (SELECT close, AVG(close) OVER {OVER} AS ma FROM ohlc) WHERE close > ma",
        lambda rows: rows[-1].close > mean_of_three(rows),
    ),
    Condition(
        f"SELECT close FROM (SELECT close, {LAG} AS before FROM ohlc) WHERE close > before",
        lambda rows: len(rows) > 1 and rows[-1].close > rows[-2].close,
    ),
    Condition(
        f"SELECT close FROM (SELECT close, COUNT(close) OVER {OVER} AS n FROM ohlc WHERE volume > 2) WHERE n = 3",
        lambda rows: sum(each.volume > 2 for each in rows) >= 3 if rows[-1].volume > 2 else None,
    ),
]


def candle_of(trades: list[Trade]) -> Candle:
    prices = [each.price for each in trades]
    return Candle(
        trades[0].time_ns // MINUTE_NS * MINUTE_NS,
        prices[0],
        max(prices),
        min(prices),
        prices[-1],
        sum(each.amount for each in trades),
        sum(each.price * each.amount for each in trades),
        len(trades),
    )


def by_minute(trades: list[Trade]) -> list[list[Trade]]:
    minutes = sorted({each.time_ns // MINUTE_NS for each in trades})
    return [[each for each in trades if each.time_ns // MINUTE_NS == minute] for minute in minutes]


def naive(condition: Condition, trades: list[Trade], fire: str, on: str) -> list[tuple[str, float]]:
    """Return id and price of the trades at which an event comes: every prefix of the trades is examined anew."""
    fits = [condition.holds([candle_of(each) for each in by_minute(trades[:n])]) for n in range(1, len(trades) + 1)]
    found, fired_in, last = [], set(), None
    for trade, now in zip(trades, fits, strict=True):
        is_event = now and (fire == "level" or last is False)
        minute = trade.time_ns // MINUTE_NS
        if is_event and not (on == "bar" and minute in fired_in):
            found.append((trade.trade_id, trade.price))
            fired_in.add(minute)
        last = last if now is None else now
    return found


def steps(trades: list[Trade], candles: list[Candle], order: Iterator[bool]) -> Iterator[tuple[str, Any]]:
    """Yield what feeds both series, in an order between them that is drawn; each settles what it has said."""
    left, closed = list(trades), list(candles)
    while left or closed:
        if left and (not closed or next(order)):
            trade = left.pop(0)
            yield "feed", trade
            yield "settle", (0, trade.time_ns)
        else:
            candle = closed.pop(0)
            yield "feed", candle
            yield "settle", (60, candle.open_ns + MINUTE_NS)
    yield "settle", (60, trades[-1].time_ns)
    yield "settle", (0, trades[-1].time_ns + MINUTE_NS)


trade_lists = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 5), st.integers(1, 3)), min_size=1, max_size=25
).map(
    lambda steps: [
        Trade(sum(step for step, _, _ in steps[: n + 1]) * 1_000_000_000, f"n{n}", float(price), float(amount), None)
        for n, (_, price, amount) in enumerate(steps)
    ]
)


@given(
    st.sampled_from(CONDITIONS),
    trade_lists,
    st.sampled_from(["edge", "level"]),
    st.sampled_from(["tick", "bar"]),
    st.lists(st.booleans(), max_size=60),
    st.integers(0, 60),
)
def test_events_are_those_of_an_evaluation_of_every_prefix(
    condition: Condition, trades: list[Trade], fire: str, on: str, order: list[bool], restart: int
) -> None:
    """Minutes without trades have no candle; candles come in any order between the trades, and there is a restart."""
    engine = Engine()
    engine.add("t", 1, compile_trigger(condition.sql, {"fire": fire, "on": on}), 0, ["X"])
    candles = [candle_of(each) for each in by_minute(trades)]
    found: list[Outcome] = []
    for number, (step, value) in enumerate(steps(trades, candles, chain(order, repeat(True)))):
        if number == restart:
            engine = Engine.load(engine.dump())
        if step == "settle":
            found += engine.settle("X", *value)
        elif isinstance(value, Trade):
            found += engine.feed_ticks("X", [value], since_ns=0)
        else:
            found += engine.feed_candles("X", 60, [value])
    events = [(each.event_id.rpartition(":")[2], each.rows[0][-1]) for each in found if isinstance(each, Firing)]
    assert events == naive(condition, trades, fire, on)


def trades_of(*prices: float, start_s: int = 60, every_s: int = 10) -> list[Trade]:
    return [
        Trade((start_s + n * every_s) * 1_000_000_000, f"{start_s}-{n}", price, 1.0, None)
        for n, price in enumerate(prices)
    ]


def fired(found: list[Outcome]) -> list[tuple[object, int]]:
    return [(each.rows[0][-1], each.time_ns // 1_000_000_000) for each in found if isinstance(each, Firing)]


def test_an_event_has_the_time_of_its_trade_and_the_candle_so_far() -> None:
    engine = Engine()
    sql = "SELECT ts, open, high, low, volume, close FROM ohlc WHERE close > 5"
    engine.add("t", 3, compile_trigger(sql, {"on": "tick"}), 0, ["X"])
    found = engine.feed_ticks("X", trades_of(4, 3, 6, start_s=60), since_ns=0) + engine.settle("X", 0, 2 * MINUTE_NS)
    (firing,) = found
    assert isinstance(firing, Firing)
    assert firing.rows == ((MINUTE_NS, 4.0, 6.0, 3.0, 3.0, 6.0),)
    assert (firing.time_ns, firing.event_id) == (80 * 10**9, f"t:3:X:row:{MINUTE_NS}:60-2")
    assert firing.context["match_start"] == str(MINUTE_NS)
    assert firing.context["match_end"] == str(80 * 10**9)
    assert firing.context["period"] == "60"


def test_a_candle_whose_first_trades_are_not_known_is_left_out_also_after_a_gap() -> None:
    engine = Engine()
    engine.add("t", 1, compile_trigger("SELECT close FROM ohlc WHERE close > 5", {"on": "tick", "fire": "level"}), 0)
    found = engine.feed_ticks("X", trades_of(6, 7, start_s=30), since_ns=20 * 10**9)
    found += engine.settle("X", 0, 50 * 10**9)
    found += engine.feed_ticks("X", trades_of(8, 9, start_s=60), since_ns=50 * 10**9)
    found += engine.settle("X", 0, 80 * 10**9)
    found += engine.feed_ticks("X", trades_of(10, start_s=100), since_ns=90 * 10**9)  # ten seconds are missing
    found += engine.feed_ticks("X", trades_of(11, start_s=125), since_ns=90 * 10**9)
    found += engine.settle("X", 0, 4 * MINUTE_NS)
    assert fired(found) == [(8.0, 60), (9.0, 70), (11.0, 125)]


def test_trades_before_the_registration_set_the_latch_and_fire_nothing() -> None:
    for initial, expected in (("arm", [(9.0, 90)]), ("fire", [(7.0, 70), (9.0, 90)])):
        engine = Engine()
        sql = "SELECT close FROM ohlc WHERE close > 5"
        engine.add("t", 1, compile_trigger(sql, {"on": "tick", "initial": initial}), 60 * 10**9)
        found = engine.feed_ticks("X", trades_of(6, 7, 4, 9, start_s=60), since_ns=0) + engine.settle("X", 0, 10**12)
        assert fired(found) == expected


def test_closed_candles_before_the_registration_are_the_rows_before() -> None:
    sql = f"SELECT close FROM (SELECT close, AVG(close) OVER {OVER} AS ma FROM ohlc) WHERE close > ma + 2"
    for warmup, expected in (("500", [(9.0, 190)]), ("0", [])):
        engine = Engine()
        engine.feed_candles("X", 60, [candle_of(trades_of(5, start_s=60 * n)) for n in range(3)])
        engine.settle("X", 60, 3 * MINUTE_NS)
        parameters = {"on": "tick", "initial": "fire", "warmup": warmup}
        engine.add("t", 1, compile_trigger(sql, parameters), 3 * MINUTE_NS - 1)
        found = engine.feed_ticks("X", trades_of(6, 9, start_s=180), since_ns=0) + engine.settle("X", 0, 10**12)
        assert fired(found) == expected


def test_one_event_a_candle_also_with_a_cooldown_and_an_end() -> None:
    sql = "SELECT close FROM ohlc WHERE close > 5"
    engine = Engine()
    parameters = {"on": "bar", "fire": "level", "cooldown": "80", "resolve": "on"}
    engine.add("t", 1, compile_trigger(sql, parameters), 0)
    found = engine.feed_ticks("X", trades_of(*[6.0] * 20), since_ns=0) + engine.settle("X", 0, 10**12)
    assert fired(found) == [(6.0, 60), (6.0, 140), (6.0, 220)]
    last = found[-1]
    assert isinstance(last, Firing)
    assert last.context["suppressed"] == "7"


def test_a_backtest_takes_trades_and_closed_candles() -> None:
    condition, trades = CONDITIONS[4], trades_of(1, 5, 2, 4, 4, 1, 5, 5, 3, every_s=25)
    candles = [candle_of(each) for each in by_minute(trades)]
    found = backtest(compile_trigger(condition.sql, {"on": "tick"}), "X", trades, candles)
    assert [(each.event_id.rpartition(":")[2], each.rows[0][0]) for each in found if isinstance(each, Firing)] == naive(
        condition, trades, "edge", "tick"
    )


@pytest.mark.parametrize("on", ["tick", "bar"])
def test_patterns_windows_and_ticks_are_refused_with_the_reason(on: str) -> None:
    pattern = (
        "SELECT * FROM ohlc MATCH_RECOGNIZE (PARTITION BY ticker ORDER BY ts MEASURES A.close AS a PATTERN (A B) "
        "DEFINE B AS B.close > A.close)"
    )
    window = (
        "SELECT window_end FROM TABLE(TUMBLE(TABLE ohlc, DESCRIPTOR(ts), INTERVAL '5' MINUTE)) "
        "GROUP BY ticker, window_start, window_end HAVING MAX(high) > 5"
    )
    for sql, reason in ((pattern, "a pattern"), (window, "a window")):
        with pytest.raises(InvalidSql, match=f"on: '{on}' is not accepted for {reason}"):
            compile_trigger(sql, {"on": on})
    with pytest.raises(InvalidSql, match="every trade"):
        compile_trigger("SELECT price FROM ticks", {"on": "bar"})


def test_trades_that_wait_for_candles_that_never_come_suspend_the_trigger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "MAX_WAITING_TRADES", 5)
    engine = Engine()
    engine.add("back", 1, compile_trigger(CONDITIONS[4].sql, {"on": "tick"}), 0)
    engine.add("other", 1, compile_trigger(CONDITIONS[0].sql, {"on": "tick", "fire": "level"}), 0)
    found = engine.feed_ticks("X", trades_of(*[4.0] * 8), since_ns=0) + engine.settle("X", 0, 10**12)
    assert [(each.trigger_id, "wait for" in each.reason) for each in found if isinstance(each, Suspension)] == [
        ("back", True)
    ]
    assert len(fired(found)) == 8, "the other trigger missed no trade"
