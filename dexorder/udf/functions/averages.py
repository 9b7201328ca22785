"""Moving average, EMA and MACD of a field. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from dexorder.udf.function import Function, option
from dexorder.udf.functions.rolling import ExponentialMean, Mean, at_least, number
from dexorder_udf.points import Point


class MovingAverage(Function[Mean]):
    """Mean of the last ``size`` values of each group, starting with value number ``size``."""

    field = option(str, "close", help="field to average")
    size = option(int, 20, help="number of values")
    output = option(str, "mean", help="name of the resulting field")

    def check(self) -> None:
        at_least(1, size=self.size)

    def new_state(self) -> Mean:
        return Mean()

    def point(self, point: Point, state: Mean) -> Point | None:
        mean = state.add(number(point, self.field), self.size)
        return None if mean is None else point.with_fields({self.output: mean})


class Ema(Function[ExponentialMean]):
    """Exponential moving average of each group, starting with the mean of the first ``size`` values."""

    field = option(str, "close", help="field to average")
    size = option(int, 20, help="number of values; the newest one weighs 2 / (size + 1)")
    output = option(str, "ema", help="name of the resulting field")

    def check(self) -> None:
        at_least(2, size=self.size)

    def new_state(self) -> ExponentialMean:
        return ExponentialMean()

    def point(self, point: Point, state: ExponentialMean) -> Point | None:
        ema = state.add(number(point, self.field), self.size)
        return None if ema is None else point.with_fields({self.output: ema})


@dataclass
class MacdState:
    """The three averages of a group, and how many values it has had."""

    count: int = 0
    fast: ExponentialMean = field(default_factory=ExponentialMean)
    slow: ExponentialMean = field(default_factory=ExponentialMean)
    signal: ExponentialMean = field(default_factory=ExponentialMean)


class Macd(Function[MacdState]):
    """MACD, its signal and histogram of each group, starting with value number ``slow`` + ``signal`` - 1."""

    outputs: ClassVar[Mapping[str, type]] = dict.fromkeys(("macd", "signal", "histogram"), float)

    field = option(str, "close", help="field to average")
    fast = option(int, 12, help="size of the fast EMA")
    slow = option(int, 26, help="size of the slow EMA")
    signal = option(int, 9, help="size of the EMA of the MACD")

    def check(self) -> None:
        at_least(2, fast=self.fast)
        at_least(self.fast + 1, slow=self.slow)
        at_least(1, signal=self.signal)

    def new_state(self) -> MacdState:
        return MacdState()

    def point(self, point: Point, state: MacdState) -> Point | None:
        value = number(point, self.field)
        state.count += 1
        slow = state.slow.add(value, self.slow)
        # Both start at the same value, as in TA-Lib, so the fast one leaves out the first ones.
        fast = state.fast.add(value, self.fast) if state.count > self.slow - self.fast else None
        if slow is None or fast is None:
            return None
        macd = fast - slow
        signal = state.signal.add(macd, self.signal)
        if signal is None:
            return None
        return point.with_fields({"macd": macd, "signal": signal, "histogram": macd - signal})
