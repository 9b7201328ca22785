"""RSI, ATR and Bollinger bands. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from dexorder.udf.function import Function, option
from dexorder.udf.functions.rolling import WilderMean, at_least, mean_and_deviation, number
from dexorder_udf.points import Point


@dataclass
class RsiState:
    """Means of gains and losses, and the last value."""

    last: float | None = None
    gains: WilderMean = field(default_factory=WilderMean)
    losses: WilderMean = field(default_factory=WilderMean)


class Rsi(Function[RsiState]):
    """Relative strength index of each group by Wilder, 0 to 100, starting with value number ``size`` + 1."""

    field = option(str, "close", help="field whose changes count")
    size = option(int, 14, help="number of changes")
    output = option(str, "rsi", help="name of the resulting field")

    def check(self) -> None:
        at_least(2, size=self.size)

    def new_state(self) -> RsiState:
        return RsiState()

    def point(self, point: Point, state: RsiState) -> Point | None:
        value = number(point, self.field)
        before, state.last = state.last, value
        if before is None:
            return None
        gain = state.gains.add(max(value - before, 0.0), self.size)
        loss = state.losses.add(max(before - value, 0.0), self.size)
        if gain is None or loss is None:
            return None
        return point.with_fields({self.output: 100 * (gain / (gain + loss)) if gain + loss else 0.0})


@dataclass
class AtrState:
    """Mean of true ranges, and the last close."""

    close: float | None = None
    ranges: WilderMean = field(default_factory=WilderMean)


class Atr(Function[AtrState]):
    """Average true range of the candles of each group by Wilder, from candle number ``size`` + 1 on."""

    size = option(int, 14, help="number of candles")
    output = option(str, "atr", help="name of the resulting field")

    def check(self) -> None:
        at_least(1, size=self.size)

    def new_state(self) -> AtrState:
        return AtrState()

    def point(self, point: Point, state: AtrState) -> Point | None:
        high, low = number(point, "high"), number(point, "low")
        before, state.close = state.close, number(point, "close")
        if before is None:
            return None
        atr = state.ranges.add(max(high, before) - min(low, before), self.size)
        return None if atr is None else point.with_fields({self.output: atr})


@dataclass
class Window:
    """The last values."""

    values: list[float] = field(default_factory=list)


class Bollinger(Function[Window]):
    """Bollinger bands of each group: the mean of the last ``size`` values, plus and minus deviations."""

    outputs: ClassVar[Mapping[str, type]] = dict.fromkeys(("upper", "middle", "lower"), float)

    field = option(str, "close", help="field to average")
    size = option(int, 20, help="number of values")
    deviations = option(float, 2.0, help="distance of the bands in population standard deviations")

    def check(self) -> None:
        at_least(2, size=self.size)

    def new_state(self) -> Window:
        return Window()

    def point(self, point: Point, state: Window) -> Point | None:
        state.values.append(number(point, self.field))
        if len(state.values) < self.size:
            return None
        middle, deviation = mean_and_deviation(state.values)
        state.values.pop(0)
        distance = self.deviations * deviation
        return point.with_fields({"upper": middle + distance, "middle": middle, "lower": middle - distance})
