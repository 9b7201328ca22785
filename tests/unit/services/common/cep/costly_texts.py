"""Random texts of triggers that are accepted, or nearly so, and cost as much as their author can make them cost."""

from __future__ import annotations

from random import Random
from typing import TypeVar

T = TypeVar("T")
_KEYS = "(PARTITION BY ticker ORDER BY ts{})"
_WINDOWS = (
    "TUMBLE(TABLE ticks, DESCRIPTOR(ts), INTERVAL '1' SECOND)",
    "HOP(TABLE ticks, DESCRIPTOR(ts), INTERVAL '1' SECOND, INTERVAL '1' MINUTE)",
    "HOP(TABLE ticks, DESCRIPTOR(ts), INTERVAL '1' SECOND, INTERVAL '20' MINUTE)",
    "CUMULATE(TABLE ticks, DESCRIPTOR(ts), INTERVAL '1' SECOND, INTERVAL '5' MINUTE)",
)


class CostlyTexts:
    """Texts over trades. One seed always gives the same."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def trigger(self) -> tuple[str, dict[str, str]]:
        """Return a text and the trigger's parameters."""
        kind = self._one(self._filter, self._columns, self._pattern, self._over, self._window, self._nested)
        sql = kind()
        return sql, {} if "MATCH_RECOGNIZE" in sql else {"fire": "level"}

    def _filter(self) -> str:
        return f"SELECT ticker FROM ticks WHERE {self._condition()}"

    def _columns(self) -> str:
        numbers = ", ".join(f"{self._number()} AS n{n}" for n in range(self._one(1, 3, 15, 60)))
        return f"SELECT {numbers}, {self._text()} AS t FROM ticks"

    def _pattern(self) -> str:
        names = "ABCDE"[: self._one(2, 3, 5)]
        loops = [name + self._one("*?", "+?", "{1,50}", "{2,200}?", "+") for name in names[:-1]]
        define = ", ".join(f"{name} AS {self._define(name, names)}" for name in names)
        measures = ", ".join(f"{self._aggregate(self._one(*names))} AS m{n}" for n in range(self._one(1, 5, 30)))
        skip = self._one("", " AFTER MATCH SKIP TO NEXT ROW")
        within = self._one("", " WITHIN INTERVAL '10' SECOND", " WITHIN INTERVAL '1' HOUR")
        return (
            f"SELECT * FROM ticks MATCH_RECOGNIZE (PARTITION BY ticker ORDER BY ts MEASURES {measures}{skip} "
            f"PATTERN ({' '.join(loops)} {names[-1]}){within} DEFINE {define})"
        )

    def _define(self, name: str, names: str) -> str:
        return self._one(
            f"{name}.price > 0",
            f"{self._aggregate(name)} > 0",
            f"{name}.price > PREV({name}.price, {self._one(1, 50, 900)})",
            f"{name}.price >= LAST({self._one(*names)}.price)",
            f"{name}.price > 1000",
            "TRUE",
        )

    def _over(self) -> str:
        over = _KEYS.format(f" ROWS {self._one(10, 99, 400, 900)} PRECEDING")
        columns = ", ".join(f"{self._aggregate()} OVER {over} AS s{n}" for n in range(self._one(1, 3, 5)))
        return f"SELECT {columns} FROM ticks"

    def _window(self) -> str:
        columns = ", ".join(f"{self._aggregate()} AS s{n}" for n in range(self._one(1, 4, 12)))
        window = self._one(*_WINDOWS)
        return f"SELECT window_end, {columns} FROM TABLE({window}) GROUP BY ticker, window_start, window_end"

    def _nested(self) -> str:
        before = f"LAG({self._text()}, {self._one(1, 100, 900)}) OVER {_KEYS.format('')}"
        where = self._one("a = 'b'", "b > 1", "a LIKE '%x%'")
        return f"SELECT a FROM (SELECT ts, ticker, {before} AS a, {self._number()} AS b FROM ticks) WHERE {where}"

    def _aggregate(self, variable: str = "") -> str:
        column = f"{variable}." * bool(variable) + self._one("price", "amount") + self._one("", " + 1")
        return f"{self._one('SUM', 'AVG', 'MAX', 'MIN', 'COUNT')}({column})"

    def _condition(self, depth: int = 0) -> str:
        kind = self._one(*range(6)) if depth <= 3 else 0
        if kind == 1:
            return f"{self._text()} LIKE '%{'a' * self._one(1, 60, 900)}{self._one('b', '%b', '_%a%b')}'"
        if kind == 2:
            parts = [self._condition(depth + 2) for _ in range(self._one(2, 6, 20))]
            return f"({self._one(' OR ', ' AND ').join(parts)})"
        if kind == 3:
            return f"NOT ({self._condition(depth + 1)})"
        if kind == 4:
            return f"{self._text()} IN ('x', 'y', '{'z' * 99}')"
        if kind == 5:
            return f"{self._number(depth + 1)} BETWEEN 0 AND {self._one(1, 100_000)}"
        return f"{self._number(depth + 1)} {self._one('>', '<', '<>')} {self._number(depth + 1)}"

    def _number(self, depth: int = 0) -> str:
        kind = self._one(*range(8)) if depth <= 3 else 0
        if kind == 1:
            parts = [self._number(depth + 2) for _ in range(self._one(2, 5, 30))]
            return f"({self._one(' + ', ' * ', ' - ').join(parts)})"
        if kind == 2:
            return f"CHAR_LENGTH({self._text()})"
        if kind == 3:
            return f"POWER({self._number(depth + 1)}, {self._one(2, 0.5, 300)})"
        if kind == 4:
            return f"ABS({self._number(depth + 1)})"
        if kind == 5:
            values = self._number(depth + 1), self._number(depth + 1)
            return f"CASE WHEN {self._condition(depth + 1)} THEN {values[0]} ELSE {values[1]} END"
        if kind == 6:
            return f"ROUND({self._number(depth + 1)}, 2)"
        if kind == 7:
            return f"COALESCE({self._number(depth + 1)}, 0)"
        return self._one("price", "amount", "1.5", "7")

    def _text(self, depth: int = 0) -> str:
        column = self._one("trade_id", "side", "ticker")
        kind = self._one(*range(5)) if depth < 3 else 0
        if kind == 1:
            return f"CONCAT({', '.join([column] * self._one(2, 5, 20, 99))})"
        if kind == 2:
            return f"UPPER({self._text(depth + 1)})"
        if kind == 3:
            return f"CONCAT({self._text(depth + 1)}, {self._text(depth + 1)})"
        if kind == 4:
            return f"SUBSTRING({self._text(depth + 1)}, {self._one(1, 3)}, {self._one(2, 500)})"
        return column

    def _one(self, *values: T) -> T:
        return self._random.choice(values)
