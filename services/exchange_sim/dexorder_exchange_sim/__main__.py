"""``python -m dexorder_exchange_sim``: start the simulated exchange."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from pydantic import ValidationError

from dexorder_exchange_sim.config import SimSettings
from dexorder_exchange_sim.server import run


def main(argv: list[str] | None = None) -> None:
    """Read the environment and the command line (which wins) and serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m dexorder_exchange_sim", description=__doc__)
    parser.add_argument("--listen", metavar="HOST:PORT", help="default 127.0.0.1:9000; port 0 takes a free one")
    parser.add_argument("--seed", type=int, help="seed of the synthetic market")
    parser.add_argument("--now-ns", type=int, help="start the clock at this time, nanoseconds since the epoch")
    parser.add_argument("--speed", type=float, help="speed of the clock; default 0 with --now-ns, else 1")
    parser.add_argument(
        "--recorded",
        action="append",
        metavar="FILE=SYMBOL[@PERIOD|@trades]",
        help="serve a symbol from a parquet or CSV file; may be repeated",
    )
    given: dict[str, Any] = {name: value for name, value in vars(parser.parse_args(argv)).items() if value is not None}
    try:
        asyncio.run(run(SimSettings(**given)))
    except (ValidationError, ValueError, OSError) as error:
        parser.exit(2, f"exchange_sim: {error}\n")


if __name__ == "__main__":
    main()
