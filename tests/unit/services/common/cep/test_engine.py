"""Engine: triggers on rows, state that survives, and triggers that end."""

from __future__ import annotations

import pytest

import dexorder_cep.run.engine as engine_module
import dexorder_cep.run.matcher as matcher
from dexorder_cep import CompiledTrigger, Engine, Firing, Outcome, Suspension, TriggerEnded, compile_trigger
from dexorder_cep.run.delivery import Heard
from dexorder_cep.run.engine_state import EngineState
from dexorder_common.model.errors import InvalidRequest

MINUTE_NS = 60_000_000_000
HOUR_NS = 60 * MINUTE_NS
Row = tuple[int, float, float, float, float, float, float | None, int | None]
DIP = """
    SELECT * FROM ohlc MATCH_RECOGNIZE (
      PARTITION BY ticker ORDER BY ts
      MEASURES S.`close` AS high, LAST(D.`close`) AS low, U.`close` AS after, MATCH_ROWTIME() AS at_time
      AFTER MATCH SKIP PAST LAST ROW
      PATTERN (S D+ U) WITHIN INTERVAL '10' MINUTE
      DEFINE D AS D.`close` < LAST(D.`close`, 1) OR (LAST(D.`close`, 1) IS NULL AND D.`close` < S.`close`),
             U AS U.`close` > LAST(D.`close`))
"""
"""A fall of any length and a rise. A greedy D never gives back a row, so U is a row that is no further fall."""


def candle(minute: int, close: float, volume: float = 1.0) -> Row:
    return minute * MINUTE_NS, close, close, close, close, volume, None, None


def candles(*closes: float, start: int = 0) -> list[Row]:
    return [candle(start + n, close) for n, close in enumerate(closes)]


def engine_with(sql: str, **parameters: str) -> tuple[Engine, CompiledTrigger]:
    engine = Engine()
    compiled = compile_trigger(sql, parameters)
    engine.add("t", 7, compiled, 0)
    return engine, compiled


def rows_of(found: list[Outcome]) -> list[tuple[object, ...]]:
    return [row for each in found if isinstance(each, Firing) for row in each.rows]


def closes_of(found: list[Outcome]) -> list[object]:
    return [row[-1] for row in rows_of(found)]


def test_pattern_fires_at_the_row_that_ends_it() -> None:
    engine, _ = engine_with(DIP)
    assert engine.feed_candles("X", 60, candles(10, 9, 8)) == []
    (firing,) = engine.feed_candles("X", 60, candles(8.5, start=3))
    assert isinstance(firing, Firing)
    assert firing.rows == (("X", 10.0, 8.0, 8.5, 3 * MINUTE_NS),)
    assert [column.type for column in firing.columns] == ["STRING", "DOUBLE", "DOUBLE", "DOUBLE", "TIMESTAMP(3)"]
    assert firing.time_ns == 4 * MINUTE_NS, "the close of the candle"
    assert firing.event_id == f"t:7:X:match:0:{3 * MINUTE_NS}"
    assert firing.context["match_start"] == "0"


def test_late_and_repeated_candles_never_fire() -> None:
    engine, _ = engine_with("SELECT `close` FROM ohlc WHERE `close` > 10", fire="level")
    assert closes_of(engine.feed_candles("X", 60, candles(11, 12))) == [11.0, 12.0]
    assert engine.feed_candles("X", 60, [candle(1, 99.0), candle(0, 98.0)]) == []
    (firing,) = engine.feed_candles("X", 60, candles(13, start=2))
    assert isinstance(firing, Firing)
    assert firing.context["late_dropped"] == "2"


def test_edge_level_and_once() -> None:
    closes = candles(9, 11, 12, 9, 9, 13, 14)
    found = {}
    for fire in ("edge", "level", "once"):
        engine, _ = engine_with("SELECT close FROM ohlc WHERE close > 10", fire=fire)
        found[fire] = engine.feed_candles("X", 60, closes)
    assert closes_of(found["edge"]) == [11.0, 13.0]
    assert closes_of(found["level"]) == [11.0, 12.0, 13.0, 14.0]
    assert closes_of(found["once"]) == [11.0]
    assert found["once"][-1] == TriggerEnded("t", 7, 2 * MINUTE_NS, "once")


