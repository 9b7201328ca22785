"""Random queries for real Flink and for our engine, from a seed: conditions, OVER, windows and patterns."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from cases import Case

SEED, COUNT = 2, 500
_DOUBLES = ("`open`", "high", "low", "`close`", "volume", "quote_volume")
_KEYS = "GROUP BY ticker, window_start, window_end"
_AGGREGATES = ("COUNT", "SUM", "AVG", "MIN", "MAX", "STDDEV_POP", "STDDEV_SAMP", "VAR_POP", "VAR_SAMP")
_IN_PATTERNS = ("COUNT", "SUM", "AVG", "MIN", "MAX")
_SAFE = ("", "", "{2}", "+?", "{1,2}?", "*?")
_QUANTIFIERS = (*_SAFE, "+", "*", "?", "{1,3}", "{2,}")


class Draw:
    """Random parts of queries."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def one(self, *options: str) -> str:
        """Return one of some texts."""
        return self.rng.choice(options)

    def column(self, qualifier: str = "") -> str:
        """Return a column that is a number; every fourth one is the BIGINT."""
        return qualifier + (self.one(*_DOUBLES) if self.rng.random() < 0.75 else "trades")

    def literal(self) -> str:
        """Return a number: INT, DECIMAL or DOUBLE."""
        whole = self.rng.randint(1, 20)
        return self.one(str(whole), str(whole), f"{whole}.{self.rng.randint(0, 99)}", f"{whole}.5e0")

    def number(self, leaf: Callable[[], str], depth: int) -> str:
        """Return an expression that is a number."""
        if depth == 0 or self.rng.random() < 0.3:
            return leaf() if self.rng.random() < 0.75 else self.literal()
        inner = self.number(leaf, depth - 1)
        kind = self.rng.randint(0, 11)
        if kind < 3:
            return f"({inner} {self.one('+', '-', '*')} {self.number(leaf, depth - 1)})"
        if kind == 3:
            return f"({inner} / {self.literal()})"
        if kind == 4:
            return f"{self.one('ABS', 'SIGN', 'FLOOR', 'CEIL')}({inner})"
        if kind == 5:
            return f"{self.one('GREATEST', 'LEAST', 'COALESCE')}({inner}, {self.number(leaf, depth - 1)})"
        if kind == 6:
            test = self.condition(leaf, depth - 1)
            return f"CASE WHEN {test} THEN {inner} ELSE {self.number(leaf, depth - 1)} END"
        if kind == 7:
            return f"CAST({inner} AS {self.one('INT', 'BIGINT', 'DOUBLE', 'DECIMAL(18, 3)')})"
        if kind == 8:
            return f"ROUND(CAST({inner} AS DOUBLE), {self.rng.randint(0, 2)})"
        if kind == 9:
            return f"(- {inner})"
        if kind == 10:
            return f"SQRT(ABS({inner}))"
        return f"NULLIF({inner}, {self.literal()})"

    def condition(self, leaf: Callable[[], str], depth: int) -> str:
        """Return a condition."""
        kind = self.rng.randint(0, 9) if depth > 0 else self.rng.randint(0, 4)
        number = self.number(leaf, max(0, depth - 1))
        if kind < 4:
            other = self.literal() if self.rng.random() < 0.6 else self.number(leaf, max(0, depth - 1))
            return f"{number} {self.one('<', '<=', '>', '>=', '<>', '=')} {other}"
        if kind == 4:
            return f"{number} IS {self.one('NULL', 'NOT NULL')}"
        if kind == 5:
            return f"{number} {self.one('', 'NOT ')}BETWEEN {self.rng.randint(0, 9)} AND {self.rng.randint(9, 20)}"
        if kind == 6:
            return f"{leaf()} IN ({', '.join(str(self.rng.randint(0, 20)) for _ in range(4))})"
        if kind == 7:
            return f"NOT ({self.condition(leaf, depth - 1)})"
        return f"({self.condition(leaf, depth - 1)} {self.one('AND', 'OR')} {self.condition(leaf, depth - 1)})"

    def items(self, leaf: Callable[[], str], count: int) -> str:
        """Return columns of a SELECT list."""
        return ", ".join(f"{self.number(leaf, 2)} AS c{n}" for n in range(count))

    def interval(self, minutes: int) -> str:
        """Return an interval of minutes."""
        return f"INTERVAL '{minutes}' MINUTE"


def plain(draw: Draw) -> str:
    """Return a condition on rows."""
    return f"SELECT ts, {draw.items(draw.column, 2)} FROM ohlc WHERE {draw.condition(draw.column, 2)}"


