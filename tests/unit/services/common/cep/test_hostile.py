"""Texts that try to run code or to exhaust parser or engine: refused, or one trigger is suspended and no other."""

from __future__ import annotations

import builtins
import tracemalloc

import pytest

from dexorder_cep import Engine, Firing, InvalidSql, Suspension, compile_trigger
from dexorder_cep.compile import code
from dexorder_cep.compile.code import PATTERN, Emitter, generate
from dexorder_cep.compile.texts import like
from dexorder_cep.language.refusals import MAX_TEXT_BYTES, TextPosition
from dexorder_cep.run import account as account_module
from dexorder_cep.run import matcher as matcher_module

SECOND_NS = 1_000_000_000
PLAIN = "SELECT * FROM ohlc WHERE {}"


def pattern(text: str, define: str, within: str = "") -> str:
    return (
        "SELECT * FROM ohlc MATCH_RECOGNIZE (PARTITION BY ticker ORDER BY ts MEASURES LAST(A.close) AS a "
        f"PATTERN ({text}) {within} DEFINE {define})"
    )


REFUSED = {
    "python call": PLAIN.format("__import__('os').system('id') > 1"),
    "dunder attribute": PLAIN.format("close.__class__ = 1"),
    "builtin as function": PLAIN.format("eval('1') > 0"),
    "open as function": PLAIN.format("open('/etc/passwd') > 0"),
    "exec as function": PLAIN.format("EXEC('1') = 1"),
    "code as quoted column": PLAIN.format('`__import__("os")` > 1'),
    "our names": PLAIN.format("r > 1 AND T = 'X' AND k0 = 1"),
    "our helper": PLAIN.format("divide_doubles(1, 0) > 1"),
    "file function": PLAIN.format("PG_READ_FILE('/etc/passwd') = 'x'"),
    "network function": PLAIN.format("HTTP_GET('http://127.0.0.1') = 'x'"),
    "table function": "SELECT * FROM read_csv('/etc/passwd') WHERE a > 1",
    "other catalog": "SELECT * FROM `/etc/passwd` WHERE close > 1",
    "second statement": PLAIN.format("close > 1; DROP TABLE ohlc"),
    "comment that hides an end": PLAIN.format("close > 1 /* "),
    "values": "SELECT * FROM (VALUES (1)) WHERE close > 1",
    "brackets": "(" * MAX_TEXT_BYTES,
    "brackets in a condition": PLAIN.format("(" * 8_000 + "1" + ")" * 8_000),
    "open brackets of a list": PLAIN.format("close IN " + "(1 IN " * 2_500),
    "not": PLAIN.format("NOT " * 4_000 + "TRUE"),
    "minus": PLAIN.format("- " * 5_000 + "1 > 1"),
    "or": PLAIN.format(" OR ".join(["close > 1"] * 1_200)),
    "plus": PLAIN.format("+".join(["close"] * 2_500) + " > 1"),
    "comparisons": PLAIN.format("close" + " IS TRUE" * 1_500),
    "case": PLAIN.format("CASE WHEN " * 1_000 + "TRUE"),
    "calls": PLAIN.format("ABS(" * 3_000 + "1"),
    "selects": "SELECT * FROM (" * 900 + "SELECT * FROM ohlc" + ")" * 900,
    "too long": PLAIN.format("close > " + "1" * MAX_TEXT_BYTES),
    "long number": PLAIN.format("close > " + "9" * 5_000),
    "long decimal": PLAIN.format("close > 0." + "9" * 5_000),
    "long string unclosed": PLAIN.format("ticker = '" + "x" * 9_000),
    "states": pattern("A{1,1000000} B", "A AS A.close > 1"),
    "many states": pattern("A{1,600}? B{1,600}? C", "A AS A.close > 1"),
    "variables": pattern(" ".join(f"V{n}?" for n in range(500)) + " A", "A AS A.close > 1"),
    "offset": pattern("A B", "B AS B.close > PREV(B.close, 100000)"),
    "over": "SELECT SUM(close) OVER (PARTITION BY ticker ORDER BY ts ROWS 999999 PRECEDING) AS s FROM ohlc",
    "window of a million slices": "SELECT window_end FROM TABLE(HOP(TABLE ohlc, DESCRIPTOR(ts), INTERVAL '1' SECOND, "
    "INTERVAL '20' DAY)) GROUP BY ticker, window_start, window_end",
    "over in many columns": "SELECT "
    + ", ".join(f"SUM(close) OVER (PARTITION BY ticker ORDER BY ts ROWS {999 - n} PRECEDING) AS s{n}" for n in range(6))
    + " FROM ohlc",
    "window with many steps and aggregates": "SELECT window_end, "
    + ", ".join(f"SUM(close + {n}) AS s{n}" for n in range(15))
    + " FROM TABLE(HOP(TABLE ohlc, DESCRIPTOR(ts), INTERVAL '1' MINUTE, INTERVAL '1' DAY)) "
    "GROUP BY ticker, window_start, window_end",
    "quotes": PLAIN.format('ticker = \'"""\' || "x"'),
    "stars of stars": f"SELECT *,*,*,*,*,* FROM ({'SELECT *,*,*,*,*,* FROM (' * 7}ohlc{')' * 8}",
    "stars side by side": f"SELECT {','.join('*' * 2_900)} FROM ohlc",
    "no text": "",
    "zero byte": PLAIN.format("close\x00 > 1"),
    "lone surrogate": PLAIN.format("ticker = '\ud800' AND"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_hostile_text_is_refused_with_little_memory_and_no_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    for builtin in ("open", "__import__", "exec"):
        monkeypatch.setattr(builtins, builtin, _noted(builtin, called, getattr(builtins, builtin)))
    tracemalloc.start()
    try:
        with pytest.raises(InvalidSql) as refusal:
            compile_trigger(REFUSED[name], {})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert refusal.value.line >= 1
    assert len(str(refusal.value)) < 1_000, "an error does not repeat a long text"
    assert peak < 16 * 2**20
    assert "open" not in called
    assert "exec" not in called


def _noted(name: str, called: list[str], real: object) -> object:
    def call(*arguments: object, **named: object) -> object:
        called.append(name)
        assert callable(real)
        return real(*arguments, **named)

    return call


def test_code_in_a_string_is_a_string() -> None:
    text = "__import__(\"os\"); {0} %s \\ ''' k0"
    trigger = compile_trigger(f"SELECT '{text.replace(chr(39), chr(39) * 2)}' AS s FROM ohlc", {"fire": "level"})
    engine = Engine()
    engine.add("t", 1, trigger, 0)
    (firing,) = engine.feed_candles("X", 60, [(0, 1.0, 1.0, 1.0, 1.0, 1.0, None, None)])
    assert isinstance(firing, Firing)
    assert firing.rows == ((text,),)


@pytest.mark.parametrize("code", ["r.__class__", "open('x')", "'text'", "unknown", "[x for x in R]", "1.5"])
def test_generated_code_that_is_not_allowed_is_never_compiled(code: str) -> None:
    with pytest.raises(AssertionError, match="generated code"):
        generate(code, PATTERN, Emitter(), TextPosition(1, 1))


MANY_ENDS = pattern("A*? B", "A AS TRUE, B AS B.close > PREV(B.close, 120) - 1").replace(
    "LAST(A.close) AS a", ", ".join(f"SUM(A.close + {n}) AS s{n}" for n in range(30)) + " AFTER MATCH SKIP TO NEXT ROW"
)
LIMITS = {
    "three reluctant loops": (pattern("A B*? C*? D*? E", "A AS A.close > 0, E AS E.close > 1000"), "unfinished"),
    "open loop": (pattern("A B* C", "C AS C.close > 1000"), "unfinished"),
    "aggregates over all rows": (
        pattern("A B* C", "B AS SUM(B.close) + AVG(B.close) + MAX(B.close) > 0, C AS C.close > 1000"),
        "a row costs more",
    ),
    "a long match": (pattern("A B* C", "B AS B.close > 0 AND COUNT(B.close) < 1000, C AS C.close > 1000"), "rows; add"),
    "much work in a minute": (
        pattern("A B* C", "B AS B.close > 0 AND SUM(B.close) > 0, C AS C.close > 1000"),
        "the rows of a minute cost more",
    ),
    "a row that ends many matches with many measures": (MANY_ENDS, "the measures of a match of"),
}
CAPS = {
    "a long match": {"MAX_SPAN_ROWS": 90},
    "much work in a minute": {"MAX_WORK_PER_MINUTE": 100_000},
    "a row that ends many matches with many measures": {"MAX_WORK_PER_MINUTE": 100_000},
}
"""Caps that are lower than those below, by name of the case."""


@pytest.mark.parametrize("name", LIMITS)
def test_pattern_that_grows_without_end_is_suspended_and_others_are_on_time(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matcher_module, "MAX_PARTIAL_MATCHES", 200)
    monkeypatch.setattr(matcher_module, "MAX_WORK_PER_ROW", 60_000)
    monkeypatch.setattr(account_module, "MAX_WORK_PER_ROW", 60_000)
    monkeypatch.setattr(matcher_module, "SHORT_SPAN", 16)
    for cap, value in CAPS.get(name, {}).items():
        monkeypatch.setattr(account_module if "WORK" in cap else matcher_module, cap, value)
    sql, reason = LIMITS[name]
    engine = Engine()
    engine.add("hostile", 1, compile_trigger(sql, {"period": "1"}), 0)
    engine.add("other", 1, compile_trigger("SELECT close FROM ohlc", {"fire": "level", "period": "1"}), 0)
    suspended: list[Suspension] = []
    for n in range(260):
        found = engine.feed_candles("X", 1, [(n * SECOND_NS, 1.0, 1.0, 1.0, 1.0, 1.0, None, None)])
        suspended += [each for each in found if isinstance(each, Suspension)]
        assert [each.trigger_id for each in found if isinstance(each, Firing)] == ["other"]
    (suspension,) = suspended
    assert suspension.trigger_id == "hostile"
    assert reason in suspension.reason
    assert list(engine.registrations) == ["other"]


def test_like_takes_steps_in_proportion_to_text_times_pattern() -> None:
    """A matcher that backtracks into every ``%`` would not end within the time of a test."""
    assert not like("a" * 2_000, "%a" * 2_000 + "b")
    assert like("a" * 500 + "b", "%a" * 200 + "%b")
    assert like("50%_x", r"50\%\__")
    assert not like("50x_x", r"50\%\__")


def nested(levels: int, copies: int) -> str:
    """A trigger whose text is multiplied by each level."""
    text = "SELECT ts, ticker, side FROM ticks"
    for _ in range(levels):
        text = f"SELECT ts, ticker, CONCAT({', '.join(['side'] * copies)}) AS side FROM ({text})"
    return f"SELECT ticker FROM ({text}) WHERE side = 'x'"


OVER = "OVER (PARTITION BY ticker ORDER BY ts)"
LONG = f"CONCAT({', '.join(['trade_id'] * 99)})"
GREEDY = {
    "texts of texts": (nested(7, 100), "a text has more than 4096 bytes"),
    "texts of few texts": (nested(6, 12), "a text has more than 4096 bytes"),
    "a condition with many texts": (
        "SELECT ticker FROM ticks WHERE " + " OR ".join([f"{LONG} LIKE '%{'a' * 60}%b'"] * 15),
        "the texts of a row cost more",
    ),
    "a long LIKE": (
        f"SELECT ticker FROM (SELECT ts, ticker, {LONG} AS t FROM ticks) WHERE t LIKE '%{'a' * 1_500}b'",
        "the rows of a minute cost more",
    ),
    "texts looked back at": (
        "SELECT a0 FROM (SELECT ts, ticker, "
        + ", ".join(f"LAG({LONG}, {n + 900}) {OVER} AS a{n}" for n in range(15))
        + " FROM ticks) WHERE a0 = 'x'",
        "keeps more than",
    ),
    "rows of a pattern": (
        "SELECT * FROM (SELECT ts, ticker, "
        + ", ".join(f"price + {n} AS p{n}" for n in range(300))
        + " FROM ticks) MATCH_RECOGNIZE (PARTITION BY ticker ORDER BY ts MEASURES LAST(B.p0) AS p "
        "PATTERN (A B) DEFINE A AS A.p0 > 0, B AS B.p0 < 0)",
        "keeps more than",
    ),
    "values of OVER": (
        "SELECT "
        + ", ".join(
            f"SUM(price + {n}) OVER (PARTITION BY ticker ORDER BY ts ROWS 900 PRECEDING) AS s{n}" for n in range(5)
        )
        + " FROM ticks",
        "the rows of a minute cost more",
    ),
}
"""Texts that are accepted and need too much."""


@pytest.mark.parametrize("name", GREEDY)
def test_trigger_that_needs_too_much_is_suspended_and_others_are_on_time(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account_module, "MAX_STATE_BYTES", 2**22)
    monkeypatch.setattr(account_module, "MAX_WORK_PER_MINUTE", 500_000)
    sql, reason = GREEDY[name]
    engine = Engine()
    engine.add("hostile", 1, compile_trigger(sql, {} if "MATCH" in sql else {"fire": "level"}), 0)
    engine.add("other", 1, compile_trigger("SELECT price FROM ticks", {"fire": "level"}), 0)
    suspended: list[Suspension] = []
    others = 0
    tracemalloc.start()
    try:
        for n in range(3_000):
            found = engine.feed_ticks("X", [(n * SECOND_NS // 10, f"{n:05d}" + "a" * 35, 1.0, 1.0, "x" * 40)])
            suspended += [each for each in found if isinstance(each, Suspension)]
            others += sum(isinstance(each, Firing) and each.trigger_id == "other" for each in found)
            assert others >= n - 1, "each trade fires when the next one is known"
            if suspended:
                break
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    (suspension,) = suspended
    assert suspension.trigger_id == "hostile"
    assert reason in suspension.reason
    assert peak < 48 * 2**20


def test_work_is_counted_for_all_markets_of_a_trigger_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account_module, "MAX_WORK_PER_MINUTE", 30_000)
    sql = "SELECT SUM(close) OVER (PARTITION BY ticker ORDER BY ts ROWS 99 PRECEDING) AS s FROM ohlc"
    ended = {}
    for markets in (1, 10):
        engine = Engine()
        engine.add("t", 1, compile_trigger(sql, {"period": "1", "fire": "level"}), 0)
        ended[markets] = [
            each
            for n in range(300)
            for market in range(markets)
            for each in engine.feed_candles(f"M{market}", 1, [(n * SECOND_NS, 1.0, 1.0, 1.0, 1.0, 1.0, None, None)])
            if isinstance(each, Suspension)
        ]
    assert ended[1] == []
    assert [each.reason.partition(" steps")[0] for each in ended[10]] == ["the rows of a minute cost more than 30000"]


def test_memory_that_is_dropped_is_not_counted_and_a_loaded_engine_counts_the_same() -> None:
    engine = Engine()
    texts = {
        "windows": "SELECT n FROM (SELECT window_end, COUNT(*) AS n, MAX(side) AS s, ticker, window_start "
        "FROM TABLE(TUMBLE(TABLE ticks, DESCRIPTOR(ts), INTERVAL '1' SECOND)) "
        "GROUP BY ticker, window_start, window_end) WHERE n > 0",
        "over": f"SELECT p FROM (SELECT ts, ticker, LAG(side, 5) {OVER} AS p FROM ticks) WHERE p = 'sell'",
    }
    for name, text in texts.items():
        engine.add(name, 1, compile_trigger(text, {"fire": "level"}), 0)
    most = dict.fromkeys(texts, 0)
    for n in range(9_000):
        engine.feed_ticks("X", [(n * SECOND_NS // 2, f"{n:05d}", 1.0, 1.0, "buy ")])
        most = {name: max(size, engine.registrations[name].account.state_bytes) for name, size in most.items()}
    kept = {name: each.account.state_bytes for name, each in engine.registrations.items()}
    loaded = Engine.load(engine.dump())
    assert {name: each.account.state_bytes for name, each in loaded.registrations.items()} == kept
    assert all(0 < size < 600_000 for size in most.values()), "nine thousand derived rows of the larger one are 2 MB"


def test_triggers_that_differ_in_constants_share_code_and_nothing_else() -> None:
    texts = [f"SELECT `close` FROM ohlc WHERE `close` > {n} AND ticker <> '{n}'" for n in (1, 2**40, 3)]
    functions = [compile_trigger(text, {}).plan.condition for text in texts]  # type: ignore[union-attr]
    assert len({function.__code__ for function in functions}) == 1
    row = (0, 2.0, 2.0, 2.0, 2.0, 1.0, None, None)
    assert [function(row, "3") for function in functions] == [True, False, False]
    assert [function((0, 1.0, 9.0, 1.0, 9.0, 1.0, None, None), "3") for function in functions] == [True, False, False]
    before = code._cached_shape.cache_info().currsize
    compile_trigger("SELECT `close` FROM ohlc WHERE " + " OR ".join(f"`close` = {n}.5" for n in range(150)), {})
    assert code._cached_shape.cache_info().currsize == before, "long code is not kept"
