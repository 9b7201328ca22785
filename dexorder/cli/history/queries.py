"""Commands that print the relay's knowledge: ``requests``, ``coverage``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

import typer

import dexorder
from dexorder.cli.terminal import output
from dexorder.cli.terminal.options import Json, Limit, Relay, choices, example
from dexorder.cli.terminal.progress import phase
from dexorder.cli.terminal.unknown import refuse_unknown
from dexorder.client.inputs import covered_dataset, read_part
from dexorder_common.model.coverage import Coverage, CoverageKind, CoveragePage, CoverageRange
from dexorder_common.model.history import RequestRecord, RequestState
from dexorder_common.model.periods import PERIODS, total_periods
from dexorder_common.model.proof import describe_evidence
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import iso

_MAX_MISSING_LINES = 20
_KINDS = {
    CoverageKind.ROWS: "rows",
    CoverageKind.EMPTY: "verified empty",
    CoverageKind.PROVISIONAL: "provisionally empty",
    CoverageKind.PROVISIONAL_ROWS: "provisional rows",
    CoverageKind.MISSING: "not covered",
}

app = typer.Typer(rich_markup_mode=None)


@app.command("list", epilog=example("dexorder requests list --state RUNNING -n 50"))
def list_requests(
    client_id: Annotated[str, typer.Option(help="Only requests of this client")] = "",
    state: Annotated[
        str,
        typer.Option(
            help="Only requests in this state: QUEUED, RUNNING or FINISHED",
            autocompletion=choices("QUEUED", "RUNNING", "FINISHED"),
        ),
    ] = "",
    limit: Limit = 20,
    as_json: Json = False,
    relay: Relay = None,
) -> None:
    """List the newest requests."""
    try:
        wanted = RequestState(state.upper()) if state else None
    except ValueError:
        raise typer.BadParameter(f"--state: {state!r} is not a state; use QUEUED, RUNNING or FINISHED") from None
    with dexorder.Client(relay) as client:
        found = client.requests.list(client_id, state=wanted, limit=limit)
    if as_json:
        output.print_json([record.as_json() for record in found])
        return
    columns = ("request", "client", "ticker", "period", "since", "until", "state", "rows")
    output.stdout().print(output.plain_table(columns, map(_request_cells, found)))


@app.command("show", epilog=example("dexorder requests show 5f2c1e --json"))
def show_request(request_id: str, as_json: Json = False, relay: Relay = None) -> None:
    """Show the record of a request."""
    with dexorder.Client(relay) as client:
        _print_record(client.requests.get(request_id), as_json)


@app.command("cancel", epilog=example("dexorder requests cancel 5f2c1e"))
def cancel_request(request_id: str, as_json: Json = False, relay: Relay = None) -> None:
    """Cancel a request. A request that has ended keeps its status."""
    with dexorder.Client(relay) as client:
        _print_record(client.requests.cancel(request_id), as_json)


def _print_record(record: RequestRecord, as_json: bool) -> None:
    if as_json:
        output.print_json(record.as_json())
        return
    output.stdout().print(output.fields_table(_record_lines(record)))


def _record_lines(record: RequestRecord) -> list[tuple[str, str]]:
    now, missing = record.progress, record.missing
    limit = "" if record.limit is None else f", the first {record.limit:,}"
    lines = [
        ("request", record.request_id),
        ("client", record.client_id or "-"),
        ("requested", f"{record.ticker} {_period(record)} {record.span}{limit}"),
        ("state", str(record.status or record.state)),
        ("error", record.error_message or "-"),
        ("progress", f"{now.settled_periods:,} of {now.expected_periods:,} candles settled, {phase(now)}"),
        ("rows", f"{record.row_count:,}, {record.empty_periods:,} periods verified empty"),
        ("snapshot", str(record.snapshot_id or "-")),
        ("answered until", iso(record.answered_end_ns) if record.answered_end_ns else "-"),
        ("submitted", iso(record.submitted_ns)),
        ("completed", iso(record.completed_ns) if record.completed_ns else "-"),
        ("announced on", record.topic),
        ("fetched again", "yes, although covered" if record.request.again else "-"),
        ("provisional", provisional_text(record) or "-"),
        ("candles that turned up", _where(record.revised) or "-"),
        ("missing", f"{len(missing):,} ranges" if missing else "-"),
    ]
    lines += [("", str(span)) for span in missing[:_MAX_MISSING_LINES]]
    if len(missing) > _MAX_MISSING_LINES:
        lines.append(("", f"{len(missing) - _MAX_MISSING_LINES:,} more; --json prints them"))
    return lines


def provisional_text(record: RequestRecord) -> str:
    """Return how much of the answer is provisionally empty, and where; else an empty text."""
    ranges = record.provisional
    if not ranges:
        return ""
    # where there are many, they are joined, with rows between them
    periods = min(total_periods(ranges, record.period_seconds), record.empty_periods)
    return (
        f"{periods:,} of the empty periods are provisional, {_where(ranges)}: candles may still turn up; they are "
        f"queried again for a day, and announced on REVISED:{record.ticker}"
    )


def _where(ranges: Sequence[TimeRange]) -> str:
    if len(ranges) < 2:
        return "".join(map(str, ranges))
    return f"{len(ranges):,} ranges from {ranges[0]} on"


def _request_cells(record: RequestRecord) -> tuple[str, ...]:
    now = record.progress
    waiting = ", waiting" if now.waiting else ""
    state = str(record.status or f"{record.state} {now.settled_periods:,}/{now.expected_periods:,}{waiting}")
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


def coverage(
    ticker: str, period: str, since: str | None, until: str | None, detail: bool, as_json: bool, relay: str | None
) -> None:
    """Print the covered ranges of a series and the holes between them; with ``detail`` also the pages behind them."""
    _, since_ns, until_ns = read_part(period, since, until, dataset=covered_dataset(period))
    found = asyncio.run(find_coverage(ticker, period, since_ns, until_ns, detail=detail, relay=relay))
    whole = found.whole(since_ns, until_ns)
    if as_json:
        for value in (*(each.as_json(found.period_seconds) for each in whole), *(p.as_json() for p in found.pages)):
            output.print_json_line(value)
        return
    out, name = output.stdout(), f"{found.ticker} {found.dataset.period_name(found.period_seconds)}"
    if not whole:
        out.print(f"{name}: nothing is covered")
        return
    if not found.dataset.has_periods:
        complete = {CoverageKind.ROWS: "complete", CoverageKind.PROVISIONAL_ROWS: "provisional"}
        rows = ((iso(e.span.start_ns), iso(e.span.end_ns), complete.get(e.kind, _KINDS[e.kind])) for e in whole)
        out.print(output.plain_table(("since", "until", found.dataset.name), rows))
        return
    cells = ((*output.range_cells(each.span, found.period_seconds), _KINDS[each.kind]) for each in whole)
    out.print(output.plain_table(("since", "until", "periods", "kind"), cells))
    if found.pages:
        columns = ("since", "until", "rows", "empty ranges", "evidence", "fetched", "committed", "retracted")
        out.print(output.plain_table(columns, map(_page_cells, found.pages)))
    out.print(f"{name}: {shares(found, whole)}")


async def find_coverage(
    ticker: str, period: str | int, since_ns: int | None, until_ns: int | None, *, detail: bool, relay: str | None
) -> Coverage:
    """Return the coverage of a part of a series; RequestRefused for an unknown ticker."""
    async with dexorder.AsyncClient(relay) as client:
        found = await client.series.coverage(ticker, period, since_ns, until_ns, detail=detail)
        if not found.known:
            await refuse_unknown(client, ticker, period)
    return found


def shares(found: Coverage, whole: list[CoverageRange]) -> str:
    """Return the number of periods of each kind, as text."""
    counts = found.periods(whole)
    total = sum(counts.values())
    rare = (CoverageKind.PROVISIONAL, CoverageKind.PROVISIONAL_ROWS)
    shown = (kind for kind in CoverageKind if counts[kind] or kind not in rare)
    parts = (f"{counts[kind]:,} {_KINDS[kind]} ({counts[kind] / total:.1%})" for kind in shown)
    return f"{total:,} periods: {', '.join(parts)}"


def _page_cells(page: CoveragePage) -> tuple[str, ...]:
    return (
        iso(page.span.start_ns),
        iso(page.span.end_ns),
        f"{page.rows:,}",
        f"{len(page.empty):,}",
        describe_evidence(page.evidence, page.empty),
        iso(page.fetched_ns),
        iso(page.committed_ns),
        ", ".join(map(str, page.retracted)) or "-",
    )
