"""Realtime: memory with many markets.

    .venv/bin/python -m bench.realtime [memory] [--markets 600] [--minutes 30]

Prints Markdown. Without a name all parts are measured.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from bench.parts import realtime_memory
from dexorder.testing import report

PARTS = ("memory",)


def main() -> int:
    """Measure the parts that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--markets", type=int, default=600)
    parser.add_argument("--minutes", type=int, default=30)
    options = parser.parse_args()
    print(report.heading("Realtime"), flush=True)
    for part in options.parts or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            if part == "memory":
                print(realtime_memory.run(Path(folder), markets=options.markets, minutes=options.minutes), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
