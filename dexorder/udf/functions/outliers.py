"""Values that are far from the others, by their distance from the mean in standard deviations. Pure."""

from __future__ import annotations

import math

from dexorder.udf.function import Function, option
from dexorder.udf.functions.oscillators import Window
from dexorder.udf.functions.rolling import at_least, mean_and_deviation, number, numbers
from dexorder_udf.points import Batch, Point
from dexorder_udf.session import Edge


class Outliers(Function[Window]):
    """Points of a stream with a value far from the ``size`` values before it in its group, with the z-score."""

    field = option(str, "close", help="field to look at")
    size = option(int, 100, help="number of values before a point")
    scale = option(float, 3.0, help="least distance in population standard deviations")

    def check(self) -> None:
        at_least(2, size=self.size)
        _above_0(self.scale)

    def new_state(self) -> Window:
        return Window()

    def point(self, point: Point, state: Window) -> Point | None:
        value, values = number(point, self.field), state.values
        values.append(value)
        if len(values) <= self.size:
            return None
        mean, deviation = mean_and_deviation(values[:-1])
        values.pop(0)
        score = _score(value - mean, deviation)
        return _scored(point, score) if abs(score) > self.scale else None


class BatchOutliers(Function[None]):
    """Points of a batch with a value far from the batch's mean, with the z-score; one output batch for each batch."""

    wants = Edge.BATCH
    provides = Edge.BATCH
    field = option(str, "close", help="field to look at")
    scale = option(float, 3.0, help="least distance in population standard deviations")

    def check(self) -> None:
        _above_0(self.scale)

    def batch(self, batch: Batch, state: None) -> Batch:
        values = numbers(batch, self.field)
        far: list[Point] = []
        if values:
            mean, deviation = mean_and_deviation(values)
            scores = [_score(value - mean, deviation) for value in values]
            far = [_scored(batch.points[n], score) for n, score in enumerate(scores) if abs(score) > self.scale]
        return Batch(far, batch.name, batch.tags, batch.tmax_ns, batch.by_name)


def _score(distance: float, deviation: float) -> float:
    # Among equal values, any other one is infinitely far.
    return distance / deviation if deviation else math.copysign(math.inf, distance) if distance else 0.0


def _scored(point: Point, score: float) -> Point:
    return point.with_fields({**point.fields, "zscore": score})


def _above_0(scale: float) -> None:
    if not scale > 0:
        raise ValueError(f'option "scale": {scale} is not above 0')
