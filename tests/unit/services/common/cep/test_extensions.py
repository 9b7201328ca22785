"""What Flink's texts never have: values of parameters, a condition alone, CROSSES, and messages."""

from __future__ import annotations

import random
from typing import Any

import pytest

from dexorder_cep import Engine, Firing, InvalidSql, backtest, compile_trigger
from dexorder_cep.compile.message import MAX_MESSAGE, MAX_TEMPLATE
from dexorder_cep.language import syntax
from dexorder_cep.language.parser import parse
from dexorder_cep.language.tokens import tokenize
from dexorder_cep.language.values import with_values
from tests.unit.services.common.cep.test_flink import CASES

MINUTE_NS = 60_000_000_000


def candles(*closes: float) -> list[tuple[Any, ...]]:
    return [(n * MINUTE_NS, c, c, c, c, 1.0, None, n) for n, c in enumerate(closes)]


def firings(sql: str, closes: tuple[float, ...], **parameters: str) -> list[Firing]:
    return [
        each for each in backtest(compile_trigger(sql, parameters), "X", candles(*closes)) if isinstance(each, Firing)
    ]


def minutes(found: list[Firing]) -> list[int]:
    return [int(each.context["match_start"]) // MINUTE_NS for each in found]


# ---- values of parameters ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "values", "written"),
    [
        ("close > :level", {"level": "5"}, "close > 5"),
        ("close > :level", {"level": "-5.25"}, "close > -5.25"),
        ("close - :level > 1e0", {"level": "-5"}, "close - -5 > 1e0"),
        ("(close > 5) = :yes", {"yes": "true"}, "(close > 5) = true"),
        ("ticker = :t AND close > :a", {"t": "X", "a": ".5"}, "ticker = 'X' AND close > .5"),
        ("ticker = :t", {"t": "'5'"}, "ticker = '5'"),
        ("ticker = :t", {"t": "it's"}, "ticker = 'it''s'"),
        ("ticker <> :t OR close > 1", {"t": "' OR '1' = '1"}, "ticker <> ''' OR ''1'' = ''1' OR close > 1"),
        ("ts > TIMESTAMP :t", {"t": "2026-01-01 00:00:00"}, "ts > TIMESTAMP '2026-01-01 00:00:00'"),
        ("ts > ts - INTERVAL :m MINUTE", {"m": "5"}, "ts > ts - INTERVAL '5' MINUTE"),
        ("close IN (:a, :b)", {"a": "1", "b": "2"}, "close IN (1, 2)"),
        (
            "SELECT ts, LAG(close, :n) OVER (PARTITION BY ticker ORDER BY ts) AS p FROM ohlc",
            {"n": "3"},
            "SELECT ts, LAG(close, 3) OVER (PARTITION BY ticker ORDER BY ts) AS p FROM ohlc",
        ),
    ],
)
def test_a_value_is_one_literal_in_the_place_of_its_name(text: str, values: dict[str, str], written: str) -> None:
    def meaning(tokens: Any) -> list[tuple[str, str]]:
        return [(each.kind, each.text) for each in tokens]

    assert meaning(with_values(tokenize(text), values, ())) == meaning(tokenize(written))
    compile_trigger(text, values)


@pytest.mark.parametrize(
    ("text", "values", "said"),
    [
        ("close > :level", {}, "line 1, column 9: :level has no value: parameters lacks 'level'"),
        ("close > :level", {"Level": "5"}, "parameters has Level"),
        ("close > 5", {"level": "5"}, "'level' is not a parameter, and the text has no :level"),
        ("close > 5 AND ticker = ':level'", {"level": "5"}, "the text has no :level"),
        ("close > :level", {"level": "five"}, "cannot compare DOUBLE with CHAR(4) by '>' (with :level = text 'five')"),
        ("close > :level", {"level": "true"}, "(with :level = BOOLEAN 'true')"),
        ("close > :level", {"level": "5; DROP"}, "(with :level = text '5; DROP')"),
        ("ticker LIKE :t", {"t": "5"}, "LIKE takes strings, not INT (with :t = number '5')"),
        ("close > :fire", {"fire": "level"}, ":fire is a parameter of every trigger"),
        ("close > : level", {"level": "5"}, "the text has no :level"),
        ("close > : level", {}, "':' is not accepted here"),
        ("close > :5", {}, "':' is not accepted here"),
        ("SELECT :c FROM ohlc WHERE close > 1", {"c": "close, open"}, ""),
    ],
)
def test_a_value_that_is_missing_unused_or_of_another_type_is_refused_with_its_name(
    text: str, values: dict[str, str], said: str
) -> None:
    if not said:  # a text, not two columns
        assert [each.type for each in compile_trigger(text, values).columns] == ["CHAR(11)"]
        return
    with pytest.raises(InvalidSql) as refusal:
        compile_trigger(text, values)
    assert said in str(refusal.value)


