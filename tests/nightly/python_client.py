"""The Python client as the programs in docs/clients are: ``ADDRESS history TICKER PERIOD_SECONDS START END``,
``ADDRESS follow TOPIC``, and ``ADDRESS states``, which reads ids of requests.
"""

from __future__ import annotations

import sys

from dexorder import Client
from dexorder.errors import DexorderError

PATIENCE_S = 300.0
"""Longer than a suite needs to start."""


def history(client: Client, ticker: str, period_seconds: str, start: str, end: str) -> None:
    """Request a history, and print its number of rows."""
    rows = client.history([ticker], int(period_seconds), start, end)
    print(f"OK: {rows.num_rows} rows in trading.ohlc")


def follow(client: Client, topic: str) -> None:
    """Print the notifications of a topic."""
    for each in client.notifications(topic):
        print(each.request.request_id, each.status.name, flush=True)


def states(client: Client) -> None:
    """Print the state of each request whose id is a line of stdin."""
    for line in sys.stdin:
        record = client.get_request(line.strip())
        print(record.request.request_id, f"REQUEST_STATE_{record.state.name}", flush=True)


def main(address: str, command: str, *words: str) -> None:
    """Run one command."""
    with Client(address, patience_seconds=PATIENCE_S, on_note=lambda text: print(text, file=sys.stderr)) as client:
        {"history": history, "follow": follow, "states": states}[command](client, *words)  # type: ignore[operator]


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except DexorderError as error:
        sys.exit(str(error))
