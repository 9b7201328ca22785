"""Functions on the SDK for tests: ``udf_functions.py NAME [--socket PATH | --grpc ADDRESS]``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from dexorder.udf import Batch, Edge, Function, Point, option, serve


class Chatty(Function[list[int]]):
    """Numbers the points of a group, prints, and sends the counts at the end."""

    fail_at = option(int, -1)

    def new_state(self) -> list[int]:
        return [0]

    def point(self, point: Point, state: list[int]) -> Point:
        print("point", point.time_ns)
        if point.time_ns == self.fail_at:
            raise RuntimeError(f"cannot handle {point.time_ns}")
        state[0] += 1
        return point.with_fields({"number": state[0]})

    def finish(self, groups: Mapping[str, list[int]]) -> Iterator[Point]:
        return (Point(0, {"group": group}, {"total": state[0]}) for group, state in groups.items())


class Mirror(Function[None]):
    def point(self, point: Point, state: None) -> Point:
        return point


class BatchMirror(Function[None]):
    wants = Edge.BATCH
    provides = Edge.BATCH

    def batch(self, batch: Batch, state: None) -> Batch:
        return batch


class Slow(Function[None]):
    """Takes its time for each point, and says nothing."""

    ms = option(int, 10)

    def point(self, point: Point, state: None) -> None:
        time.sleep(self.ms / 1_000)


FUNCTIONS: dict[str, type[Function[Any]]] = {
    "chatty": Chatty,
    "mirror": Mirror,
    "batch_mirror": BatchMirror,
    "slow": Slow,
}

if __name__ == "__main__":
    serve(FUNCTIONS[sys.argv.pop(1)])