def over(draw: Draw) -> str:
    """Return a query with OVER, and a condition on it. Flink takes one frame in a SELECT."""
    columns = []
    is_lag = draw.rng.random() < 0.3
    frame = "" if is_lag else f" ROWS BETWEEN {draw.rng.randint(1, 9)} PRECEDING AND CURRENT ROW"
    for n in range(draw.rng.randint(1, 3)):
        value = draw.number(draw.column, 1)
        call = f"LAG({value}, {draw.rng.randint(1, 4)})" if is_lag else f"{draw.one(*_AGGREGATES)}({value})"
        columns.append(f"{call} OVER (PARTITION BY ticker ORDER BY ts{frame}) AS o{n}")
    names = [f"o{n}" for n in range(len(columns))]
    inner = f"SELECT ticker, ts, `close`, {', '.join(columns)} FROM ohlc"
    if draw.rng.random() < 0.3:
        inner += f" WHERE {draw.condition(draw.column, 1)}"
    leaf = lambda: draw.one("`close`", *names)  # noqa: E731
    return f"SELECT ts, {', '.join(names)} FROM ({inner}) WHERE {draw.condition(leaf, 1)}"


def windows(draw: Draw) -> str:
    """Return a query over windows."""
    kind, step, times = draw.one("TUMBLE", "HOP", "CUMULATE"), draw.rng.randint(1, 4), draw.rng.randint(2, 4)
    sizes = draw.interval(step) if kind == "TUMBLE" else f"{draw.interval(step)}, {draw.interval(step * times)}"
    functions = (*_AGGREGATES, "FIRST_VALUE", "LAST_VALUE") if kind == "TUMBLE" else _AGGREGATES

    def call() -> str:
        return f"{draw.one(*functions)}({draw.number(draw.column, 1)})"

    items = ", ".join(f"{call()} AS c{n}" for n in range(draw.rng.randint(1, 3)))
    where = f" WHERE {draw.condition(draw.column, 1)}" if draw.rng.random() < 0.3 else ""
    having = f" HAVING {draw.condition(call, 1)}" if draw.rng.random() < 0.5 else ""
    source = f"TABLE({kind}(TABLE ohlc, DESCRIPTOR(ts), {sizes}))"
    return f"SELECT window_start, window_end, COUNT(*) AS n, {items} FROM {source}{where} {_KEYS}{having}"


def pattern(draw: Draw) -> str:
    """Return a MATCH_RECOGNIZE; Flink refuses some."""
    variables = "ABCD"[: draw.rng.randint(2, 4)]
    quantified = [each + draw.one(*_QUANTIFIERS) for each in variables[:-1]] + [variables[-1] + draw.one(*_SAFE)]

    def value(known: Sequence[str]) -> Callable[[], str]:
        def leaf() -> str:
            name = draw.one(*known)
            kind = draw.rng.randint(0, 5)
            if kind == 0:
                return f"{draw.one('FIRST', 'LAST')}({draw.column(f'{name}.')}, {draw.rng.randint(0, 2)})"
            if kind == 1:
                return f"{draw.one(*_IN_PATTERNS)}({draw.column(f'{name}.')})"
            return draw.column(f"{name}.")

        return leaf

    define = [
        f"{name} AS {draw.condition(value([name, name, *variables[:n]]), 1)}"
        for n, name in enumerate(variables)
        if draw.rng.random() < 0.8 or n == 0
    ]
    measures = f"FIRST({variables[0]}.ts) AS s, COUNT(*) AS n, MATCH_ROWTIME() AS t, {draw.items(value(variables), 2)}"
    skip = draw.one("", "TO NEXT ROW", "PAST LAST ROW", "PAST LAST ROW")
    within = f" WITHIN {draw.interval(draw.rng.randint(3, 9))}" if draw.rng.random() < 0.7 else ""
    after = f" AFTER MATCH SKIP {skip}" if skip else ""
    return (
        f"SELECT * FROM ohlc MATCH_RECOGNIZE (PARTITION BY ticker ORDER BY ts MEASURES {measures} ONE ROW PER MATCH"
        f"{after} PATTERN ({' '.join(quantified)}){within} DEFINE {', '.join(define)}) AS m"
    )


def random_cases() -> list[Case]:
    """Return the queries, always the same ones."""
    draw = Draw(SEED)
    kinds = (plain, over, windows, pattern, pattern)
    readers = ("walk", "dense", "gaps", "late", "two")
    found = []
    for n in range(COUNT):
        kind = kinds[n % len(kinds)]
        rows = draw.one(*readers) if kind is not over else draw.one(*(each for each in readers if each != "late"))
        found.append(Case(f"{kind.__name__}_{n}", kind(draw), rows))
    return found
