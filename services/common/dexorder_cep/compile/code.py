"""Generated predicates: typed tree to a Python function. Pure.

The source of a function is written from the typed tree alone: columns and positions are whole numbers, every literal
of the user's text is the default of a parameter with a name of ours. Before it is compiled, the source is checked once
more: it may have only the nodes of ``_ALLOWED`` and only names that this module has put there, and no attribute.

Names in generated code: ``r`` is the current row, ``q`` the row of an aggregate, ``R`` the rows of the ticker and ``o``
the sequence number of the first of them, ``n`` the sequence number of the current row, ``b`` the first sequence number
of each variable so far (``dexorder_cep.run.matcher``), ``T`` the ticker, ``w`` the time of the match.
"""

from __future__ import annotations

import ast
import datetime
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import lru_cache, reduce
from inspect import getmembers, isfunction
from operator import add
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from dexorder_cep.compile import arithmetic, texts
from dexorder_cep.compile.typed import (
    TICKER_SLOT,
    Apply,
    ColumnValue,
    Constant,
    MatchRowtime,
    PatternAggregate,
    PatternValue,
    Typed,
)
from dexorder_cep.compile.types import BOOLEAN, SqlType
from dexorder_cep.language.refusals import TextPosition, refuse

Function = Callable[..., Any]
ROW = ("r", "T")
"""Parameters of a function of one row."""
PATTERN = ("R", "o", "n", "r", "b", "T", "w")
"""Parameters of a function of a partial match."""


class Spans(NamedTuple):
    """Places of the rows of each variable, for the code of one state.

    Attributes:
        current: Variable of the newest row of the partial match; -1 without a row.
        candidate: Variable for which the current row is examined; None in measures, where ``n`` is after the last row.
        least: Fewest rows of each variable.
    """

    current: int
    candidate: int | None
    least: tuple[int, ...]

    def of(self, variable: int | None) -> tuple[str, str, int]:
        """Return first and last sequence number plus one of a variable's rows, as code, and the fewest rows."""
        after = "n" if self.candidate is None else "(n+1)"
        if variable is None:
            return ("n" if self.current < 0 else "b[0]"), after, 1
        if variable == self.candidate:
            return (f"b[{variable}]" if variable == self.current else "n"), after, 2 if variable == self.current else 1
        if variable < self.current:
            return f"b[{variable}]", f"b[{variable + 1}]", self.least[variable]
        if variable == self.current:
            return f"b[{variable}]", "n", 1
        return "n", "n", 0


