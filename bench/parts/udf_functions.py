"""UDFs that `bench.udf` measures: ``udf_functions.py NAME [--socket PATH | --grpc ADDRESS]``."""

from __future__ import annotations

import sys

from dexorder.udf import SAME, Batch, Edge, Function, Point, serve
from dexorder.udf.function import Output
from dexorder.udf.functions import FUNCTIONS


class Mirror(Function[None]):
    def point(self, point: Point, state: None) -> Point:
        return point


class Same(Function[None]):
    def point(self, point: Point, state: None) -> Output:
        return SAME


class BatchMirror(Function[None]):
    wants = Edge.BATCH
    provides = Edge.BATCH

    def batch(self, batch: Batch, state: None) -> Batch:
        return batch


if __name__ == "__main__":
    serve({**FUNCTIONS, "mirror": Mirror, "same": Same, "batch_mirror": BatchMirror}[sys.argv.pop(1)])
