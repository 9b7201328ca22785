"""Means that are updated value by value, with TA-Lib's definitions, and the values that they take from points. Pure.

TA-Lib computes whole arrays, and the values of EMA, RSI and ATR depend on all earlier input, so it can't continue from
a state; these can, and their state is a few numbers. Tests compare them with TA-Lib (docs/decisions/0045).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import cast

from dexorder_udf.points import Batch, Point


@dataclass
class Mean:
    """Mean of the last ``size`` values."""

    values: list[float] = field(default_factory=list)
    total: float = 0.0

    def add(self, value: float, size: int) -> float | None:
        """Take a value; return the mean once there are ``size`` of them."""
        self.values.append(value)
        self.total += value
        if len(self.values) < size:
            return None
        mean = self.total / size
        self.total -= self.values.pop(0)
        return mean


@dataclass
class ExponentialMean:
    """EMA whose first value is the mean of the first ``size`` values."""

    count: int = 0
    value: float = 0.0

    def add(self, value: float, size: int) -> float | None:
        """Take a value; return the EMA once there are ``size`` values."""
        self.count += 1
        if self.count <= size:
            self.value += value
            if self.count < size:
                return None
            self.value /= size
        else:
            self.value = self.following(value, size)
        return self.value

    def following(self, value: float, size: int) -> float:
        """Return the mean after a value, once there were ``size`` values."""
        return self.value + (value - self.value) * (2.0 / (size + 1))


@dataclass
class WilderMean(ExponentialMean):
    """Wilder's smoothing, whose first value is the mean of the first ``size`` values."""

    def following(self, value: float, size: int) -> float:
        return (self.value * (size - 1) + value) / size


def mean_and_deviation(values: list[float]) -> tuple[float, float]:
    """Return mean and population standard deviation, by exact sums."""
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((each - mean) ** 2 for each in values) / len(values))


def number(point: Point, field: str) -> float:
    """Return a field as a number.

    Raises:
        ValueError: The point does not have it, or it is not a number.
    """
    value = point.fields.get(field)
    if isinstance(value, float):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if value is None:
        raise ValueError(f'the point has no field "{field}"; its fields: {", ".join(sorted(point.fields)) or "none"}')
    raise ValueError(f'field "{field}": {value!r} is not a number')


def at_least(least: int, **options: int) -> None:
    """Check whole numbers given by the name of their option.

    Raises:
        ValueError: One is smaller than ``least``.
    """
    for name, value in options.items():
        if value < least:
            raise ValueError(f'option "{name}": {value} is not at least {least}')


def numbers(batch: Batch, field: str) -> list[float]:
    """Return a field of all points of a batch as numbers; see `number` for the error."""
    values = batch.column(field)
    if set(map(type, values)) <= {float}:
        return cast("list[float]", values)
    return [number(each, field) for each in batch.points]