class Emitter:
    """Writer of the source of one function; its constants are in ``names``, and ``spans`` says where rows are."""

    def __init__(self, spans: Spans | None = None) -> None:
        self.names: dict[str, Any] = {}
        self.spans = spans
        self._row = "r"
        self._temporaries = 0

    def value(self, tree: Typed) -> str:
        """Return code for a value, None for NULL."""
        match tree:
            case Constant():
                return self._constant(tree.value)
            case ColumnValue():
                return self._column(self._row, tree.slot)
            case PatternValue():
                return self._pattern_value(tree)
            case PatternAggregate():
                return self._aggregate(tree)
            case MatchRowtime():
                return "w"
            case Apply():
                return self._apply(tree)

    def truth(self, tree: Typed) -> str:
        """Return code that is true exactly if the condition is TRUE, not FALSE or NULL."""
        return self._test(tree, wanted=True)

    def _test(self, tree: Typed, *, wanted: bool) -> str:
        """Return code that is true exactly if the condition is TRUE (``wanted``) or FALSE."""
        if isinstance(tree, Apply):
            operator, operands = tree.operator, tree.operands
            if operator == "NOT":
                return self._test(operands[0], wanted=not wanted)
            if operator in ("AND", "OR"):
                word = " and " if (operator == "AND") == wanted else " or "
                return "(" + word.join(self._test(each, wanted=wanted) for each in operands) + ")"
            if operator in _COMPARE:
                return self._strict(operands, _COMPARE[operator] if wanted else f"not {_COMPARE[operator]}", test=True)
        if tree.type.nullable:
            return f"({self.value(tree)} is {self._constant(wanted)})"
        return self.value(tree) if wanted else f"(not {self.value(tree)})"

    def _constant(self, value: object) -> str:
        if value is None:
            return "None"
        for name, known in self.names.items():
            if type(known) is type(value) and known == value and repr(known) == repr(value):
                return name
        name = f"k{len(self.names)}"
        self.names[name] = value
        return name

    def temporary(self) -> str:
        """Return a new name for a value that is used again."""
        self._temporaries += 1
        return f"t{self._temporaries}"

    def _column(self, row: str, slot: int) -> str:
        return "T" if slot == TICKER_SLOT else f"{row}[{int(slot)}]"

    def _strict(self, operands: tuple[Typed, ...], template: str, *, test: bool = False) -> str:
        """Fill a template with operands; NULL (or, in a test, false) if one of them is NULL."""
        codes, conditions = [], []
        for each in operands:
            code = self.value(each)
            if each.type.nullable:
                name = self.temporary()
                conditions.append(f"({name} := {code}) is {'not ' if test else ''}None")
                code = name
            codes.append(code)
        filled = template.format(*codes)
        if not conditions:
            return f"({filled})"
        if test:
            return f"({' and '.join(conditions)} and {filled})"
        return f"(None if {' or '.join(conditions)} else {filled})"

    def _apply(self, tree: Apply) -> str:
        operator, operands = tree.operator, tree.operands
        if operator in ("AND", "OR"):
            if not tree.type.nullable:
                return self.truth(tree)
            return f"{'and3' if operator == 'AND' else 'or3'}({', '.join(self.value(each) for each in operands)})"
        if operator == "NOT":
            return self._strict(operands, "not {0}")
        if operator in _COMPARE:
            return self._strict(operands, _COMPARE[operator])
        if operator == "IS NULL" or operator == "IS NOT NULL":
            if isinstance(operands[0], Constant):
                return self.value(Constant((operands[0].value is None) is (operator == "IS NULL"), BOOLEAN))
            return f"({self.value(operands[0])} is {'not ' if 'NOT' in operator else ''}None)"
        if operator.startswith("IS"):
            test = self._test(operands[0], wanted=operator.endswith("TRUE"))
            return f"(not {test})" if "NOT" in operator else test
        if operator == "CASE":
            return self._case(operands)
        if operator == "CAST":
            return self._strict(operands, _cast(operands[0].type, tree.type))
        if operator in _ARITHMETIC:
            return self._strict(operands, _arithmetic(operator, tree.type))
        if operator in ("COALESCE", "IFNULL"):
            return self._coalesce(operands)
        if operator == "NULLIF":
            a, b = self.temporary(), self.value(operands[1])
            if (operands[0].type.base, operands[1].type.base) == ("DECIMAL", "DOUBLE"):
                first = self.value(operands[0])
                return f"(None if ({a} := {first}) is None or float({a}) == {b} else {a})"
            return f"(None if ({a} := {self.value(operands[0])}) == {b} else {a})"
        if operator in ("CONCAT", "||"):
            return self._strict(operands, f"join_texts({', '.join(f'{{{n}}}' for n in range(len(operands)))})")
        return self._strict(operands, f"{_FUNCTIONS[operator]}({', '.join(f'{{{n}}}' for n in range(len(operands)))})")

    def _case(self, operands: tuple[Typed, ...]) -> str:
        code = self.value(operands[-1])
        for condition, value in reversed(list(zip(operands[:-1:2], operands[1::2], strict=False))):
            code = f"{self.value(value)} if {self.truth(condition)} else {code}"
        return f"({code})"

    def _coalesce(self, operands: tuple[Typed, ...]) -> str:
        code = self.value(operands[-1])
        for each in reversed(operands[:-1]):
            name = self.temporary()
            code = f"{name} if ({name} := {self.value(each)}) is not None else {code}"
        return f"({code})"

    def _pattern_value(self, tree: PatternValue) -> str:
        assert self.spans is not None
        reference = tree.reference
        low, high, least = self.spans.of(reference.variable)
        offset = int(reference.offset)
        if high == "n" and low == "n":
            return "None"
        if reference.end == "last":
            if offset == 0 and not reference.previous and high == "(n+1)":
                return self._column("r", reference.slot)
            index = f"{high}-{1 + offset}"
            exists = f"{index} >= {low}"
        else:
            index = f"{low}+{offset}" if offset else low
            exists = f"{index} < {high}"
        conditions = [exists] if offset >= least else []
        if reference.previous:
            index = f"{index}-{int(reference.previous)}"
            conditions.append(f"{index} >= o")
        row = f"R[{index}-o]"
        code = self._column(row, reference.slot)
        return f"({code} if {' and '.join(conditions)} else None)" if conditions else code

    def _aggregate(self, tree: PatternAggregate) -> str:
        assert self.spans is not None
        function, variable = tree.function, tree.variable
        low, high, least = self.spans.of(variable)
        if tree.argument is None or (function == "COUNT" and not tree.argument.type.nullable):
            return f"({high}-{low})"
        outer, self._row = self._row, "q"
        code = self.value(tree.argument)
        self._row = outer
        condition = ""
        if tree.argument.type.nullable:
            name = self.temporary()
            code, condition = name, f" if ({name} := {code}) is not None"
        values = f"[{code} for q in R[{low}-o:{high}-o]{condition}]"
        if function == "COUNT":
            return f"len({values})"
        name = self.temporary()
        code = aggregate_code(function, name, tree.type)
        if not condition and least > 0:
            return f"{code.replace(name, f'({name} := {values})', 1)}"
        return f"({code} if ({name} := {values}) else None)"


