"""Aggregates of windows and of OVER: accumulators that are added to, merged and read. Pure.

An accumulator is a list of JSON values (and Decimal), so that it can be part of the engine's state.
"""

from __future__ import annotations

import operator
from decimal import Decimal
from functools import reduce
from typing import Any, NamedTuple

from dexorder_cep.compile.arithmetic import (
    divide_decimals,
    divide_doubles,
    divide_integers,
    fit,
    power,
    to_bigint,
    to_decimal,
    wrap32,
    wrap64,
)
from dexorder_cep.compile.code import Function
from dexorder_cep.compile.types import SqlType

Accumulator = list[Any]
_VARIANCES = {
    "VAR_POP": (False, False),
    "VAR_SAMP": (True, False),
    "VARIANCE": (True, False),
    "STDDEV_POP": (False, True),
    "STDDEV_SAMP": (True, True),
    "STDDEV": (True, True),
}
"""Whether the sample's divisor is used, and whether the root is taken."""


class WindowAggregate(NamedTuple):
    """Aggregate of rows.

    Attributes:
        function: Its name.
        argument: ``f(row, ticker)``; None for COUNT(*).
        type: Type of the result.
    """

    function: str
    argument: Function | None
    type: SqlType


def empty(aggregate: WindowAggregate) -> Accumulator:
    """Return an accumulator without rows: the number of values, and the sums or the value kept."""
    return [0, None, None] if aggregate.function in _VARIANCES else [0, None]


def add(aggregate: WindowAggregate, state: Accumulator, value: Any) -> None:
    """Add a value; NULL is left out."""
    if value is None:
        return
    function = aggregate.function
    state[0] += 1
    known = state[1]
    if function in _VARIANCES:
        state[1] = value if known is None else known + value
        state[2] = value * value if known is None else state[2] + value * value
    elif function != "COUNT" and (known is None or function == "LAST_VALUE"):
        state[1] = value
    elif function in ("SUM", "AVG"):
        state[1] = known + value
    elif (function == "MIN" and value < known) or (function == "MAX" and value > known):
        state[1] = value


def merge(aggregate: WindowAggregate, state: Accumulator, later: Accumulator) -> None:
    """Add the rows of a later accumulator."""
    if not later[0]:
        return
    if not state[0]:
        state[:] = later
        return
    count = state[0] + later[0]
    if aggregate.function in _VARIANCES:
        state[1:] = [state[1] + later[1], state[2] + later[2]]
    elif aggregate.function != "COUNT":
        add(aggregate, state, later[1])
    state[0] = count


def result(aggregate: WindowAggregate, state: Accumulator) -> Any:
    """Return the aggregate of the rows so far; NULL for none, but COUNT is 0."""
    count, value = state[0], state[1]
    function, kind = aggregate.function, aggregate.type
    if function == "COUNT":
        return count
    if not count:
        return None
    if function in _VARIANCES:
        return _variance(count, state[1], state[2], *_VARIANCES[function], kind)
    if kind.base == "DECIMAL" and function in ("SUM", "AVG"):
        return (
            divide_decimals(value, Decimal(count), kind.precision, kind.scale)
            if function == "AVG"
            else fit(value, kind.precision, kind.scale)
        )
    if function == "AVG":
        return divide_integers(value, count) if kind.base in ("INT", "BIGINT") else value / count
    if function == "SUM" and kind.base in ("INT", "BIGINT"):
        return wrap32(value) if kind.base == "INT" else wrap64(value)
    return value


def _variance(count: int, total: Any, squares: Any, sample: bool, root: bool, kind: SqlType) -> Any:
    """Return variance or deviation from sums, by Flink's formula, in the type of the values."""
    divisor = count - 1 if sample else count
    if divisor == 0:
        return None
    if kind.base == "DOUBLE":
        found: Any = divide_doubles(squares - total * total / count, divisor)
        return power(found, 0.5) if root else found
    if kind.base == "DECIMAL":
        scale = kind.scale
        mean = divide_decimals(total * total, Decimal(count), kind.precision, scale)
        found = None if mean is None else divide_decimals(squares - mean, Decimal(divisor), kind.precision, scale)
        return to_decimal(power(float(found), 0.5), kind.precision, scale) if root and found is not None else found
    wrap = wrap32 if kind.base == "INT" else wrap64
    total, squares = wrap(total), wrap(squares)
    found = divide_integers(squares - divide_integers(wrap(total * total), count), divisor)
    return wrap(to_bigint(power(float(found), 0.5)) if root else found)


def of_values(aggregate: WindowAggregate, values: list[Any]) -> Any:
    """Return the aggregate of values in order."""
    present = [value for value in values if value is not None]
    function = aggregate.function
    if function == "COUNT":
        return len(present)
    if not present:
        return None
    if function in ("MIN", "MAX"):
        return min(present) if function == "MIN" else max(present)
    if function in ("SUM", "AVG"):
        return result(aggregate, [len(present), reduce(operator.add, present)])
    state = empty(aggregate)
    for value in present:
        add(aggregate, state, value)
    return result(aggregate, state)
