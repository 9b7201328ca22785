"""``dexorder requests``: list, show, cancel."""

from __future__ import annotations

from rich.table import Table

from dexorder.cli import output
from dexorder.client import Client
from dexorder.records import RequestRecord
from services.common.market import PERIODS, iso


def list_requests(client_id: str, most: int, as_json: bool, relay: str | None) -> None:
    """Print the newest requests, newest first."""
    with Client(relay) as client:
        found = client.list_requests(client_id, most=most)
    if as_json:
        output.print_json([record.as_json() for record in found])
        return
    columns = ("request", "ticker", "period", "since", "until", "state", "rows")
    output.stdout().print(output.plain_table(columns, map(_cells, found)))


def show_request(request_id: str, as_json: bool, relay: str | None) -> None:
    """Print one record."""
    with Client(relay) as client:
        _print(client.get_request(request_id), as_json)


def cancel_request(request_id: str, as_json: bool, relay: str | None) -> None:
    """Cancel and print the record after it."""
    with Client(relay) as client:
        _print(client.cancel(request_id), as_json)


def _print(record: RequestRecord, as_json: bool) -> None:
    if as_json:
        output.print_json(record.as_json())
        return
    table = Table.grid(padding=(0, 2))
    for name, value in record.as_json().items():
        if name == "missing":
            value = record.missing_text() or "nothing"
        table.add_row(name, "-" if value is None else str(value))
    output.stdout().print(table)


def _cells(record: RequestRecord) -> tuple[str, ...]:
    done = record.progress
    state = str(record.status or f"{record.state} {done.settled_periods:,}/{done.expected_periods:,}")
    return (
        record.request_id, record.ticker, PERIODS.get(record.period_seconds, str(record.period_seconds)),
        iso(record.span.start_ns), iso(record.span.end_ns), state, f"{record.row_count:,}",
    )  # fmt: skip
