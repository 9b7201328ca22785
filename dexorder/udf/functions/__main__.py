"""``python -m dexorder.udf.functions NAME [--stdio | --socket PATH | --grpc HOST:PORT]`` serves a shipped function."""

from __future__ import annotations

import sys

from dexorder.udf import serve
from dexorder.udf.functions import FUNCTIONS

if __name__ == "__main__":
    name = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if name not in FUNCTIONS:
        sys.exit(f"{name!r} is not one of the functions {', '.join(FUNCTIONS)}")
    serve(FUNCTIONS[name])
