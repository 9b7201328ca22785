"""Edits: an edited trigger fires as one that had its new text from the beginning, or the edit is refused."""

from __future__ import annotations

import random
from functools import cache

import pytest

from dexorder_cep import Engine, Firing, Outcome, Suspension, TriggerEnded, compile_trigger, differences
from dexorder_cep.run import stages

MINUTE_NS = 60_000_000_000
SEEDS = 5
OVER = "OVER (PARTITION BY ticker ORDER BY ts ROWS BETWEEN 3 PRECEDING AND CURRENT ROW)"
AVERAGE = f"FROM (SELECT ticker, ts, close, AVG(close) {OVER} AS ma FROM ohlc WHERE close <> 4) WHERE"
HOP = "FROM TABLE(HOP(TABLE ohlc, DESCRIPTOR(ts), INTERVAL '1' MINUTE, INTERVAL '4' MINUTE)) WHERE close <> 4"
BY_WINDOW = "GROUP BY ticker, window_start, window_end"
DEFINE = (
    "AFTER MATCH SKIP PAST LAST ROW PATTERN (A B+? C) WITHIN INTERVAL '9' MINUTE "
    "DEFINE A AS A.close > 5, B AS B.close < 5, C AS C.close > 6)"
)
MATCH = "FROM ohlc MATCH_RECOGNIZE (PARTITION BY ticker ORDER BY ts MEASURES"
ON_TICK = {"on": "tick"}
EDITS: dict[str, tuple[list[tuple[str, dict[str, str]]], int]] = {
    "condition": ([(f"close > {n}", {}) for n in (3, 5, 7)] + [("close < 4 OR volume > 1", {"message": "low"})], 1),
    "fire": ([("close > 5", {"fire": fire, "initial": on}) for fire in ("edge", "level") for on in ("arm", "fire")], 1),
    "value": ([("close > :n", {"n": str(n)}) for n in (3, 5, 7)], 1),
    "crosses": ([(f"close CROSSES ABOVE {n}", {}) for n in (-3, 4, 5, 7)], 1),
    "crosses with more": ([(f"volume > 0 AND close CROSSES BELOW {n} AND close > 1", {}) for n in (4, 5)], 1),
    "derived": (
        [(f"SELECT close + {n} AS c FROM (SELECT ticker, ts, close FROM ohlc WHERE close <> 6) WHERE close > {n}", {})
         for n in (3, 5, 7)], 1,
    ),
    "over": ([(f"SELECT ts, ma + {n} AS m {AVERAGE} close > ma + {n}", {}) for n in (0, 1, 2)], 1),
    "over itself": ([(f"SELECT ts, close * {n} AS c, AVG(close) {OVER} AS ma FROM ohlc WHERE close > 3", {"fire": fire})
                     for n in (1, 2) for fire in ("edge", "level")], 1),
    "windows": ([(f"SELECT window_end, SUM(close) AS s {HOP} {BY_WINDOW} HAVING SUM(close) > {n}", {"fire": fire})
                 for n in (16, 20, 24) for fire in ("edge", "level")], 1),
    "pattern": ([(f"SELECT * {MATCH} A.ts AS s, C.close + {n} AS c {DEFINE} WHERE c > {n + 7}", {"max_rows": "5"})
                 for n in (0, 1)] + [(f"SELECT s {MATCH} LAST(A.ts) AS s, COUNT(B.close) AS n {DEFINE}", {})], 1),
    "running": ([(f"close > {n}", ON_TICK) for n in (3, 5, 7)] + [("close > 5", {"on": "tick", "fire": "level"})], 1),
    "running over": ([(f"SELECT ts, close {AVERAGE} close > ma + {n}", ON_TICK) for n in (0, 1, 2)], 1),
    "rearm": ([("close > 5", {"rearm": "30", "message": text}) for text in ("a", "b")], 1),
}  # fmt: skip


compiled = cache(lambda sql, *given: compile_trigger(sql, dict(given)))