def aggregate_code(function: str, values: str, kind: SqlType) -> str:
    """Return code for an aggregate over a list of values that is not empty; ``values`` is its name."""
    if function in ("MIN", "MAX"):
        return f"{function.lower()}({values})"
    if kind.base == "DECIMAL":
        name = "sum_decimals" if function == "SUM" else "average_decimals"
        return f"{name}({values}, {kind.precision}, {kind.scale})"
    total = f"reduce(add, {values})"
    if kind.base in ("BIGINT", "INT"):
        wrap = "wrap32" if kind.base == "INT" else "wrap64"
        return f"{wrap}({total})" if function == "SUM" else f"divide_integers({total}, len({values}))"
    return total if function == "SUM" else f"({total} / len({values}))"


_COMPARE = {
    "=": "{0} == {1}",
    "<>": "{0} != {1}",
    "<": "{0} < {1}",
    "<=": "{0} <= {1}",
    ">": "{0} > {1}",
    ">=": "{0} >= {1}",
}
_ARITHMETIC = ("+", "-", "*", "/", "%", "NEGATE")
_DECIMAL = {
    "+": "add_decimals",
    "-": "subtract_decimals",
    "*": "multiply_decimals",
    "/": "divide_decimals",
    "%": "remainder_of_decimals",
}
_FUNCTIONS = {
    "ABS": "abs",
    "SIGN": "sign",
    "FLOOR": "floor",
    "CEIL": "ceiling",
    "CEILING": "ceiling",
    "ROUND": "round_double",
    "SQRT": "root",
    "EXP": "exponential",
    "LN": "logarithm",
    "LOG10": "logarithm_10",
    "POWER": "power",
    "GREATEST": "max",
    "LEAST": "min",
    "UPPER": "upper",
    "LOWER": "lower",
    "TRIM": "trim",
    "CHAR_LENGTH": "len",
    "CHARACTER_LENGTH": "len",
    "SUBSTRING": "substring",
    "LIKE": "like",
    "YEAR": "year",
    "MONTH": "month",
    "DAYOFMONTH": "day",
    "DAYOFWEEK": "day_of_week",
    "HOUR": "hour",
    "MINUTE": "minute",
    "SECOND": "second",
}


def _arithmetic(operator: str, kind: SqlType) -> str:
    if kind.base == "DECIMAL":
        if operator == "NEGATE":
            return "-{0}"
        return f"{_DECIMAL[operator]}({{0}}, {{1}}, {int(kind.precision)}, {int(kind.scale)})"
    if kind.base in ("INT", "BIGINT"):
        wrap = "wrap32" if kind.base == "INT" else "wrap64"
        if operator == "NEGATE":
            return f"{wrap}(-{{0}})"
        if operator in ("/", "%"):
            return f"{wrap}({'divide_integers' if operator == '/' else 'remainder_of_integers'}({{0}}, {{1}}))"
        return f"{wrap}({{0}} {operator} {{1}})"
    if operator == "NEGATE":
        return "-{0}"
    if operator == "/":
        return "divide_doubles({0}, {1})"
    if operator == "%":
        return "remainder_of_doubles({0}, {1})"
    return f"{{0}} {operator} {{1}}"


def _cast(source: SqlType, to: SqlType) -> str:
    if to.base == "DOUBLE":
        return "float({0})"
    if to.base == "BIGINT":
        return "to_bigint({0})"
    if to.base == "INT":
        return "to_int({0})"
    if to.base == "DECIMAL":
        return f"to_decimal({{0}}, {int(to.precision)}, {int(to.scale)})"
    if source.is_text:
        return "{0}"
    if source.base == "DOUBLE":
        return "double_text({0})"
    return "boolean_text({0})" if source.base == "BOOLEAN" else "decimal_text({0})"