def test_values_are_part_of_the_state() -> None:
    engine = Engine()
    engine.add("t", 1, compile_trigger("close > :level", {"level": "5", "message": "over {{close}}"}), 0)
    engine.feed_candles("X", 60, candles(1))
    (found,) = Engine.load(engine.dump()).feed_candles("X", 60, candles(1, 6)[1:])
    assert isinstance(found, Firing) and found.context["message"] == "over 6"


# ---- a condition alone ---------------------------------------------------------------------------------------------


def test_a_condition_alone_is_on_candles_or_on_trades_if_only_these_have_its_columns() -> None:
    assert minutes(firings("close > 5", (1, 6, 7, 2, 8))) == [1, 4]
    assert minutes(firings("`close` > 5 AND NOT volume > 3;", (1, 6))) == [1]
    (whole,) = firings("close > 5", (1, 6))
    assert whole.rows == (("X", MINUTE_NS, 6, 6, 6, 6, 1.0, None, 1),)
    assert compile_trigger("close > 5", {"period": "300"}).period_seconds == 300
    for text in (
        "price > 5",
        "amount > 1 AND ticker = 'X'",
        "ABS(price - 3) > 1",
        "CASE WHEN side = 'buy' THEN true END",
    ):
        assert compile_trigger(text, {}).source == "ticks", text
    with pytest.raises(InvalidSql, match="'close' does not exist"):
        compile_trigger("price > close", {})


@pytest.mark.parametrize(
    "text", ["", ";", "INSERT INTO a VALUES (1)", "DROP TABLE ohlc", "SET 'a' = 'b'", "WITH a AS (b)"]
)
def test_another_statement_is_no_condition(text: str) -> None:
    with pytest.raises(InvalidSql, match=r"expected (SELECT or a condition|an expression)|WITH is not"):
        compile_trigger(text, {})


# ---- crosses -------------------------------------------------------------------------------------------------------


def test_a_value_crosses_where_it_is_beyond_and_was_not_a_row_before() -> None:
    rng = random.Random(8)
    for _ in range(40):
        closes = tuple(float(rng.randint(1, 6)) for _ in range(30))
        moving = [sum(closes[max(0, n - 2) : n + 1]) / len(closes[max(0, n - 2) : n + 1]) for n in range(30)]
        average = "AVG(close) OVER (PARTITION BY ticker ORDER BY ts ROWS BETWEEN 2 PRECEDING AND CURRENT ROW)"
        derived = f"SELECT ts FROM (SELECT ticker, ts, close, {average} AS ma FROM ohlc) WHERE close CROSSES {{}} ma"
        for text, limits in (("close crosses {} 3.5", [3.5] * 30), (derived, moving)):
            pairs = list(zip(closes, limits, strict=True))
            for fire in ("edge", "level"):
                above = [n for n in range(1, 30) if pairs[n][0] > pairs[n][1] and pairs[n - 1][0] <= pairs[n - 1][1]]
                below = [n for n in range(1, 30) if pairs[n][0] < pairs[n][1] and pairs[n - 1][0] >= pairs[n - 1][1]]
                assert minutes(firings(text.format("above"), closes, fire=fire)) == above
                assert minutes(firings(text.format("BELOW"), closes, fire=fire)) == below


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("close CROSSES ABOVE ticker", "takes numbers, not STRING"),
        ("close CROSSES ABOVE CASE WHEN open CROSSES ABOVE 1 THEN 1 ELSE 2 END", "outside of another one"),
        ("SELECT close CROSSES ABOVE 1 FROM ohlc", "in WHERE of a SELECT over rows"),
        ("close CROSSES 5", "'CROSSES' is not accepted here"),
        (
            "SELECT * FROM ohlc MATCH_RECOGNIZE (PARTITION BY ticker ORDER BY ts MEASURES A.ts AS s PATTERN (A) "
            "DEFINE A AS A.close CROSSES ABOVE 5)",
            "not accepted in MATCH_RECOGNIZE; compare with PREV",
        ),
        (
            "SELECT LAG(close) OVER (PARTITION BY ticker ORDER BY ts) AS p FROM ohlc WHERE close CROSSES ABOVE 5",
            "put OVER into a derived table",
        ),
    ],
)
def test_crosses_elsewhere_is_refused_with_the_remedy(text: str, said: str) -> None:
    with pytest.raises(InvalidSql) as refusal:
        compile_trigger(text, {})
    assert said in str(refusal.value)