def test_condition_that_is_true_at_registration() -> None:
    sql = "SELECT close FROM ohlc WHERE close > 10"
    for initial, expected in (("arm", [15.0]), ("fire", [13.0, 15.0])):
        engine = Engine()
        engine.feed_candles("X", 60, candles(11, 12))
        engine.add("t", 1, compile_trigger(sql, {"initial": initial}), 2 * MINUTE_NS)
        assert closes_of(engine.feed_candles("X", 60, candles(13, 14, 9, 15, start=2))) == expected


def test_rearm_needs_the_value_to_go_back_behind_the_threshold() -> None:
    engine, _ = engine_with("SELECT close FROM ohlc WHERE close > 100", rearm="1", resolve="on")
    found = engine.feed_candles("X", 60, candles(99, 101, 99.5, 102, 99, 103))
    assert closes_of(found) == [101.0, 99.0, 103.0]
    assert [each.context["kind"] for each in found if isinstance(each, Firing)] == ["row", "resolved", "row"]


def test_cooldown_counts_what_it_does_not_send_and_leaves_the_latch_alone() -> None:
    engine, _ = engine_with("SELECT close FROM ohlc WHERE close > 10", cooldown="180")
    found = engine.feed_candles("X", 60, candles(9, 11, 9, 12, 9, 9, 13))
    assert closes_of(found) == [11.0, 13.0]
    assert isinstance(found[1], Firing)
    assert found[1].context["suppressed"] == "1"


def test_new_trigger_warms_up_on_recent_rows_without_firing() -> None:
    engine = Engine()
    engine.feed_candles("X", 60, candles(10, 9, 9.5, 9, 8))
    engine.add("t", 1, compile_trigger(DIP, {}), 5 * MINUTE_NS)
    engine.add("cold", 1, compile_trigger(DIP, {"warmup": "0"}), 5 * MINUTE_NS)
    found = engine.feed_candles("X", 60, candles(8.5, start=5))
    assert [each.trigger_id for each in found if isinstance(each, Firing)] == ["t"]
    assert rows_of(found)[0][:3] == ("X", 9.0, 8.0)


def test_rows_that_were_known_at_the_registration_do_not_fire() -> None:
    engine = Engine()
    engine.add("t", 1, compile_trigger("SELECT close FROM ohlc WHERE close > 1", {"fire": "level"}), 2 * MINUTE_NS)
    assert closes_of(engine.feed_candles("X", 60, candles(5, 6, 7))) == [7.0]


def test_clock_frees_matches_that_wait_for_older_ones() -> None:
    sql = """SELECT * FROM ohlc MATCH_RECOGNIZE (PARTITION BY ticker ORDER BY ts MEASURES A.close AS a, C.close AS c
        PATTERN (A B* C) WITHIN INTERVAL '5' MINUTE DEFINE A AS A.close > 5, B AS B.close < 5, C AS C.close > 7)"""
    engine, _ = engine_with(sql)
    found = engine.feed_candles("X", 60, candles(6, 4, 8, 3))
    assert rows_of(found) == [("X", 6.0, 8.0)]
    assert engine.advance(4 * MINUTE_NS) == []
    assert engine.advance(HOUR_NS) == []


def test_state_is_the_same_after_a_dump_at_every_row() -> None:
    texts = [DIP, "SELECT close FROM ohlc WHERE close > 9", "SELECT ts FROM ticks WHERE price > 3 AND side = 'buy'"]
    rows = candles(10, 9, 8, 8.5, 12, 9, 7, 6, 9, 3, 2, 1, 5)
    whole, parts = Engine(), Engine()
    for engine in (whole, parts):
        for n, text in enumerate(texts):
            engine.add(f"t{n}", n, compile_trigger(text, {}), 0, ["X"])
    expected = [each for row in rows for each in whole.feed_candles("X", 60, [row])]
    expected += whole.feed_ticks("X", [(5_000_000, "1", 4.0, 1.0, None), (6_000_000, "2", 4.0, 1.0, "buy")])
    found: list[Outcome] = []
    for row in rows:
        found += parts.feed_candles("X", 60, [row])
        parts = Engine.load(parts.dump())
    found += parts.feed_ticks("X", [(5_000_000, "1", 4.0, 1.0, None), (6_000_000, "2", 4.0, 1.0, "buy")])
    assert found == expected
    assert len(found) >= 4
    assert parts.dump() == whole.dump()


