"""``dexorder verify``: compares the table with its coverage and the exchange, and repairs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console

from dexorder.cli.terminal import output, progress
from dexorder.cli.terminal.unknown import refuse_unknown
from dexorder.client.async_client import AsyncClient
from dexorder.client.requests import without_repeats
from dexorder_common.model.coverage import VerificationProgress, VerificationResult
from dexorder_common.model.history import Progress, RequestRecord
from dexorder_common.model.periods import PERIODS
from dexorder_common.model.times import iso

_MAX_RANGES = 20


def run(
    ticker: str,
    period: str,
    since: str | None,
    until: str | None,
    *,
    repair: bool,
    values: bool,
    as_json: bool,
    quiet: bool,
    relay: str | None,
) -> int:
    """Verify, repair and print. Return 0 if all agree in the end, 130 after Ctrl-C, else 1."""
    err = output.stderr()
    on_note = progress.ignore if quiet else without_repeats(err.print)
    repairs: list[str] = []
    ended: list[RequestRecord] = []

    async def verify() -> VerificationResult:
        async with AsyncClient(relay, on_note=on_note) as client:
            with _show_progress(f"{ticker} {period}", err, quiet=quiet) as on_progress:
                found = await client.series.verify(
                    ticker, period, since, until, repair=repair, values=values, on_progress=on_progress
                )
            if found.checked is None:
                await refuse_unknown(client, ticker, period)
            repairs.extend(found.repairs)
            if found.removed_rows:
                on_note(f"{found.removed_rows:,} rows removed that the table must not have")
            if repairs:
                on_note(f"{_faults(found)}; {len(repairs):,} requests fetch ranges again")
            for request_id in repairs:
                ended.append((await client.requests.wait(request_id)).record)
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
    if quiet:
        yield progress.ignore
        return
    if not err.is_terminal:
        yield _RequestLines(err)
        return
    with progress.bars_on(err) as bars:
        task = bars.add_task(name, total=0, unit="windows", note="")

        def update(now: VerificationProgress) -> None:
            lost = f", {now.lost_periods:,} seem lost" if now.lost_periods else ""
            waiting = f"; {now.request_id}: {progress.phase(now.request)}" if now.request else ""
            note = f"{now.rows:,} rows{lost}{waiting}"
            bars.update(task, total=now.windows, completed=now.checked_windows, note=note)

        yield update


class _RequestLines:
    """Progress of the requests that the verification waits for: a few lines for each."""

    def __init__(self, err: Console) -> None:
        self._err = err
        self._request_id = ""
        self._lines: Callable[[Progress], None] = progress.ignore

    def __call__(self, now: VerificationProgress) -> None:
        if now.request is None:
            return
        if now.request_id != self._request_id:
            self._request_id = now.request_id
            self._lines = progress.TenPercentLines(self._err.print, now.request_id)
        self._lines(now.request)


def _print(found: VerificationResult, ended: Sequence[RequestRecord], well: bool, *, repair: bool) -> None:
    out, name = output.stdout(), f"{found.ticker} {PERIODS[found.period_seconds]}"
    if found.checked is None:
        out.print(f"{name}: neither the table nor its coverage has any rows")
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
        *_value_lines(found),
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
    _print_differences(found)
    for record in ended:
        reason = "" if found.well(ended) else f": {record.reason()}" if record.reason() else ""
        out.print(f"{record.request_id} {record.status} {record.span}{reason}")
    out.print(f"{name}: {'table and coverage agree' if well else _advice(found, repair=repair)}")
    out.print(f"{name}: {_values_text(found, ended)}")


def _value_lines(found: VerificationResult) -> list[tuple[str, str]]:
    values = found.values
    if values is None or not values.cell_seconds:
        return []
    calls = f"{values.calls:,} calls" if values.calls != 1 else "1 call"
    lines = [
        ("values", f"{values.compared_periods:,} periods compared with the exchange's {values.cells} candles, {calls}"),
        ("differing", f"{_cells(values.differing_cells)} of {values.differing_periods:,} periods"),
        ("not compared", f"{values.uncompared_periods:,} covered periods"),
    ]
    if after := found.values_after_repair:
        lines.append(("still differing", _cells(after.differing_cells)))
    return lines


def _print_differences(found: VerificationResult) -> None:
    out = output.stdout()
    if not (values := found.values):
        return
    after = {each.span for each in found.values_after_repair.differing} if found.values_after_repair else ()
    cells = [
        (iso(each.span.start_ns), iso(each.span.end_ns), str(each), "still" if each.span in after else "")
        for each in values.differing[:_MAX_RANGES]
    ]
    if cells:
        out.print(output.plain_table(("differs since", "until", "in the table", ""), cells))
    parts = [output.range_cells(span, found.period_seconds) for span in values.uncompared[:_MAX_RANGES]]
    if parts:
        out.print(output.plain_table(("not compared since", "until", "periods"), parts))
    if max(values.differing_cells, len(values.uncompared)) > _MAX_RANGES:
        out.print("not all cells and ranges are shown; --json prints them")
    for error in values.errors:
        out.print(f"not compared: {error}")


def _values_text(found: VerificationResult, ended: Sequence[RequestRecord]) -> str:
    """Return how far the values agree with the exchange."""
    values, after = found.values, found.values_after_repair
    if values is None:
        return "values not compared with the exchange"
    if not values.cell_seconds:
        period = PERIODS[found.period_seconds]
        reason = "; ".join(values.errors) or f"the exchange has no coarser candles of {period} that check them"
        return f"values not compared: {reason}"
    if after and after.differing:
        still = f"{_cells(after.differing_cells)} still different after the repair"
        if not found.well(ended):
            return f"{still}, which did not fetch them all again"
        return (
            f"{still}: the rows are what the exchange answers now, but its {PERIODS[found.period_seconds]} and "
            f"{after.cells} candles contradict each other"
        )
    if values.differing_periods > values.repaired_periods:
        return f"values differ from the exchange's {values.cells} candles in {_cells(values.differing_cells)}"
    rest = f", {values.uncompared_periods:,} periods were not compared" if values.uncompared_periods else ""
    if not values.compared_periods:
        return f"values not compared: {values.uncompared_periods:,} periods make up no cell that can be compared"
    return f"{values.compared_periods:,} periods agree with the exchange's {values.cells} candles{rest}"


def _cells(count: int) -> str:
    return f"{count:,} cell{'' if count == 1 else 's'}"


def _faults(found: VerificationResult) -> str:
    differing = found.values.differing_periods if found.values else 0
    kinds = (
        (found.lost_periods, "rows are lost"),
        (found.wrong_rows, "rows must not be there"),
        (differing, "periods differ from the exchange"),
    )
    return " and ".join(f"{count:,} {text}" for count, text in kinds if count)


def _advice(found: VerificationResult, *, repair: bool) -> str:
    if not _faults(found):
        return "the values could not all be compared; verify again, or use --offline"
    if not repair:
        return f"{_faults(found)}; repair the table with --repair"
    values = found.values
    is_fetched = not values or values.differing_periods == values.repaired_periods
    if found.lost_periods != found.repaired_periods or found.wrong_rows != found.removed_rows or not is_fetched:
        return "the repair is not complete; repair again"
    return "the repair did not fetch all rows; see the requests above, and verify again"
