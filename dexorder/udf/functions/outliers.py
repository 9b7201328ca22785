"""Values that are far from the others, by their distance from the mean in standard deviations. Pure."""

from __future__ import annotations

import math

from dexorder.udf.function import Function, option
from dexorder.udf.functions.oscillators import Window
from dexorder.udf.functions.rolling import at_least, mean_and_deviation, number
from dexorder_udf.points import Batch, Point
from dexorder_udf.session import Edge


class Outliers(Function[Window]):
    """Points of a stream whose value is far from the ``size`` values before it in its group, with the z-score."""

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
        return _if_far(point, value, mean, deviation, self.scale)


class BatchOutliers(Function[None]):
    """Points of a batch whose value is far from the batch's mean, with the z-score; a batch for each batch."""

    wants = Edge.BATCH
    provides = Edge.BATCH
    field = option(str, "close", help="field to look at")
    scale = option(float, 3.0, help="least distance in population standard deviations")

    def check(self) -> None:
        _above_0(self.scale)

    def batch(self, batch: Batch, state: None) -> Batch:
        values = [number(each, self.field) for each in batch.points]
        far: list[Point] = []
        if values:
            mean, deviation = mean_and_deviation(values)
            for point, value in zip(batch.points, values, strict=True):
                if found := _if_far(point, value, mean, deviation, self.scale):
                    far.append(found)
        return Batch(far, batch.name, batch.tags, batch.tmax_ns, batch.by_name)


def _if_far(point: Point, value: float, mean: float, deviation: float, scale: float) -> Point | None:
    distance = value - mean
    # Among equal values, any other one is infinitely far.
    score = distance / deviation if deviation else math.copysign(math.inf, distance) if distance else 0.0
    return point.with_fields({**point.fields, "zscore": score}) if abs(score) > scale else None


def _above_0(scale: float) -> None:
    if not scale > 0:
        raise ValueError(f'option "scale": {scale} is not above 0')