def test_state_of_another_version_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="version"):
        Engine.load(EngineState(b'{"version": 99}', {}))


def test_other_tickers_and_removed_triggers_are_silent() -> None:
    engine = Engine()
    engine.add("t", 1, compile_trigger("SELECT close FROM ohlc WHERE close > 1", {"fire": "level"}), 0, ["X"])
    assert engine.feed_candles("Y", 60, candles(5)) == []
    assert len(engine.feed_candles("X", 60, candles(5))) == 1
    assert engine.feed_candles("X", 300, candles(5, start=5)) == []
    engine.remove("t")
    assert engine.feed_candles("X", 60, candles(6, start=1)) == []


def test_trigger_expires_at_a_row_or_at_the_clock() -> None:
    for by_row in (True, False):
        engine, _ = engine_with("SELECT close FROM ohlc WHERE close > 1", fire="level", expires="120")
        assert closes_of(engine.feed_candles("X", 60, candles(5))) == [5.0]
        found = engine.feed_candles("X", 60, candles(6, start=1)) if by_row else engine.advance(2 * MINUTE_NS)
        assert found == [TriggerEnded("t", 7, 2 * MINUTE_NS, "expired")]
        assert not engine.registrations


def test_trigger_with_too_many_partial_matches_is_suspended_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher, "MAX_PARTIAL_MATCHES", 100)
    engine, _ = engine_with(
        "SELECT * FROM ohlc MATCH_RECOGNIZE (PARTITION BY ticker ORDER BY ts MEASURES A.close AS a "
        "PATTERN (A B* C) DEFINE C AS C.close > 1000)"
    )
    engine.add("other", 1, compile_trigger("SELECT close FROM ohlc WHERE close > 5", {"fire": "level"}), 0)
    found = engine.feed_candles("X", 60, [candle(n, 6.0) for n in range(110)])
    suspended = [each for each in found if isinstance(each, Suspension)]
    assert len(suspended) == 1
    assert "unfinished matches" in suspended[0].reason
    assert len(rows_of(found)) == 110, "the other trigger missed no row"


def test_what_fails_a_flink_job_suspends_the_trigger() -> None:
    engine, _ = engine_with("SELECT close FROM ohlc WHERE 10 / (trades - 1) > 1")
    row = candle(0, 1.0)
    (found,) = engine.feed_candles("X", 60, [(*row[:7], 1)])
    assert found == Suspension("t", 7, "X", 0, "integer division by zero")


def test_matches_that_one_row_frees_are_rows_of_one_event_up_to_max_rows() -> None:
    text = """SELECT * FROM ohlc MATCH_RECOGNIZE (PARTITION BY ticker ORDER BY ts MEASURES A.close AS a, C.close AS c
        PATTERN (A B* C) WITHIN INTERVAL '6' MINUTE
        DEFINE A AS A.close <> 11, B AS B.close < A.close, C AS C.close > A.close)"""
    for max_rows, expected in (("100", [(10.0, 11.0), (5.0, 6.0)]), ("1", [(10.0, 11.0)])):
        engine, _ = engine_with(text, max_rows=max_rows)
        assert engine.feed_candles("X", 60, candles(100, 10, 11, 5, 6, 5)) == [], "the partial match from 100 is older"
        (firing,) = engine.feed_candles("X", 60, candles(4, start=6))
        assert isinstance(firing, Firing)
        assert [row[1:] for row in firing.rows] == expected
        assert firing.context.get("rows_omitted") == (None if max_rows == "100" else "1")


