"""SDK for user-defined functions: write a class, run it under dexorder or under Kapacitor.

    from dexorder.udf import Function, Point, option, serve

    class Spread(Function[None]):
        field = option(str, "close", help="Field to compare with the open")

        def point(self, point: Point, state: None) -> Point:
            return point.with_fields({"spread": point.fields[self.field] - point.fields["open"]})

    if __name__ == "__main__":
        serve(Spread)

See docs/udf.md.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NoReturn

from dexorder.udf.function import SAME, Duration, Function, option
from dexorder_udf.points import Batch, Point
from dexorder_udf.session import Edge

if TYPE_CHECKING:
    from dexorder.udf.run import run_function

__all__ = [
    "SAME",
    "Batch",
    "Duration",
    "Edge",
    "Function",
    "Point",
    "option",
    "run_function",
    "serve",
]


def __getattr__(name: str) -> Any:
    if name != "run_function":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dexorder.udf.run import run_function  # a function that a host starts does without it

    return run_function


def serve(function: type[Function[Any]]) -> NoReturn:
    """Serve a function as the program's arguments say: ``--stdio``, ``--socket PATH`` or ``--grpc ADDRESS``."""
    from dexorder.udf.servers import serve_grpc, serve_socket, serve_stdio

    match sys.argv[1:]:
        case [] | ["--stdio"]:
            sys.exit(serve_stdio(function))
        case ["--socket", path]:
            serve_socket(function, path)
        case ["--grpc", address]:
            serve_grpc(function, address)
        case other:
            sys.exit(f"unknown arguments {other}; use --stdio, --socket PATH or --grpc HOST:PORT")
    sys.exit(0)
