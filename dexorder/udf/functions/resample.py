"""Candles of a longer period from candles or trades. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from dexorder.udf.function import Duration, Function, option
from dexorder.udf.functions.rolling import number
from dexorder_udf.points import Point, Value

_HOUR_NS = 3600 * 10**9


@dataclass
class CandleInProgress:
    """The candle of a group that is being built; ``count`` 0 means none."""

    start_ns: int = 0
    count: int = 0
    late: int = 0
    open: float = 0.0
    high: float = 0.0
    low: float = 0.0
    close: float = 0.0
    volume: float = 0.0
    name: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    dimensions: list[str] = field(default_factory=list)
    by_name: bool = False


class Resample(Function[CandleInProgress]):
    """Candles of ``every`` from candles (open, high, low, close, volume) or trades (price, amount) of each group.

    A candle is sent when the first point of a later one arrives, or when its time is settled. A point of an earlier
    candle than the current one is left out; the field ``late`` of the next candle counts those.
    """

    outputs: ClassVar[Mapping[str, type]] = {
        **dict.fromkeys(("open", "high", "low", "close", "volume"), float),
        "count": int,
        "late": int,
    }

    every = option(Duration, Duration(_HOUR_NS), help="period; candles begin at its multiples since 1970, UTC")
    price = option(str, "price", help="field of a trade's price; a point with a field `close` is a candle")
    amount = option(str, "amount", help="field of a trade's amount")
    last = option(bool, False, help="also send the last, unfinished candle of each group at the end of the input")

    def check(self) -> None:
        if self.every <= 0:
            raise ValueError(f'option "every": {self.every} ns is not above 0')

    def new_state(self) -> CandleInProgress:
        return CandleInProgress()

    def point(self, point: Point, state: CandleInProgress) -> Point | None:
        start_ns = point.time_ns - point.time_ns % self.every
        if start_ns < state.start_ns and (state.count or state.start_ns):
            state.late += 1
            return None
        finished = _candle_point(state) if state.count and start_ns > state.start_ns else None
        if finished:
            state.count = state.late = 0
        if not state.count:
            self.set_timer(start_ns + self.every)
        self._add(state, point, start_ns)
        return finished

    def timer(self, time_ns: int, state: CandleInProgress) -> Point:
        finished = _candle_point(state)
        state.start_ns, state.count, state.late = time_ns, 0, 0
        return finished

    def finish(self, groups: Mapping[str, CandleInProgress]) -> Iterator[Point]:
        return (_candle_point(each) for each in groups.values() if self.last and each.count)

    def _add(self, state: CandleInProgress, point: Point, start_ns: int) -> None:
        if "close" in point.fields:
            first, high, low, last = (number(point, each) for each in ("open", "high", "low", "close"))
            volume = number(point, "volume") if "volume" in point.fields else 0.0
        else:
            first = high = low = last = number(point, self.price)
            volume = number(point, self.amount)
        if not state.count:
            state.start_ns = start_ns
            state.open, state.high, state.low, state.volume = first, high, low, 0.0
            state.name, state.tags = point.name, point.tags
            state.dimensions, state.by_name = list(point.dimensions), point.by_name
        state.count += 1
        state.high = max(state.high, high)
        state.low = min(state.low, low)
        state.close = last
        state.volume += volume


def _candle_point(candle: CandleInProgress) -> Point:
    fields: dict[str, Value] = {
        "open": candle.open,
        "high": candle.high,
        "low": candle.low,
        "close": candle.close,
        "volume": candle.volume,
        "count": candle.count,
        "late": candle.late,
    }
    return Point(candle.start_ns, candle.tags, fields, candle.name, tuple(candle.dimensions), candle.by_name)