# ---- messages ------------------------------------------------------------------------------------------------------


def test_a_message_has_the_values_of_the_row() -> None:
    template = "{{ticker}} at {{close}}, {{ trades }} of {{quote_volume}} since {{ts}}; {{time}} {{trigger_id}} }"
    (found,) = firings("close > 5", (1, 6.5), message=template)
    assert found.context["message"] == (
        "X at 6.5, 1 of NULL since 1970-01-01T00:01:00Z; 1970-01-01T00:02:00Z backtest }"
    )
    (found,) = firings(
        "SELECT CAST(close AS DECIMAL(9, 2)) AS d, close > 1 AS b FROM ohlc WHERE close > 5",
        (1, 7),
        message="{{d}} {{b}}",
    )
    assert found.context["message"] == "7.00 TRUE"
    (found,) = firings("SELECT ticker AS `time` FROM ohlc WHERE close > 5", (1, 7), message="{{time}}")
    assert found.context["message"] == "X", "a column comes before a fact of the same name"
    assert "message" not in firings("close > 5", (1, 7))[0].context


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{clos}}", "{{clos}} is not a column of the result; use ticker, ts, open"),
        ("{{}}", "{{}} is not a column"),
        ("{{close", "stand around the name of a column"),
        ("close}}", "stand around the name of a column"),
        ("{{ {{close}} }}", "stand around the name of a column"),
        ("{{" + "c" * 500 + "}}", "stand around the name of a column"),
        ("x" * (MAX_TEMPLATE + 1), f"at most {MAX_TEMPLATE} are allowed"),
    ],
)
def test_a_template_is_checked_at_the_registration(template: str, said: str) -> None:
    with pytest.raises(InvalidSql) as refusal:
        compile_trigger("close > 5", {"message": template})
    assert str(refusal.value).startswith("message: ") and said in str(refusal.value)


def test_a_message_is_short_whatever_its_values_are() -> None:
    sql = f"SELECT '{'x' * 3_000}' AS t FROM ohlc WHERE close > 5"
    (found,) = firings(sql, (1, 6), message="{{t}}" * (MAX_TEMPLATE // 5))
    assert len(found.context["message"]) == MAX_MESSAGE and found.context["message"].endswith("x...")


# ---- Flink's texts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "columns" in case])
def test_no_text_that_flink_accepts_has_an_extension(name: str) -> None:
    sql = CASES[name]["sql"]
    tokens = tokenize(sql)
    assert with_values(tokens, {}, ()) == tokens
    try:
        tree = parse(tokens)
    except InvalidSql:
        return
    assert tokens[0].word == "SELECT" and "CROSSES" not in repr(tree)


def test_names_of_extensions_stay_names() -> None:
    """CROSSES, ABOVE and BELOW are not reserved in Flink: they are columns and aliases there, as they are here."""
    text = "SELECT close crosses, high above, low AS below FROM ohlc AS crosses WHERE crosses.close > 5"
    assert [each.name for each in compile_trigger(text, {}).columns] == ["crosses", "above", "below"]
    inner = "SELECT crosses FROM (SELECT close crosses, open above FROM ohlc) WHERE crosses > above"
    assert [each.name for each in compile_trigger(inner, {}).columns] == ["crosses"]
    tree = parse(tokenize("SELECT crosses FROM ohlc WHERE above > crosses"))
    assert isinstance(tree.where, syntax.Operation) and tree.where.operator == ">"