TICKS = {
    "condition": "SELECT price FROM ticks WHERE price > 0",
    "derived": "SELECT p FROM (SELECT ticker, ts, price + 1 AS p FROM ticks) WHERE p > 0",
    "pattern": "SELECT * FROM ticks MATCH_RECOGNIZE (PARTITION BY ticker ORDER BY ts MEASURES A.price AS p "
    "PATTERN (A) DEFINE A AS A.price > 0)",
    "running": "SELECT `close` FROM ohlc WHERE `close` > 0",
}


@pytest.mark.parametrize(
    ("name", "late"), [(name, late) for name in TICKS for late in (False, True) if not (late and name == "running")]
)
def test_of_the_millisecond_in_which_a_record_ends_only_what_follows_it_fires(name: str, late: bool) -> None:
    """Times of rows are cut to milliseconds; the record that a registration follows ends between two trades of one."""
    second_ns, border_ns = 10**9, 10**9 + 500_000
    parameters = {"pattern": {}, "running": {"fire": "level", "on": "tick"}}.get(name, {"fire": "level"})

    def ids(found: list[Outcome]) -> list[str]:
        return [each.event_id.split(":")[-1] for each in found if isinstance(each, Firing)]

    def record(start_ns: int, end_ns: int, *trades: tuple[int, str]) -> list[Outcome]:
        engine.stamp("X", 0, end_ns, start_ns)
        rows = [(time_ns, trade_id, 1.0, 1.0, None) for time_ns, trade_id in trades]
        return engine.feed_ticks("X", rows, since_ns=start_ns) + engine.settle("X", 0, end_ns)

    for delay in ("0", "1", "5"):
        for is_restarted in (False, True):
            compiled = compile_trigger(TICKS[name], parameters | {"delay_ms": delay})
            engine = Engine()
            assert record(0, border_ns, (second_ns - 10**8, "old"), (second_ns + 100, "known")) == []
            if not late:
                engine.add("t", 1, compiled, border_ns + 1, tickers={"X"})
            engine = Engine.load(engine.dump()) if is_restarted else engine
            found = record(border_ns, 3 * second_ns, (border_ns, "new"), (2 * second_ns, "last"))
            engine = Engine.load(engine.dump()) if is_restarted else engine
            found += engine.add("t", 1, compiled, border_ns + 1, tickers={"X"}) if late else []
            assert ids(found) == ["new", "last"], (delay, is_restarted)


def test_a_match_has_the_times_of_its_rows_also_when_older_rows_are_no_longer_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_module, "RING_ROWS", 10)
    engine, _ = engine_with(DIP)
    engine.feed_candles("X", 60, candles(*[10.0] * 600))
    (firing,) = engine.feed_candles("X", 60, candles(9, 8, 8.5, start=600))
    assert isinstance(firing, Firing)
    times = firing.context["match_start"], firing.context["match_end"]
    assert times == (str(599 * MINUTE_NS), str(602 * MINUTE_NS))


def test_candles_before_those_of_the_warm_up_are_late_for_a_new_trigger() -> None:
    engine = Engine()
    engine.add("old", 1, compile_trigger("close > 100", {}), 0)
    engine.feed_candles("X", 60, candles(1, 2, 3))
    engine.add("t", 2, compile_trigger("SELECT close FROM ohlc WHERE close > 10", {"delay_ms": "60000"}), 0)
    assert closes_of(engine.feed_candles("X", 60, [candle(1, 99.0)])) == []
    assert closes_of(engine.feed_candles("X", 60, candles(11, 12, 13, start=3))) == [11.0]


def test_a_registration_keeps_what_it_has_heard_and_its_pauses_for_each_market() -> None:
    engine, _ = engine_with(DIP)
    registration = engine.registrations["t"]
    assert registration.silent_ns == 0
    for number, ticker in enumerate("XYZ"):
        registration.hear(ticker, Heard(number, frozenset()))
    assert [registration.silent_until(ticker) for ticker in "XYZ"] == [0, 1, 2]
    registration.silent = {"X": [(1, 5), (7, 9)], "Y": [(2, 6)]}
    assert registration.silent_ns == 9
