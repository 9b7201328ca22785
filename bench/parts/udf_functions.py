"""UDFs that `bench.udf` measures: ``udf_functions.py NAME [--socket PATH | --grpc ADDRESS]``."""

from __future__ import annotations

import sys

from dexorder.udf import Batch, Edge, Function, Point, serve
from dexorder.udf.functions import FUNCTIONS


class Mirror(Function[None]):
    def point(self, point: Point, state: None) -> Point:
        return point


class BatchMirror(Function[None]):
    wants = Edge.BATCH
    provides = Edge.BATCH

    def batch(self, batch: Batch, state: None) -> Batch:
        return batch


if __name__ == "__main__":
    serve({**FUNCTIONS, "mirror": Mirror, "batch_mirror": BatchMirror}[sys.argv.pop(1)])
