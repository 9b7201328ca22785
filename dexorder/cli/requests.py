"""``dexorder requests``: list, show, cancel."""

from __future__ import annotations

from rich.table import Table

from dexorder.cli import output
from dexorder.cli.progress import note
from dexorder.client import Client
from services.common.model.history import RequestRecord, RequestState
from services.common.model.periods import PERIODS
from services.common.model.times import iso

_MISSING_SHOWN = 20


def list_requests(client_id: str, state: RequestState | None, most: int, as_json: bool, relay: str | None) -> None:
    """Print the newest requests, newest first."""
    with Client(relay) as client:
        found = client.list_requests(client_id, state=state, most=most)
    if as_json:
        output.print_json([record.as_json() for record in found])
        return
    columns = ("request", "client", "ticker", "period", "since", "until", "state", "rows")
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
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _lines(record):
        table.add_row(name, value)
    output.stdout().print(table)


def _lines(record: RequestRecord) -> list[tuple[str, str]]:
    now, missing = record.progress, record.missing
    lines = [
        ("request", record.request_id),
        ("client", record.client_id or "-"),
        ("asked for", f"{record.ticker} {_period(record)} {record.span}" + _limit(record)),
        ("state", str(record.status or record.state)),
        ("error", record.error_message or "-"),
        ("progress", f"{now.settled_periods:,} of {now.expected_periods:,} candles settled, {note(now)}"),
        ("rows", f"{record.row_count:,}, {record.empty_periods:,} periods verified empty"),
        ("snapshot", str(record.snapshot_id or "-")),
        ("answered until", iso(record.answered_end_ns) if record.answered_end_ns else "-"),
        ("submitted", iso(record.submitted_ns)),
        ("completed", iso(record.completed_ns) if record.completed_ns else "-"),
        ("announced on", record.topic),
        ("missing", f"{len(missing):,} ranges" if missing else "-"),
    ]
    lines += [("", str(span)) for span in missing[:_MISSING_SHOWN]]
    if len(missing) > _MISSING_SHOWN:
        lines.append(("", f"{len(missing) - _MISSING_SHOWN:,} more; --json has all"))
    return lines


def _cells(record: RequestRecord) -> tuple[str, ...]:
    done = record.progress
    state = str(record.status or f"{record.state} {done.settled_periods:,}/{done.expected_periods:,}")
    return (
        record.request_id,
        record.client_id,
        record.ticker,
        _period(record),
        iso(record.span.start_ns),
        iso(record.span.end_ns),
        state,
        f"{record.row_count:,}",
    )


def _period(record: RequestRecord) -> str:
    return PERIODS.get(record.period_seconds, str(record.period_seconds))


def _limit(record: RequestRecord) -> str:
    return "" if record.limit is None else f", the first {record.limit:,}"