def feed(engine: Engine, n: int, close: float) -> list[Outcome]:
    """Give the candle of a minute, and its trades if they are read."""
    found = trade(engine, n, close) if engine.registrations and engine.registrations["t"].series_period == 0 else []
    engine.stamp("X", 60, (n + 1) * MINUTE_NS + 10**9, n * MINUTE_NS)
    found += engine.feed_candles("X", 60, [(n * MINUTE_NS, close, close, close, close, close % 3, None, None)])
    return found + engine.settle("X", 60, (n + 1) * MINUTE_NS)


def trade(engine: Engine, n: int, close: float) -> list[Outcome]:
    trades = [(n * MINUTE_NS + k * 10**9, f"{n}-{k}", 1.0 + (close + k) % 9, 1.0, None) for k in range(3)]
    engine.stamp("X", 0, n * MINUTE_NS + 5 * 10**9, n * MINUTE_NS)
    found = engine.feed_ticks("X", trades, since_ns=n * MINUTE_NS)
    return found + engine.settle("X", 0, (n + 1) * MINUTE_NS)


def started(sql: str, parameters: dict[str, str], at_ns: int = 0) -> Engine:
    engine = Engine()
    engine.add("t", 1, compiled(sql, *parameters.items()), at_ns, tickers={"X"})
    return engine


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_trigger_fires_as_one_that_had_its_text_from_the_beginning(name: str) -> None:
    texts, least = EDITS[name]
    after = changed = 0
    for seed in range(SEEDS):
        rng = random.Random(seed)
        (old, new) = rng.sample(texts, 2)
        registered_ns = rng.choice((0, 3 * MINUTE_NS))
        edited, whole, kept = started(*old, registered_ns), started(*new, registered_ns), started(*old, registered_ns)
        assert differences(compiled(old[0], *old[1].items()), compiled(new[0], *new[1].items())) == ()
        at = rng.randrange(0, 16)
        for n in range(32):
            close = float(rng.randint(1, 9))
            if n == at:
                assert edited.edit("t", 2, compiled(new[0], *new[1].items())) == []
                assert edited.registrations["t"].revision == 2
            if rng.random() < 0.08:
                edited, whole = Engine.load(edited.dump()), Engine.load(whole.dump())
            found, expected, unchanged = (feed(each, n, close) for each in (edited, whole, kept))
            assert found == (unchanged if n < at else expected), (seed, n, old, new)
            after += len(found) * (n >= at)
            changed += found != unchanged
    assert after >= least and changed >= least, "it has shown nothing"


def test_a_trigger_that_fires_once_ends_at_its_next_event_and_what_was_sent_stays_sent() -> None:
    engine = started("close > 5", {"cooldown": "600", "resolve": "on"})
    assert feed(engine, 0, 1.0) == [] and len(feed(engine, 1, 6.0)) == 1
    engine.edit("t", 2, compile_trigger("close > 7", {"cooldown": "120", "resolve": "on"}))
    assert engine.registrations["t"].delivered["X"].until_ns == (2 + 2) * MINUTE_NS, "its length is the new one"
    assert feed(engine, 2, 8.0) == [] and feed(engine, 3, 1.0) == [], "in the cooldown"
    (fired,) = feed(engine, 4, 8.0)
    assert isinstance(fired, Firing) and fired.context["suppressed"] == "1"
    engine.edit("t", 3, compile_trigger("close > 5", {"fire": "once"}))
    assert feed(engine, 5, 9.0) == [], "it holds already"
    feed(engine, 6, 1.0)
    assert [type(each) for each in feed(engine, 7, 9.0)] == [Firing, TriggerEnded]


def test_a_paused_trigger_stays_paused_and_sends_nothing_of_the_text_before() -> None:
    engine = started("SELECT close FROM ohlc WHERE close > 5", {"fire": "level"})
    engine.pause("t", "X")
    feed(engine, 0, 6.0)
    new = compile_trigger("SELECT close, volume FROM ohlc WHERE close > 7", {"fire": "level"})
    assert engine.edit("t", 2, new) == []
    engine = Engine.load(engine.dump())
    assert feed(engine, 1, 6.0) == [] and feed(engine, 2, 8.0) == []
    (fired,) = engine.resume("t", "X", 0)
    assert isinstance(fired, Firing) and fired.rows == ((8.0, 2.0),)


