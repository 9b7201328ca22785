# ruff: noqa: E501 - a query is easier to read in one line
"""Cases for real Flink and for our engine: rows made from a seed, and queries.

A query whose name begins with ``refused_`` is expected to be refused by Flink; what Flink really does is in
``recorded.json`` all the same, and that is what our engine is compared with.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

MINUTE_MS = 60_000
BASE_MS = 10 * MINUTE_MS
"""Time of the first row: OVER of Flink drops a row at 0 as late."""
Row = tuple[str, int, float, float, float, float, float, float | None, int | None]
"""Ticker, time in ms, open, high, low, close, volume, quote volume, number of trades."""


class Rows(NamedTuple):
    """Rows in the order of arrival, and the delay of the watermark behind the newest time."""

    rows: list[Row]
    delay_ms: int


class Case(NamedTuple):
    """A query and the name of the rows that it reads."""

    name: str
    sql: str
    rows: str = "walk"


def candle(ticker: str, time_ms: int, close: float, rng: random.Random) -> Row:
    """Return a candle whose optional values are missing now and then."""
    quote = None if rng.random() < 0.2 else round(close * rng.randint(1, 50), 2)
    trades = None if rng.random() < 0.2 else rng.randint(0, 40)
    volume = float(rng.randint(0, 30))
    return ticker, time_ms, close, close + rng.randint(0, 3), close - rng.randint(0, 3), close, volume, quote, trades


def walk(seed: int, count: int, ticker: str = "X", start_ms: int = BASE_MS, step_ms: int = MINUTE_MS) -> list[Row]:
    """Return candles whose closes walk between 1 and 20 in steps of halves."""
    rng = random.Random(seed)
    close, found = 10.0, []
    for n in range(count):
        close = min(20.0, max(1.0, close + rng.choice((-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0))))
        found.append(candle(ticker, start_ms + n * step_ms, close, rng))
    return found


def all_rows() -> dict[str, Rows]:
    """Return the sets of rows by name."""
    rng = random.Random(25)
    bob = [12, 17, 13, 16, 25, 2, 4, 10, 15, 25, 25, 20, 19, 21, 22, 25, 19, 18, 17, 14, 13, 12, 10, 9, 10, 15, 11]
    small = random.Random(7)
    dense = [candle("X", BASE_MS + n * MINUTE_MS, float(small.randint(1, 4)), small) for n in range(80)]
    late = walk(4, 60)
    for n in range(3, 57, 3):
        late.insert(n, late.pop(n + rng.randint(0, 4)))
    pairs = [candle("X", BASE_MS + (n // 3) * MINUTE_MS, float(rng.randint(1, 6)), rng) for n in range(60)]
    two = sorted(walk(5, 50) + walk(6, 50, "Y", BASE_MS + MINUTE_MS // 2), key=lambda row: row[1])
    gaps = [row for row in walk(8, 140) if row[1] // MINUTE_MS % 17 < 13]
    return {
        "walk": Rows(walk(1, 120), 0),
        "bob": Rows([candle("ACME", BASE_MS + n * 3_600_000, float(price), rng) for n, price in enumerate(bob)], 0),
        "dense": Rows(dense, 0),
        "late": Rows(late, 2 * MINUTE_MS),
        "equal": Rows(pairs, 1_000),
        "two": Rows(two, 0),
        "gaps": Rows(gaps, 0),
    }


def match(
    pattern: str,
    define: str,
    measures: str = "FIRST(A.ts) AS s, LAST(A.`close`) AS a, COUNT(*) AS n",
    *,
    skip: str = "",
    within: str = "",
    partition: str = "PARTITION BY ticker",
    order: str = "ORDER BY ts",
    select: str = "SELECT *",
    where: str = "",
    source: str = "ohlc",
    rows: str = "",
) -> str:
    """Return a query with MATCH_RECOGNIZE."""
    parts = [
        f"{select} FROM {source} MATCH_RECOGNIZE (",
        f"  {partition} {order}",
        f"  MEASURES {measures}" if measures else "",
        f"  {rows}",
        f"  AFTER MATCH SKIP {skip}" if skip else "",
        f"  PATTERN ({pattern}) {within}",
        f"  DEFINE {define}" if define else "",
        f") AS m {where}",
    ]
    return "\n".join(part for part in parts if part.strip())


FALL = "B AS B.`close` < LAST(B.`close`, 1) OR (LAST(B.`close`, 1) IS NULL AND B.`close` < A.`close`)"
RISE = "C AS C.`close` > LAST(B.`close`)"
DIP = f"{FALL}, {RISE}"
DIP_MEASURES = "A.ts AS s, A.`close` AS a, LAST(B.`close`) AS b, C.`close` AS c, C.ts AS e"
HIGH = "A AS A.`close` > 10, B AS B.`close` < 10, C AS C.`close` > 11"
LETTERS = "A AS A.`close` = 1, B AS B.`close` <= 2, C AS C.`close` >= 3"
WIN = "TABLE(TUMBLE(TABLE ohlc, DESCRIPTOR(ts), INTERVAL '5' MINUTE))"
KEYS = "GROUP BY ticker, window_start, window_end"
OVER = "OVER (PARTITION BY ticker ORDER BY ts ROWS BETWEEN 4 PRECEDING AND CURRENT ROW)"
LAG = "OVER (PARTITION BY ticker ORDER BY ts)"


def accepted() -> list[Case]:
    """Return queries that Flink should accept."""
    abc = "A.ts AS s, A.`close` AS a, LAST(B.`close`) AS b, COUNT(B.`close`) AS n, C.ts AS e"
    ac = "A.ts AS s, COUNT(*) AS n, C.ts AS e"
    return [
        Case("default_skip", match("A B+ C", DIP, DIP_MEASURES)),
        Case("skip_next_row", match("A B+ C", DIP, DIP_MEASURES, skip="TO NEXT ROW")),
        Case("skip_past_last", match("A B+ C", DIP, DIP_MEASURES, skip="PAST LAST ROW")),
        Case("skip_to_first", match("A B+ C", DIP, DIP_MEASURES, skip="TO FIRST B")),
        Case("skip_to_last", match("A B+ C", DIP, DIP_MEASURES, skip="TO LAST B")),
        Case("skip_to_variable", match("A B+ C", DIP, DIP_MEASURES, skip="TO C")),
        Case("reluctant_plus", match("A B+? C", DIP, DIP_MEASURES)),
        Case("star_greedy", match("A B* C", HIGH, ac)),
        Case("star_reluctant", match("A B*? C", HIGH, ac)),
        Case("optional", match("A B? C", HIGH, ac)),
        Case("optional_overlap", match("A B? C", "B AS B.`close` > 5, C AS C.`close` > 8", ac)),
        Case("exactly", match("A B{3} C", "B AS B.`close` < 12, C AS C.`close` > 9", ac)),
        Case("at_least", match("A B{2,} C", "B AS B.`close` < 12, C AS C.`close` > 9", ac)),
        Case("at_least_reluctant", match("A B{2,}? C", "B AS B.`close` < 12, C AS C.`close` > 9", ac)),
        Case("range_greedy", match("A B{2,3} C", "B AS B.`close` < 12, C AS C.`close` > 9", ac)),
        Case("range_reluctant", match("A B{2,4}? C", "B AS B.`close` < 12, C AS C.`close` > 9", ac)),
        Case("range_from_zero", match("A B{0,2} C", "B AS B.`close` < 12, C AS C.`close` > 9", ac)),
        Case("range_from_zero_reluctant", match("A B{0,3}? C", "B AS B.`close` < 12, C AS C.`close` > 9", ac)),
        Case("greedy_keeps_rows", match("A B+ C", "B AS B.`close` > 5, C AS C.`close` > 12", ac)),
        Case(
            "greedy_bounded", match("A{2,3} C", "A AS A.`close` > 5, C AS C.`close` > 8", "FIRST(A.ts) AS s, C.ts AS e")
        ),
        Case("first_greedy", match("A+ C", "A AS A.`close` < 10, C AS C.`close` > 10", "FIRST(A.ts) AS s, C.ts AS e")),
        Case("first_optional", match("A? B C", LETTERS, "A.ts AS s, B.ts AS b, C.ts AS e"), "dense"),
        Case("first_star", match("A* C", LETTERS, "FIRST(A.ts) AS s, COUNT(A.ts) AS n, C.ts AS e"), "dense"),
        Case("dense_ab", match("A B*? C", LETTERS, abc), "dense"),
        Case("dense_ab_greedy", match("A B* C", LETTERS, abc), "dense"),
        Case("dense_two_loops", match("A B*? D*? C", LETTERS + ", D AS D.`close` <= 3", ac), "dense"),
        Case(
            "dense_three_loops",
            match("A B*? D*? E*? C", LETTERS + ", D AS D.`close` <= 3", ac, skip="PAST LAST ROW"),
            "dense",
        ),
        Case("dense_optional_pair", match("A B? D? C", LETTERS + ", D AS D.`close` <= 3", ac), "dense"),
        Case(
            "dense_ranges", match("A{1,2}? B{0,2}? C", LETTERS, "FIRST(A.ts) AS s, COUNT(*) AS n, C.ts AS e"), "dense"
        ),
        Case(
            "dense_ranges_greedy",
            match("A{1,2} B{1,2} C", LETTERS, "FIRST(A.ts) AS s, COUNT(*) AS n, C.ts AS e"),
            "dense",
        ),
        Case("dense_last_reluctant", match("A B+?", LETTERS, "A.ts AS s, COUNT(*) AS n"), "dense"),
        Case("dense_last_range", match("A B{2,3}?", LETTERS, "A.ts AS s, COUNT(*) AS n"), "dense"),
        Case("dense_last_star", match("A B*?", LETTERS, "A.ts AS s, COUNT(*) AS n"), "dense"),
        Case("dense_last_optional", match("A B?", LETTERS, "A.ts AS s, COUNT(*) AS n, B.ts AS b"), "dense"),
        Case("dense_last_from_zero", match("A B{0,2}?", LETTERS, "A.ts AS s, COUNT(*) AS n"), "dense"),
        Case("dense_zero_after_greedy", match("B+ A{0,2} C", LETTERS, "FIRST(B.ts) AS s, COUNT(*) AS n"), "dense"),
        Case("dense_zero_after_greedy_end", match("B+ A{0,2}?", LETTERS, "FIRST(B.ts) AS s, COUNT(*) AS n"), "dense"),
        Case("dense_skip_last", match("A B*? C", LETTERS, abc, skip="TO LAST C"), "dense"),
        Case("within", match("A B* C", HIGH, ac, within="WITHIN INTERVAL '3' MINUTE")),
        Case("within_long", match("A B* C", "B AS B.`close` < A.`close`", ac, within="WITHIN INTERVAL '6' MINUTE")),
        Case("no_within_waits", match("A B* C", "B AS B.`close` < A.`close`, C AS C.`close` > A.`close` + 1", ac)),
        Case(
            "within_frees_waiting",
            match(
                "A B* C",
                "B AS B.`close` < A.`close`, C AS C.`close` > A.`close` + 1",
                ac + ", MATCH_ROWTIME() AS t",
                within="WITHIN INTERVAL '5' MINUTE",
            ),
        ),
        Case(
            "within_gaps",
            match(
                "A B* C",
                "B AS B.`close` < A.`close`, C AS C.`close` > A.`close` + 1",
                ac + ", MATCH_ROWTIME() AS t",
                within="WITHIN INTERVAL '5' MINUTE",
            ),
            "gaps",
        ),
        Case("within_seconds", match("A B+ C", DIP, DIP_MEASURES, within="WITHIN INTERVAL '240' SECOND(3)")),
        Case(
            "within_hour_to_minute", match("A B+ C", DIP, DIP_MEASURES, within="WITHIN INTERVAL '0:04' HOUR TO MINUTE")
        ),
        Case(
            "bob_average",
            match(
                "A+ B",
                "A AS AVG(A.`close`) < 15",
                "FIRST(A.ts) AS s, LAST(A.ts) AS e, AVG(A.`close`) AS p",
                skip="PAST LAST ROW",
            ),
            "bob",
        ),
        Case(
            "bob_within",
            match(
                "A B+ C",
                "B AS B.`close` < A.`close` + 10, C AS C.`close` < 22",
                "A.ts AS s, C.ts AS e",
                within="WITHIN INTERVAL '2' HOUR",
            ),
            "bob",
        ),
        Case("bob_dip", match("A B+ C", DIP, DIP_MEASURES, skip="TO LAST C"), "bob"),
        Case("match_rowtime", match("A B+ C", DIP, DIP_MEASURES + ", MATCH_ROWTIME() AS t")),
        Case("match_rowtime_of_column", match("A B+ C", DIP, DIP_MEASURES + ", MATCH_ROWTIME(ts) AS t")),
        Case(
            "subset_without_use",
            match("A B", "B AS B.`close` > A.`close`", "A.ts AS s").replace("DEFINE", "SUBSET S = (A, B) DEFINE"),
        ),
        Case("rowtime_in_define", match("A B C", "B AS MATCH_ROWTIME() > B.ts", "A.ts AS s")),
        Case(
            "match_over_windows",
            match(
                "A B",
                "B AS B.av > A.av",
                "A.av AS a, B.av AS b, B.wt AS t",
                order="ORDER BY wt",
                source=f"(SELECT ticker, window_time AS wt, AVG(`close`) AS av FROM {WIN} {KEYS}, window_time)",
            ),
        ),
        Case("not_equal", match("A B", "B AS B.`close` != A.`close`", "A.ts AS s")),
        Case("late", match("A B+ C", DIP, DIP_MEASURES + ", MATCH_ROWTIME() AS t"), "late"),
        Case(
            "late_within",
            match("A B* C", HIGH, ac + ", MATCH_ROWTIME() AS t", within="WITHIN INTERVAL '4' MINUTE"),
            "late",
        ),
        Case("late_default_end", match("A B*? C", HIGH, ac), "late"),
        Case("second_order_key", match("A B+ C", DIP, DIP_MEASURES, order="ORDER BY ts, `close`"), "equal"),
        Case(
            "second_order_key_down",
            match("A B+ C", DIP, DIP_MEASURES, order="ORDER BY ts, `close` DESC, volume"),
            "equal",
        ),
        Case("equal_times", match("A B+ C", DIP, DIP_MEASURES), "equal"),
        Case("two_tickers", match("A B+ C", DIP, DIP_MEASURES), "two"),
        Case("two_tickers_within", match("A B* C", HIGH, ac, within="WITHIN INTERVAL '3' MINUTE"), "two"),
        Case(
            "first_last_offsets",
            match(
                "A B{3,5}? C",
                "C AS C.`close` > LAST(B.`close`, 1)",
                "FIRST(B.`close`, 1) AS f1, LAST(B.`close`, 2) AS l2, LAST(B.`close`, 4) AS l4, FIRST(B.`close`, 4) AS f4, C.ts AS e",
            ),
        ),
        Case(
            "first_in_define",
            match("A B+? C", "B AS B.`close` > FIRST(B.`close`) - 1, C AS C.`close` > FIRST(B.`close`, 1)", ac),
        ),
        Case(
            "last_of_expression", match("A B+ C", DIP, "LAST(B.`close` + B.volume, 1) AS x, FIRST(B.high - B.low) AS y")
        ),
        Case(
            "aggregates_in_measures",
            match(
                "A B+ C",
                DIP,
                "SUM(B.volume) AS sv, AVG(B.`close`) AS av, MIN(B.low) AS mi, MAX(B.high) AS ma, COUNT(B.trades) AS ct, SUM(B.trades) AS st, AVG(B.trades) AS at1, SUM(B.quote_volume) AS sq, SUM(B.`close` * B.volume) AS cv",
            ),
        ),
        Case(
            "aggregates_over_all",
            match(
                "A B+ C",
                DIP,
                "SUM(volume) AS sv, AVG(`close`) AS av, MIN(low) AS mi, COUNT(trades) AS ct, COUNT(*) AS n, FIRST(`close`) AS f, LAST(`close`) AS l, `close` AS c",
            ),
        ),
        Case(
            "aggregates_in_define",
            match(
                "A B+? C",
                "B AS SUM(B.volume) < 60 AND MAX(B.high) - MIN(B.low) < 6, C AS C.`close` > AVG(B.`close`) + 1 AND COUNT(B.volume) > 1",
                ac,
            ),
        ),
        Case(
            "aggregate_of_other_variable",
            match("A B{3} C", "C AS C.`close` > AVG(B.`close`) AND C.volume > SUM(A.volume)", ac),
        ),
        Case(
            "aggregate_of_none",
            match(
                "A B*? C",
                "A AS A.`close` > 9, C AS C.`close` > 10",
                "SUM(B.volume) AS sv, COUNT(B.volume) AS n, AVG(B.`close`) AS av, MAX(B.ts) AS t",
            ),
        ),
        Case(
            "unqualified",
            match("A B+ C", "A AS `close` > 9, B AS `close` < 9, C AS `close` > 9", "`close` AS c, COUNT(*) AS n"),
        ),
        Case("unqualified_all_rows", match("A B+? C", "B AS SUM(volume) < 50, C AS AVG(`close`) > 9", ac)),
        Case(
            "undefined_variable",
            match("A B C", "B AS B.`close` > A.`close`", "A.ts AS s, C.ts AS e, C.`close` - A.`close` AS d"),
        ),
        Case("unused_define", match("A B", "B AS B.`close` > A.`close`, Z AS Z.`close` > 1", "A.ts AS s")),
        Case("forward_reference", match("A B", "A AS A.`close` > B.`close`", "A.ts AS s")),
        Case("forward_is_null", match("A B", "A AS B.`close` IS NULL AND A.`close` > 10", "A.ts AS s")),
        Case("final_measures", match("A B+ C", DIP, "FINAL LAST(B.`close`) AS b, FINAL COUNT(B.`close`) AS n")),
        Case("anchor", match("^A B+ C", DIP, DIP_MEASURES)),
        Case("semicolon", match("A B+ C", DIP, DIP_MEASURES) + ";"),
        Case("one_row", match("A B+ C", DIP, DIP_MEASURES, rows="ONE ROW PER MATCH")),
        Case("outer_where", match("A B+ C", DIP, DIP_MEASURES, where="WHERE a > 10 AND c IS NOT NULL")),
        Case(
            "outer_select", match("A B+ C", DIP, DIP_MEASURES, select="SELECT ticker, a - b AS depth, m.c * 2 AS c2, e")
        ),
        Case("outer_unnamed", match("A B+ C", DIP, DIP_MEASURES, select="SELECT a, a, a - b, c / 2, UPPER(ticker)")),
        Case("inner_filter", match("A B+ C", DIP, DIP_MEASURES, source="(SELECT * FROM ohlc WHERE volume > 5)")),
        Case(
            "inner_average",
            match(
                "A B C",
                "A AS A.`close` < A.ma, B AS B.`close` > B.ma, C AS C.ma > B.ma",
                "A.ts AS s, C.ma AS m",
                source=f"(SELECT ticker, ts, `close`, AVG(`close`) {OVER} AS ma FROM ohlc)",
            ),
        ),
        Case(
            "measure_arithmetic",
            match(
                "A B",
                "B AS B.`close` > A.`close`",
                "A.trades / 4 AS q, A.trades * 3 AS p, A.volume / (B.volume - B.volume) AS z, -A.trades AS neg, A.trades - B.trades AS d, A.`close` / 3 AS t, A.trades / 2.0 AS dec1, A.trades * 1.50 AS dec2, A.trades + 0.25 AS dec3, 7 / 2 AS i, 7.0 / 2 AS dd, 1.5 * 2.25 AS dm, MOD(A.trades, 7) AS md, A.trades % 5 AS pc",
            ),
        ),
        Case(
            "measure_case",
            match(
                "A B",
                "B AS B.`close` > A.`close`",
                "CASE WHEN A.`close` > 10 THEN 'high' WHEN A.`close` > 5 THEN 'mid' ELSE 'low' END AS c1, CASE WHEN B.trades > 20 THEN B.trades ELSE 0 END AS c2, CASE WHEN A.trades > 10 THEN 1.5 END AS c3, CASE A.volume WHEN 1 THEN 'one' ELSE 'many' END AS c4, A.`close` > 10 AS c5, A.trades IS NULL AS c6",
            ),
        ),
        Case(
            "measure_casts",
            match(
                "A B",
                "B AS B.`close` > A.`close`",
                "CAST(A.`close` AS INT) AS i, CAST(A.`close` AS BIGINT) AS b, CAST(A.`close` AS DECIMAL(18, 2)) AS d, CAST(A.trades AS DOUBLE) AS f, CAST(A.trades AS STRING) AS s, CAST(A.`close` / 3 AS DECIMAL(10, 4)) AS d4, CAST(A.`close` > 5 AS STRING) AS t, CAST(A.`close` AS STRING) AS cs, CAST(A.volume * 12345678 AS STRING) AS big",
            ),
        ),
        Case(
            "measure_functions",
            match(
                "A B",
                "B AS B.`close` > A.`close`",
                "ABS(A.`close` - 12) AS a1, SQRT(A.`close`) AS a2, LN(A.`close`) AS a3, EXP(A.`close` / 10) AS a4, POWER(A.`close`, 2) AS a5, FLOOR(A.`close` / 3) AS a6, CEIL(A.`close` / 3) AS a7, ROUND(A.`close` / 3, 2) AS a8, GREATEST(A.`close`, B.`close`, 9) AS a9, LEAST(A.trades, 5) AS a10, COALESCE(A.trades, -1) AS a11, SIGN(A.`close` - 10) AS a12, LOG10(A.`close`) AS a13, ABS(A.trades - 20) AS a14, NULLIF(A.trades, 5) AS a15",
            ),
        ),
        Case(
            "measure_text",
            match(
                "A B",
                "B AS B.`close` > A.`close`",
                "UPPER(A.ticker) AS u, A.ticker || '-' || 'z' AS c, CHAR_LENGTH(A.ticker) AS n, SUBSTRING('abcdef', 2, 3) AS sb, A.ticker LIKE 'X%' AS k, 'it''s' AS q, LOWER('AbC') AS l, CONCAT(A.ticker, 'b') AS cc",
            ),
        ),
        Case(
            "measure_time",
            match(
                "A B",
                "B AS B.`close` > A.`close`",
                "A.ts AS t, A.ts + INTERVAL '5' MINUTE AS t5, B.ts > A.ts + INTERVAL '30' SECOND AS late, HOUR(A.ts) AS h, MINUTE(B.ts) AS mi",
            ),
        ),
        Case(
            "null_logic",
            match(
                "A B+? C",
                "A AS NOT (A.trades > 20), B AS B.trades IN (1, 2, 3, 30) OR B.`close` > 9, C AS C.quote_volume > 50 AND NOT C.trades BETWEEN 5 AND 9",
                ac,
            ),
        ),
        Case(
            "null_logic_is",
            match(
                "A B C",
                "A AS (A.trades > 20) IS NOT TRUE, B AS (B.trades > 10) IS UNKNOWN OR B.volume > 4, C AS (C.trades > 10 AND C.quote_volume > 1) IS NOT FALSE",
                ac,
            ),
        ),
        Case(
            "integer_comparisons",
            match(
                "A B",
                "A AS A.trades / 3 = 4 OR A.trades = 7.0 OR A.trades > 30.5, B AS B.`close` >= 8 AND B.`close` <> 8.5",
                "A.trades AS a, B.`close` AS b",
            ),
        ),
        Case("plain_where", "SELECT * FROM ohlc WHERE `close` > 12"),
        Case(
            "plain_projection",
            "SELECT ticker, ts, (high - low) / `close` AS r, `close` * 2 FROM ohlc WHERE volume > 10 AND trades IS NOT NULL",
        ),
        Case(
            "plain_alias",
            "SELECT o.ticker, o.`close` c FROM ohlc AS o WHERE o.`close` BETWEEN 9 AND 10 OR o.trades IN (1, 2)",
        ),
        Case("plain_null", "SELECT ts, trades + 1 AS t1, quote_volume / volume AS p FROM ohlc WHERE NOT (trades > 5)"),
        Case(
            "plain_crosses",
            "SELECT ts, `close` crosses, high above, low AS below FROM ohlc AS crosses WHERE crosses.`close` > 12",
        ),
        Case("plain_like", "SELECT ts FROM ohlc WHERE ticker LIKE '_' AND ticker NOT LIKE 'Y%' AND volume < 4"),
        Case(
            "plain_time",
            "SELECT ts FROM ohlc WHERE ts >= TIMESTAMP '1970-01-01 00:20:00' AND ts < TIMESTAMP '1970-01-01 00:23:30'",
        ),
        Case(
            "plain_inner",
            "SELECT * FROM (SELECT ticker, ts, high - low AS r FROM ohlc WHERE volume > 3) AS x WHERE r > 3",
        ),
        Case(
            "over_average",
            f"SELECT ts, `close`, ma FROM (SELECT ts, `close`, AVG(`close`) {OVER} AS ma FROM ohlc) WHERE `close` > ma + 1",
        ),
        Case(
            "over_many",
            f"SELECT ts, s, n, mi, ma, ct, st, av FROM (SELECT ts, SUM(volume) {OVER} AS s, COUNT(*) {OVER} AS n, MIN(low) {OVER} AS mi, MAX(high) {OVER} AS ma, COUNT(trades) {OVER} AS ct, SUM(trades) {OVER} AS st, AVG(trades) {OVER} AS av FROM ohlc)",
        ),
        Case(
            "over_two",
            f"SELECT ticker, ts, ma FROM (SELECT ticker, ts, `close`, AVG(`close`) {OVER} AS ma FROM ohlc) WHERE `close` > ma",
            "two",
        ),
        Case("over_stddev", f"SELECT ts, sd FROM (SELECT ts, STDDEV_POP(`close`) {OVER} AS sd FROM ohlc) WHERE sd > 1"),
        Case(
            "lag",
            f"SELECT ts, `close`, p FROM (SELECT ts, `close`, LAG(`close`) {LAG} AS p FROM ohlc) WHERE `close` > p + 1",
        ),
        Case(
            "lag_3",
            f"SELECT ts, `close`, p FROM (SELECT ts, `close`, LAG(`close`, 3) {LAG} AS p FROM ohlc) WHERE `close` > p",
        ),
        Case("lag_all", f"SELECT ts, LAG(trades, 2) {LAG} AS p FROM ohlc"),
        Case(
            "tumble",
            f"SELECT ticker, window_start, window_end, AVG(`close`) AS av, SUM(volume) AS v, COUNT(*) AS n, MIN(low) AS lo, MAX(high) AS hi, COUNT(trades) AS ct, SUM(trades) AS st, AVG(trades) AS at1 FROM {WIN} {KEYS}",
        ),
        Case(
            "tumble_having",
            f"SELECT ticker, window_start, MAX(high) - MIN(low) AS r FROM {WIN} {KEYS} HAVING MAX(high) - MIN(low) > 5 AND COUNT(*) >= 5",
        ),
        Case(
            "tumble_gaps",
            f"SELECT ticker, window_start, window_end, COUNT(*) AS n, SUM(volume) AS v FROM {WIN} {KEYS}",
            "gaps",
        ),
        Case(
            "tumble_two",
            f"SELECT ticker, window_start, SUM(volume) AS v FROM {WIN} {KEYS} HAVING SUM(volume) > 60",
            "two",
        ),
        Case("tumble_late", f"SELECT ticker, window_start, SUM(volume) AS v, COUNT(*) AS n FROM {WIN} {KEYS}", "late"),
        Case(
            "tumble_stddev",
            f"SELECT window_start, STDDEV_POP(`close`) AS sd, VAR_POP(`close`) AS vp, STDDEV_SAMP(`close`) AS ss FROM {WIN} {KEYS}",
        ),
        Case(
            "tumble_first_last",
            f"SELECT window_start, FIRST_VALUE(`open`) AS o, LAST_VALUE(`close`) AS c FROM {WIN} {KEYS}",
        ),
        Case("tumble_where", f"SELECT window_end, COUNT(*) AS n FROM {WIN} WHERE `close` > 8 {KEYS}"),
        Case(
            "tumble_outer",
            f"SELECT * FROM (SELECT ticker, window_start, AVG(`close`) AS av FROM {WIN} {KEYS}) WHERE av > 9",
        ),
        Case(
            "hop",
            f"SELECT window_start, window_end, SUM(volume) AS v, COUNT(*) AS n FROM TABLE(HOP(TABLE ohlc, DESCRIPTOR(ts), INTERVAL '2' MINUTES, INTERVAL '6' MINUTES)) {KEYS}",
        ),
        Case(
            "hop_gaps",
            f"SELECT window_start, window_end, SUM(volume) AS v FROM TABLE(HOP(TABLE ohlc, DESCRIPTOR(ts), INTERVAL '2' MINUTES, INTERVAL '6' MINUTES)) {KEYS}",
            "gaps",
        ),
        Case(
            "cumulate",
            f"SELECT window_start, window_end, SUM(volume) AS v, MAX(high) AS h FROM TABLE(CUMULATE(TABLE ohlc, DESCRIPTOR(ts), INTERVAL '2' MINUTES, INTERVAL '10' MINUTES)) {KEYS}",
        ),
        Case(
            "cumulate_gaps",
            f"SELECT window_start, window_end, SUM(volume) AS v FROM TABLE(CUMULATE(TABLE ohlc, DESCRIPTOR(ts), INTERVAL '2' MINUTES, INTERVAL '10' MINUTES)) {KEYS}",
            "gaps",
        ),
    ]


def refused() -> list[Case]:
    """Return queries that Flink should refuse, or fail on while they run."""
    abc, measures = "A B C", "A.ts AS s"
    define = "B AS B.`close` > A.`close`"
    plain = {
        "alternation": match("A (B | C)", define, measures),
        "alternation_plain": match("A | B", define, measures),
        "group": match("(A B)+ C", define, measures),
        "permute": match("PERMUTE(A, B)", define, measures),
        "exclusion": match("A {- B -} C", define, measures),
        "reluctant_optional": match("A B?? C", define, measures),
        "greedy_last": match("A B+", define, measures),
        "greedy_last_star": match("A B*", define, measures),
        "greedy_last_range": match("A B{1,3}", define, measures),
        "greedy_last_open": match("A B{2,}", define, measures),
        "empty_pattern": match("A*? B?", define, measures),
        "empty_star": match("A*?", "A AS A.`close` > 1", measures),
        "repeated": match("A B A", define, measures),
        "optional_after_greedy": match("A+ B? C", define, measures),
        "star_after_greedy": match("A+ B* C", define, measures),
        "star_reluctant_after_greedy": match("A+ B*? C", define, measures),
        "from_none": match("A{,3} B", define, measures),
        "zero_times": match("A{0} B", define, measures),
        "zero_to_zero": match("A{0,0} B", define, measures),
        "backward_range": match("A{3,2} B", define, measures),
        "all_rows": match(abc, define, measures, rows="ALL ROWS PER MATCH"),
        "prev": match(abc, "B AS B.`close` > PREV(B.`close`)", measures),
        "next": match(abc, "B AS B.`close` > NEXT(B.`close`)", measures),
        "classifier": match(abc, define, "CLASSIFIER() AS c"),
        "match_number": match(abc, define, "MATCH_NUMBER() AS c"),
        "running": match(abc, define, "RUNNING LAST(A.ts) AS s"),
        "distinct": match(abc, define, "COUNT(DISTINCT A.`close`) AS s"),
        "two_variables": match(abc, define, "SUM(A.`close` + B.`close`) AS s"),
        "subset": match("A B", "B AS B.`close` > 1", "S.ts AS s").replace("DEFINE", "SUBSET S = (A, B) DEFINE"),
        "order_down": match(abc, define, measures, order="ORDER BY ts DESC"),
        "order_other": match(abc, define, measures, order="ORDER BY `close`"),
        "order_none": match(abc, define, measures, order=""),
        "no_define": match(abc, "", measures),
        "no_measures": match(abc, define, ""),
        "unknown_column": match(abc, "B AS B.price > 1", measures),
        "wrong_case": match(abc, "B AS B.CLOSE_ > 1", measures).replace("CLOSE_", "`CLOSE`"),
        "wrong_case_variable": match(abc, "b AS b.`close` > 1", "a.ts AS s"),
        "number_as_condition": match(abc, "B AS B.`close` + 1", measures),
        "text_as_condition": match(abc, "B AS 'yes'", measures),
        "within_month": match(abc, define, measures, within="WITHIN INTERVAL '1' MONTH"),
        "within_digits": match(abc, define, measures, within="WITHIN INTERVAL '100' SECOND"),
        "skip_unknown": match(abc, define, measures, skip="TO LAST Z"),
        "reserved_alias": match(abc, define, "A.ts AS none"),
        "reserved_prev": match(abc, define, "A.ts AS prev"),
        "reserved_close": match(abc, "B AS B.close > 1", measures),
        "partition_expression": match(abc, define, measures, partition="PARTITION BY UPPER(ticker)"),
        "aggregate_of_aggregate": match(abc, define, "SUM(SUM(A.`close`)) AS s"),
        "defined_twice": match(abc, "B AS B.`close` > 1, B AS B.`close` > 2", measures),
        "measure_twice": match(abc, define, "A.ts AS s, B.ts AS s"),
        "compare_text_number": match(abc, "B AS B.ticker > B.`close`", measures),
        "last_of_two": match(abc, define, "LAST(A.`close` + B.`close`, 1) AS s"),
        "negative_offset": match(abc, define, "LAST(A.`close`, -1) AS s"),
        "offset_column": match(abc, define, "LAST(A.`close`, A.trades) AS s"),
        "unknown_function": match(abc, "B AS FOO(B.`close`) > 1", measures),
        "subquery_in_define": match(abc, "B AS B.`close` > (SELECT MAX(`close`) FROM ohlc)", measures),
        "unknown_table": "SELECT * FROM nothing WHERE a > 1",
        "unknown_plain_column": "SELECT * FROM ohlc WHERE price > 1",
        "aggregate_in_where": "SELECT * FROM ohlc WHERE AVG(`close`) > 1",
        "over_in_where": f"SELECT * FROM ohlc WHERE `close` > AVG(`close`) {OVER}",
        "two_statements": "SELECT * FROM ohlc; SELECT * FROM ohlc",
        "double_quotes": 'SELECT "close" FROM ohlc',
        "having_without_group": "SELECT `close` FROM ohlc HAVING `close` > 1",
        "not_grouped": f"SELECT `close` FROM {WIN} {KEYS}",
        "hop_multiple": f"SELECT window_start, COUNT(*) AS n FROM TABLE(HOP(TABLE ohlc, DESCRIPTOR(ts), INTERVAL '4' MINUTES, INTERVAL '6' MINUTES)) {KEYS}",
        "skip_to_empty": match("A B? C", HIGH, measures, skip="TO LAST B"),
        "skip_to_first_row": match("A B C", define, measures, skip="TO FIRST A"),
        "condition_alone": "`close` > 12",
        "crosses": "SELECT * FROM ohlc WHERE `close` CROSSES ABOVE 12",
        "crosses_in_define": match(abc, "B AS B.`close` CROSSES BELOW 5", measures),
        "named_value": "SELECT * FROM ohlc WHERE `close` > :level",
        "named_value_of_lag": f"SELECT ts, LAG(`close`, :n) {LAG} AS p FROM ohlc",
        "division_by_zero": match("A B", "B AS 10 / (B.trades - B.trades) > 1", measures),
    }
    return [Case(f"refused_{name}", sql) for name, sql in plain.items()]


def all_cases() -> list[Case]:
    """Return every case."""
    return [*accepted(), *refused()]


def as_json(rows: Rows) -> dict[str, Any]:
    """Return rows as they are in ``recorded.json``."""
    return {"delay_ms": rows.delay_ms, "rows": [list(row) for row in rows.rows]}
