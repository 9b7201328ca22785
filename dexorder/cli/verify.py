"""``dexorder verify``: the table checked against coverage, and what is lost fetched again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console

from dexorder.aio import AsyncClient
from dexorder.cli import output, progress
from services.common.model.coverage import VerificationProgress, VerificationResult
from services.common.model.history import RequestRecord
from services.common.model.periods import PERIODS, count_periods
from services.common.model.time_range import TimeRange
from services.common.model.times import iso

_SHOWN = 20


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
    """Check, repair and print; 0 only if all is well in the end, 130 after Ctrl-C."""
    err = output.stderr()
    repairs: list[str] = []
    try:
        found, ended = asyncio.run(_all(ticker, period, since, until, repair, quiet, relay, err, repairs))
    except KeyboardInterrupt:
        err.print("\nstopped; " + (f"the repair goes on: {', '.join(repairs)}" if repairs else "nothing was changed"))
        return 130
    well = found.well(ended)
    if as_json:
        requests = [each.as_json() for each in ended]
        output.print_json({**found.as_json(), "repairs": requests, "well": well})
    else:
        _show(found, ended, well)
    return 0 if well else 1


async def _all(
    ticker: str,
    period: str,
    since: str | None,
    until: str | None,
    repair: bool,
    quiet: bool,
    relay: str | None,
    err: Console,
    repairs: list[str],
) -> tuple[VerificationResult, list[RequestRecord]]:
    say = progress.nothing if quiet else progress.once(err.print)
    async with AsyncClient(relay, on_note=say) as client:
        with _shown(f"{ticker} {period}", err, quiet=quiet) as on_progress:
            found = await client.verify(ticker, period, since, until, repair=repair, on_progress=on_progress)
        repairs += found.repairs
        if repairs:
            say(f"{found.lost_periods:,} rows are lost and fetched again by {len(repairs):,} requests")
        ended = []
        for request_id in repairs:
            ended.append((await client.wait(request_id)).record)
            say(f"[{len(ended)}/{len(repairs)}] {request_id} {ended[-1].status} {ended[-1].span}")
    return found, ended


@contextmanager
def _shown(what: str, err: Console, *, quiet: bool) -> Iterator[Callable[[VerificationProgress], None]]:
    if quiet or not err.is_terminal:
        yield progress.nothing
        return
    with progress.bars_on(err) as bars:
        task = bars.add_task(what, total=0, unit="windows", note="")

        def move(now: VerificationProgress) -> None:
            lost = f", {now.lost_periods:,} seem lost" if now.lost_periods else ""
            bars.update(task, total=now.windows, completed=now.checked_windows, note=f"{now.rows:,} rows{lost}")

        yield move


def _show(found: VerificationResult, ended: Sequence[RequestRecord], well: bool) -> None:
    out, name = output.stdout(), f"{found.ticker} {PERIODS[found.period_seconds]}"
    if found.checked is None:
        out.print(f"{name}: neither coverage nor the table has anything", markup=False)
        return
    lines = [
        ("checked", f"{iso(found.checked.start_ns)} to {iso(found.checked.end_ns)}"),
        ("rows in the table", f"{found.rows:,}"),
        ("covered", f"{found.row_periods:,} periods with a row, {found.empty_periods:,} verified empty"),
        (
            "lost",
            f"{found.lost_periods:,} rows" + (f", {found.repaired_periods:,} taken back" if found.repairs else ""),
        ),
        ("unexpected", f"{found.unexpected_periods:,} rows where coverage says there is no candle"),
        ("duplicates", f"{found.surplus_rows:,} rows too many"),
        ("off the grid", f"{found.off_grid_rows:,} rows"),
        ("unclaimed", f"{found.unclaimed_periods:,} rows that coverage does not claim"),
    ]
    out.print(output.plain_table(("what", name), lines))
    ranges = [
        (what, *_cells(span, found))
        for what, spans in (("lost", found.lost), ("unexpected", found.unexpected), ("duplicate", found.duplicates))
        for span in spans[:_SHOWN]
    ]
    if ranges:
        out.print(output.plain_table(("what", "since", "until", "periods"), ranges))
        if max(map(len, (found.lost, found.unexpected, found.duplicates))) > _SHOWN:
            out.print("more ranges are there; --json has them")
    for record in ended:
        reason = "" if found.well(ended) else f": {record.reason()}" if record.reason() else ""
        out.print(f"{record.request_id} {record.status} {record.span}{reason}", markup=False)
    out.print(f"{name}: {'all is well' if well else _advice(found)}", markup=False)


def _cells(span: TimeRange, found: VerificationResult) -> tuple[str, str, str]:
    return iso(span.start_ns), iso(span.end_ns), f"{count_periods(span, found.period_seconds):,}"


def _advice(found: VerificationResult) -> str:
    if found.lost_periods and not found.repairs:
        return "rows are lost; --repair fetches them again"
    if found.lost_periods != found.repaired_periods:
        return "rows are still lost; verify again"
    if found.unexpected_periods:
        return (
            "coverage denies rows that are there; `dexorder history --refresh` of these ranges asks the exchange again"
        )
    if found.surplus_rows or found.off_grid_rows:
        return "the table holds rows that it must not hold"
    return "the repair did not bring all"