W, P = f"SELECT SUM(close) AS s {HOP} {BY_WINDOW}", f"SELECT * {MATCH} A.ts AS s {DEFINE}"
REFUSED = [
    ("close > 5", "price > 5", {}, {}, "FROM, period, delay_ms, on"),
    ("close > 5", "close > 5", {}, {"period": "300"}, "period"),
    ("close > 5", "close > 5", {}, {"on": "tick"}, "delay_ms, on"),
    ("close > 5", "close > 5", {}, {"delay_ms": "9"}, "delay_ms"),
    ("close > 5", "close > 6", {"rearm": "1"}, {"rearm": "1"}, "the condition, with rearm"),
    ("close > 5", "close > 5", {"rearm": "1"}, {"rearm": "2"}, "rearm"),
    ("close > 5", "close > 5", {"on": "bar"}, {"on": "bar", "cooldown": "9"}, "cooldown, with on=bar"),
    ("close > 5", "close CROSSES ABOVE 5", {}, {}, "values of CROSSES"),
    ("close CROSSES ABOVE open", "close CROSSES ABOVE high", {}, {}, "values of CROSSES"),
    ("close CROSSES ABOVE 5", "close CROSSES ABOVE 5 + 1", {}, {}, "values of CROSSES"),
    (W, W.replace("<> 4", "<> 5"), {}, {}, "WHERE"),
    (W, W.replace("'4' MINUTE", "'5' MINUTE"), {}, {}, "FROM"),
    (W, W.replace("SUM(close)", "SUM(volume)"), {}, {}, "aggregates"),
    (W, f"{W} HAVING MIN(close) > 5", {}, {}, "aggregates"),
    (f"SELECT ts {AVERAGE} close > ma", f"SELECT ts {AVERAGE} close > ma".replace("3 PREC", "4 PREC"), {}, {}, "FROM"),
    (f"SELECT AVG(close) {OVER} AS m FROM ohlc WHERE close > 1", f"SELECT AVG(open) {OVER} AS m FROM ohlc", {}, {},
     "calls with OVER, WHERE"),
    (P, P.replace("'9' MINUTE", "'8' MINUTE"), {}, {}, "WITHIN"),
    (P, P.replace("B.close < 5", "B.close < 4"), {}, {}, "DEFINE"),
    (P, P.replace("B+?", "B*?"), {}, {}, "PATTERN"),
    (P, P.replace("PAST LAST ROW", "TO NEXT ROW"), {}, {}, "AFTER MATCH"),
    (P, P.replace("A.ts AS", "PREV(A.ts, 3) AS"), {}, {}, "types of columns"),
    (P, "close > 5", {}, {}, "FROM"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "before", "after", "names"), REFUSED)
def test_an_edit_that_cannot_keep_the_state_names_what_differs(
    old: str, new: str, before: dict[str, str], after: dict[str, str], names: str
) -> None:
    given = compile_trigger(old, before), compile_trigger(new, after)
    assert ", ".join(differences(*given)) == names
    assert differences(given[0], given[0]) == () == differences(given[1], given[1])
    engine = started(old, before)
    (found,) = engine.edit("t", 2, given[1])
    assert isinstance(found, Suspension) and names in found.reason and not engine.registrations


def test_spaces_case_and_names_of_columns_make_no_difference() -> None:
    given = compile_trigger(W, {}), compile_trigger(W.replace(" AS s", "  AS total").replace("SUM", "sum"), {})
    assert differences(*given) == ()


def test_edits_give_a_trigger_no_new_work_or_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attacker who edits all the time has the limits of one trigger."""
    monkeypatch.setattr(stages, "_UNCOUNTED", 0)
    texts = [f"SELECT ts, ma + {n} AS m {AVERAGE} close > ma" for n in range(2)]
    engine, plain = started(texts[0], {}), started(texts[0], {})
    for n in range(30):
        feed(engine, n, 5.0 + n % 3)
        feed(plain, n, 5.0 + n % 3)
        engine.edit("t", n + 2, compile_trigger(texts[n % 2], {}))
    accounts = [each.registrations["t"].account for each in (engine, plain)]
    assert accounts[0].state_bytes == accounts[1].state_bytes > 0
    spent = [sum((each._minutes or {}).values()) for each in accounts]
    assert spent[0] >= spent[1] > 0