def _moment(value: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(value // 1_000_000_000, datetime.UTC)


def _substring(text: str, start: int, length: int | None = None) -> str | None:
    if length is not None and length < 0:
        return None
    first = start - 1 if start > 0 else 0 if start == 0 else len(text) + start
    if first < 0 or first > len(text):
        return ""
    return text[first:] if length is None else text[first : first + length]


def _average_decimals(values: list[Decimal], precision: int, scale: int) -> Decimal | None:
    return arithmetic.divide_decimals(reduce(add, values), Decimal(len(values)), precision, scale)


HELPERS: Mapping[str, Any] = dict(getmembers(arithmetic, isfunction)) | {
    "abs": abs,
    "add": add,
    "average_decimals": _average_decimals,
    "boolean_text": lambda value: "TRUE" if value else "FALSE",
    "day": lambda value: _moment(value).day,
    "day_of_week": lambda value: _moment(value).isoweekday() % 7 + 1,
    "decimal_text": lambda value: format(value, "f") if isinstance(value, Decimal) else str(value),
    "float": float,
    "hour": lambda value: _moment(value).hour,
    "len": len,
    "lower": lambda text: texts.bounded(text.lower()),
    "max": max,
    "min": min,
    "minute": lambda value: _moment(value).minute,
    "month": lambda value: _moment(value).month,
    "reduce": reduce,
    "second": lambda value: _moment(value).second,
    "substring": _substring,
    "sum_decimals": lambda values, precision, scale: arithmetic.fit(reduce(add, values), precision, scale),
    "join_texts": texts.join_texts,
    "like": texts.like,
    "trim": lambda text: text.strip(" "),
    "upper": lambda text: texts.bounded(text.upper()),
    "year": lambda value: _moment(value).year,
}
"""Every function that generated code may call: the public ones of ``arithmetic``, and these."""
_GLOBALS: dict[str, Any] = {"__builtins__": {}, **HELPERS}

_ALLOWED = (
    ast.Expression,
    ast.Lambda,
    ast.arguments,
    ast.arg,
    ast.BoolOp,
    ast.BinOp,
    ast.UnaryOp,
    ast.Compare,
    ast.Call,
    ast.IfExp,
    ast.NamedExpr,
    ast.ListComp,
    ast.comprehension,
    ast.Subscript,
    ast.Slice,
    ast.Tuple,
    ast.Name,
    ast.Constant,
    ast.boolop,
    ast.operator,
    ast.unaryop,
    ast.cmpop,
    ast.expr_context,
)


def generate(code: str, parameters: tuple[str, ...], emitter: Emitter, at: TextPosition) -> Function:
    """Compile an expression that ``emitter`` has written to a function.

    Raises:
        InvalidSql: Python refuses the expression because it is nested too deeply.
        AssertionError: The code has a node or a name that is not allowed; it has not run.
    """
    names = (*parameters, *emitter.names)
    is_short = len(code) <= _CACHED_CHARACTERS
    try:
        if is_short and not emitter.names:
            return _cached_function(code, names)
        shape = (_cached_shape if is_short else _shape)(code, names)
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise refuse(at, "the expression is nested too deeply") from error
    return FunctionType(shape, _GLOBALS, "trigger", (*emitter.names.values(),))


@lru_cache(maxsize=1_024)
def _cached_function(code: str, names: tuple[str, ...]) -> Function:
    """Return a function without constants, which all triggers with its code share."""
    return FunctionType(_cached_shape(code, names), _GLOBALS, "trigger")


def _shape(code: str, names: tuple[str, ...]) -> CodeType:
    """Return the code of a function with these parameters, of which the last ones are constants."""
    tree = ast.parse(f"lambda {', '.join(names)}: {code}", mode="eval")
    _check(tree, {*names, *HELPERS})
    function: FunctionType = eval(compile(tree, "<trigger>", "eval"), _GLOBALS)  # noqa: S307
    return function.__code__


_cached_shape = lru_cache(maxsize=1_024)(_shape)
"""Triggers that differ in their constants share their code."""
_CACHED_CHARACTERS = 2_000
"""Longest code that is kept, so that strangers' texts do not fill the memory."""


def _check(tree: ast.Expression, names: set[str]) -> None:
    for node in ast.walk(tree):
        allowed = isinstance(node, _ALLOWED)
        if isinstance(node, ast.Name):
            allowed = node.id in names or node.id == "q" or (node.id[0] == "t" and node.id[1:].isdigit())
        elif isinstance(node, ast.Constant):
            allowed = node.value is None or type(node.value) is int
        if not allowed:
            raise AssertionError(f"generated code has {ast.dump(node)[:80]}")


def row_predicate(condition: Typed, at: TextPosition) -> Function:
    """Return ``f(r, T)``: whether a row fits a condition."""
    emitter = Emitter()
    return generate(emitter.truth(condition), ROW, emitter, at)


def row_value(value: Typed, at: TextPosition) -> Function:
    """Return ``f(r, T)``: a value of a row."""
    emitter = Emitter()
    return generate(emitter.value(value), ROW, emitter, at)


def row_values(values: list[Typed], at: TextPosition) -> Function:
    """Return ``f(r, T)``: a tuple of values of a row."""
    emitter = Emitter()
    return generate(_tuple(emitter, values), ROW, emitter, at)


def pattern_values(values: list[Typed], spans: Spans, at: TextPosition) -> Function:
    """Return ``f(R, o, n, r, b, T, w)``: a tuple of the measures of a match with the last row ``n - 1``."""
    emitter = Emitter(spans)
    return generate(_tuple(emitter, values), PATTERN, emitter, at)


def _tuple(emitter: Emitter, values: list[Typed]) -> str:
    return "(" + "".join(f"{emitter.value(each)}, " for each in values) + ")"
