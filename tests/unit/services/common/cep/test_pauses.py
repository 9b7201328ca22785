"""Pauses: a paused trigger keeps its state and fires nothing; a resumed one fires for what is settled afterwards."""

from __future__ import annotations

import random
from typing import Any

import pytest

from dexorder_cep import Engine, Firing, Outcome, TriggerEnded, compile_trigger
from dexorder_cep.run.pauses import MAX_WITHHELD, WITHHELD_NS

MINUTE_NS = 60_000_000_000
PATTERN = (
    "SELECT * FROM ohlc MATCH_RECOGNIZE (PARTITION BY ticker ORDER BY ts MEASURES A.ts AS s, C.close AS c "
    "PATTERN (A B+? C) WITHIN INTERVAL '9' MINUTE DEFINE A AS A.close > 5, B AS B.close < 5, C AS C.close > 6)"
)
WINDOW = (
    "SELECT window_end, SUM(close) AS s FROM TABLE(HOP(TABLE ohlc, DESCRIPTOR(ts), INTERVAL '1' MINUTE, "
    "INTERVAL '4' MINUTE)) GROUP BY ticker, window_start, window_end"
)
AVERAGE = (
    "SELECT ts, ma FROM (SELECT ticker, ts, close, AVG(close) OVER (PARTITION BY ticker ORDER BY ts ROWS BETWEEN 3 "
    "PRECEDING AND CURRENT ROW) AS ma FROM ohlc) WHERE close > ma"
)
TEXTS = {
    "condition": "close > 5",
    "crosses": "close CROSSES ABOVE 5",
    "pattern": PATTERN,
    "window": WINDOW,
    "over": AVERAGE,
}


def feed(engine: Engine, n: int, close: float) -> list[Outcome]:
    """Give the n-th candle, which is settled a second after its end."""
    end_ns = (n + 1) * MINUTE_NS
    engine.stamp("X", 60, end_ns + 10**9, n * MINUTE_NS)
    found = engine.feed_candles("X", 60, [(n * MINUTE_NS, close, close, close, close, 1.0, None, None)])
    return found + engine.settle("X", 60, end_ns)


def started(sql: str, **parameters: str) -> Engine:
    engine = Engine()
    engine.add("t", 1, compile_trigger(sql, parameters), 0, tickers={"X"})
    return engine


@pytest.mark.parametrize("name", TEXTS)
def test_a_pause_takes_the_events_of_its_time_and_changes_no_other(name: str) -> None:
    for seed in range(6):
        rng = random.Random(seed)
        closes = [float(rng.randint(1, 9)) for _ in range(60)]
        first, last = sorted(rng.sample(range(60), 2))
        plain, paused = started(TEXTS[name]), started(TEXTS[name])
        for n, close in enumerate(closes):
            if n == first:
                paused.pause("t", "X")
            if n == last:  # resumed just after the candle before was settled
                assert paused.resume("t", "X", n * MINUTE_NS + 10**9) == []
            if rng.random() < 0.2:
                paused = Engine.load(paused.dump())
            expected = feed(plain, n, close)
            assert feed(paused, n, close) == ([] if first <= n < last else expected), (seed, n)


