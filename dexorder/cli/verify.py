"""``dexorder verify``: compares the table with its coverage and repairs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console

from dexorder.aio import AsyncClient, without_repeats
from dexorder.cli import output, progress
from services.common.model.coverage import VerificationProgress, VerificationResult
from services.common.model.history import RequestRecord
from services.common.model.periods import PERIODS
from services.common.model.times import iso

_MAX_RANGES = 20


def run(
    ticker: str,
    period: str,
    since: str | None,
    until: str | None,
    *,
    repair: bool,
    as_json: bool,
    quiet: bool,
    relay: str | None,
) -> int:
    """Verify, repair and print. Return 0 if table and coverage agree in the end, 130 after Ctrl-C, else 1."""
    err = output.stderr()
    on_note = progress.ignore if quiet else without_repeats(err.print)
    repairs: list[str] = []
    ended: list[RequestRecord] = []

    async def verify() -> VerificationResult:
        async with AsyncClient(relay, on_note=on_note) as client:
            with _show_progress(f"{ticker} {period}", err, quiet=quiet) as on_progress:
                found = await client.verify(ticker, period, since, until, repair=repair, on_progress=on_progress)
            repairs.extend(found.repairs)
            if found.removed_rows:
                on_note(f"{found.removed_rows:,} rows removed that the table must not have")
            if repairs:
                on_note(f"{found.lost_periods:,} rows are lost; {len(repairs):,} requests fetch ranges again")
            for request_id in repairs:
                ended.append((await client.wait(request_id)).record)
                on_note(f"[{len(ended)}/{len(repairs)}] {request_id} {ended[-1].status} {ended[-1].span}")
        return found

    try:
        found = asyncio.run(verify())
    except KeyboardInterrupt:
        continues = f"the repair continues: {', '.join(repairs)}" if repairs else "verify again to see what was changed"
        err.print(f"\nstopped; {continues if repair else 'nothing was changed'}")
        return 130
    well = found.well(ended)
    if as_json:
        requests = [each.as_json() for each in ended]
        output.print_json({**found.as_json(), "repairs": requests, "well": well})
    else:
        _print(found, ended, well, repair=repair)
    return 0 if well else 1


@contextmanager
def _show_progress(name: str, err: Console, *, quiet: bool) -> Iterator[Callable[[VerificationProgress], None]]:
    if quiet or not err.is_terminal:
        yield progress.ignore
        return
    with progress.bars_on(err) as bars:
        task = bars.add_task(name, total=0, unit="windows", note="")

        def update(now: VerificationProgress) -> None:
            lost = f", {now.lost_periods:,} seem lost" if now.lost_periods else ""
            bars.update(task, total=now.windows, completed=now.checked_windows, note=f"{now.rows:,} rows{lost}")

        yield update


def _print(found: VerificationResult, ended: Sequence[RequestRecord], well: bool, *, repair: bool) -> None:
    out, name = output.stdout(), f"{found.ticker} {PERIODS[found.period_seconds]}"
    if found.checked is None:
        out.print(f"{name}: neither the table nor its coverage has any rows", markup=False)
        return
    fetching = f", {found.repaired_periods:,} being fetched again" if found.repairs else ""
    lines = [
        ("range", f"{iso(found.checked.start_ns)} to {iso(found.checked.end_ns)}"),
        ("rows in the table", f"{found.rows:,}"),
        ("covered", f"{found.row_periods:,} periods with a row, {found.empty_periods:,} verified empty"),
        ("lost", f"{found.lost_periods:,} rows{fetching}"),
        ("unexpected", f"{found.unexpected_periods:,} rows in ranges covered as empty"),
        ("duplicates", f"{found.surplus_rows:,} surplus rows"),
        ("off the grid", f"{found.off_grid_rows:,} rows"),
        ("removed", f"{found.removed_rows:,} of {found.wrong_rows:,} unexpected, surplus and off-grid rows"),
        ("unclaimed", f"{found.unclaimed_periods:,} rows outside of the coverage"),
    ]
    out.print(output.plain_table(("check", name), lines))
    kinds = {
        "lost": found.lost,
        "unexpected": found.unexpected,
        "duplicate": found.duplicates,
        "off the grid": found.off_grid,
    }
    ranges = [
        (kind, *output.range_cells(span, found.period_seconds))
        for kind, spans in kinds.items()
        for span in spans[:_MAX_RANGES]
    ]
    if ranges:
        out.print(output.plain_table(("kind", "since", "until", "periods"), ranges))
        if max(map(len, kinds.values())) > _MAX_RANGES:
            out.print("not all ranges are shown; --json prints them")
    for record in ended:
        reason = "" if found.well(ended) else f": {record.reason()}" if record.reason() else ""
        out.print(f"{record.request_id} {record.status} {record.span}{reason}", markup=False)
    out.print(f"{name}: {'table and coverage agree' if well else _advice(found, repair=repair)}", markup=False)


def _advice(found: VerificationResult, *, repair: bool) -> str:
    if not repair:
        kinds = ((found.lost_periods, "rows are lost"), (found.wrong_rows, "rows must not be there"))
        faults = " and ".join(f"{count:,} {text}" for count, text in kinds if count)
        return f"{faults}; repair the table with --repair"
    if found.lost_periods != found.repaired_periods or found.wrong_rows != found.removed_rows:
        return "the repair is not complete; repair again"
    return "the repair did not fetch all rows; see the requests above, and verify again"