def test_what_is_settled_between_the_answer_and_its_arrival_fires_then() -> None:
    engine = started("close > 5", fire="level")
    engine.pause("t", "X")
    for n in range(6):
        assert feed(engine, n, 6.0) == []
    engine = Engine.load(engine.dump())
    found = engine.resume("t", "X", 4 * MINUTE_NS + 10**9)  # candles 0 to 3 were settled by then
    times = [each.time_ns // MINUTE_NS for each in found if isinstance(each, Firing)]
    assert times == [5, 6], "those of the last two minutes"
    whole = started("close > 5", fire="level")
    assert found == [each for n in range(6) for each in feed(whole, n, 6.0)][4:], "as if it had not been paused"


def test_what_came_true_in_the_pause_does_not_fire_though_it_is_evaluated_after_it() -> None:
    """The process learns of the resumption before it reads the rows."""
    for is_restarted in (False, True):
        engine = started("close > 5", fire="level")
        feed(engine, 0, 6.0)
        engine.pause("t", "X")
        assert engine.resume("t", "X", 3 * MINUTE_NS + 10**9) == []  # when candles 1 and 2 were settled
        engine = Engine.load(engine.dump()) if is_restarted else engine
        assert [bool(feed(engine, n, 6.0)) for n in (1, 2, 3)] == [False, False, True]


def test_a_trade_that_waits_for_its_watermark_counts_as_settled_with_its_record() -> None:
    second_ns = 10**9

    def record(n: int, offset_ns: int) -> list[Outcome]:
        engine.stamp("X", 0, (n + 1) * second_ns, n * second_ns)
        found = engine.feed_ticks("X", [(n * second_ns + offset_ns, str(n), 6.0, 1.0, None)], since_ns=n * second_ns)
        return found + engine.settle("X", 0, (n + 1) * second_ns)

    for is_early in (False, True):  # whether the process learns of the resumption before the record after it
        engine = Engine()
        engine.add("t", 1, compile_trigger("price > 5", {"fire": "level"}), 0, tickers={"X"}, is_paused=True)
        assert record(0, second_ns - 500) == [], "it is settled in the pause, and waits"
        found = engine.resume("t", "X", second_ns + 1) if is_early else []
        found += record(1, 0)
        found += [] if is_early else engine.resume("t", "X", second_ns + 1)
        assert [each.event_id for each in found if isinstance(each, Firing)] == ["t:1:X:row:1:1"]


def test_a_trigger_that_fires_once_fires_after_its_pause() -> None:
    engine = started("close CROSSES ABOVE 5", fire="once")
    engine.pause("t", "X")
    for n, close in enumerate((1.0, 6.0, 1.0)):
        assert feed(engine, n, close) == []
    assert engine.resume("t", "X", 3 * MINUTE_NS + 10**9) == [] and "t" in engine.registrations
    found = feed(engine, 3, 6.0)
    assert [type(each) for each in found] == [Firing, TriggerEnded] and "t" not in engine.registrations
    engine = started("close CROSSES ABOVE 5", fire="once")
    engine.pause("t", "X")
    for n, close in enumerate((1.0, 6.0)):
        feed(engine, n, close)
    found = Engine.load(engine.dump()).resume("t", "X", 2 * MINUTE_NS)
    assert [type(each) for each in found] == [Firing, TriggerEnded]


def test_a_pause_starts_no_cooldown_and_its_end_is_no_end_of_the_time() -> None:
    engine = started("close > 5", fire="level", cooldown="600", expires=str(600))
    engine.pause("t", "X")
    assert feed(engine, 0, 6.0) == []
    assert engine.resume("t", "X", 2 * MINUTE_NS) == []
    assert len(feed(engine, 1, 6.0)) == 1 and feed(engine, 2, 6.0) == []
    engine.pause("t", "X")
    (ended,) = engine.advance(601 * 10**9)
    assert isinstance(ended, TriggerEnded) and ended.reason == "expired"


def test_what_a_paused_trigger_keeps_is_bounded() -> None:
    engine = Engine()
    engine.add("t", 1, compile_trigger("price > 5", {"fire": "level"}), 0, tickers={"X"})
    engine.pause("t", "X")

    def trades(first: int, count: int) -> list[Any]:
        return [(first * 10**9 + n * 10**6, f"{first}-{n}", 6.0, 1.0, None) for n in range(count)]

    for second in range(100):
        engine.stamp("X", 0, second * 10**9, second * 10**9)
        engine.feed_ticks("X", trades(second, 5))
    kept = engine.registrations["t"].withheld["X"]
    assert len(kept) == MAX_WITHHELD and kept[0][0] > 99 * 10**9 - WITHHELD_NS
    engine.stamp("X", 0, 1_000 * 10**9, 1_000 * 10**9)
    engine.feed_ticks("X", trades(1_000, 2))
    assert {stamp for stamp, _ in engine.registrations["t"].withheld["X"]} == {1_000 * 10**9}
