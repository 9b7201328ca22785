"""Recorded candles of many files and periods through the simulated exchange, ccxt and the ingestor's fetcher."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.parts.completeness.timed_outcome import Table, judge
from bench.parts.completeness.virtual import VirtualWorld, virtual_world
from dexorder_common.model.checksum import aggregate, cell_ladder, tallies
from dexorder_common.model.page import Candle
from dexorder_common.model.periods import (
    PERIOD_SECONDS,
    WEEK_SECONDS,
    ceil_to_grid,
    count_periods,
    floor_to_grid,
    next_open,
)
from dexorder_common.model.proof import ProofKind
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_exchange_sim.candles import Candles
from dexorder_exchange_sim.recorded import read_file
from dexorder_ingestor.exchange.agreement import Agreement
from tests.rig.report import markdown

SYMBOL = "REC/USDT"
TOLERANCE = 1e-12
"""Of Binance's row."""
_HOUR_NS = 3_600 * SECOND_NS
ABOUT = (
    "Each file is a market of the simulated exchange in Binance's dialect, fetched by the ingestor's fetcher with "
    "unmodified ccxt, fresh for each row. Range: the file's rows of the period, cut to whole coarser candles. "
    "*Mismatches*: candles of the file's coarser periods that differ from its own finer ones in any of five values, "
    "of those that finer rows surround; `-` where the file has no coarser period, so that the exchange computes them. "
    "*By checksum / by odds*: periods by their proof. *Odds alone*: the same without coarser candles. ccxt's calls "
    "are those of its tutorial loop.\n"
)


@dataclass
class FileResult:
    """One period of one file."""

    file: str
    period: str
    periods: int
    rows: int
    problems: list[str] = field(default_factory=list)
    compared: int = 0
    mismatches: int = 0
    by_checksum: int = 0
    by_odds: int = 0
    empty: int = 0
    provisional: int = 0
    calls: int = 0
    odds_calls: int = 0
    ccxt_calls: int = 0


def files_of(data: Path) -> list[Path]:
    """Return the files of candles below a folder."""
    return sorted(data.glob("ohlcv/**/*.parquet"))


def measure(file: Path, root: Path) -> Iterator[FileResult]:
    """Yield a result for each period of a file that the ingestor knows."""
    tables = {name: rows for name, rows in read_file(file, None).items() if name in PERIOD_SECONDS}
    for name, rows in sorted(tables.items(), key=lambda item: PERIOD_SECONDS[item[0]]):
        if span := _whole_range(name, rows):
            result = FileResult(str(file.relative_to(root)), name, count_periods(span, PERIOD_SECONDS[name]), 0)
            result.compared, result.mismatches = mismatches(name, tables)
            yield asyncio.run(_fetch(file, span, result))


def _whole_range(name: str, rows: Candles) -> TimeRange | None:
    """Return the range of the rows, cut to whole candles of the period that checks them."""
    seconds = PERIOD_SECONDS[name]
    coarser = (cell_ladder(seconds, list(PERIOD_SECONDS.values()), 1_000) or [seconds])[0]
    start_ns = ceil_to_grid(int(rows.open_s[0]) * SECOND_NS, coarser)
    end_ns = floor_to_grid(next_open(int(rows.open_s[-1]) * SECOND_NS, seconds), coarser)
    return TimeRange(start_ns, end_ns) if start_ns < end_ns else None


def mismatches(name: str, tables: dict[str, Candles]) -> tuple[int, int]:
    """Return how many coarser candles of a file its finer ones surround, and how many of these differ from them."""
    seconds = PERIOD_SECONDS[name]
    finer = {c.open_ns: c for c in candles(tables[name])}
    first_ns, end_ns = min(finer), next_open(max(finer), seconds)
    compared = different = 0
    for other, rows in tables.items():
        coarser = PERIOD_SECONDS[other]
        if not (seconds < coarser <= WEEK_SECONDS and coarser % seconds == 0):
            continue
        for cell in candles(rows):
            stop_ns = next_open(cell.open_ns, coarser)
            if first_ns <= cell.open_ns and stop_ns <= end_ns:
                inside = [finer[t] for t in range(cell.open_ns, stop_ns, seconds * SECOND_NS) if t in finer]
                compared += 1
                different += not tallies(cell, aggregate(inside), coarser // seconds, TOLERANCE)
    return compared, different


def candles(rows: Candles) -> list[Candle]:
    """Return recorded rows as candles."""
    columns = (column.tolist() for column in rows.columns())
    return [Candle(open_s * SECOND_NS, *values) for open_s, *values in zip(*columns, strict=True)]


async def _fetch(file: Path, span: TimeRange, result: FileResult) -> FileResult:
    seconds = PERIOD_SECONDS[result.period]
    for checksums in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            settings = {"now_ns": span.end_ns + 100 * 24 * _HOUR_NS, "recorded": (f"{file}={SYMBOL}",)}
            async with virtual_world(Path(folder), checksums=checksums, **settings) as world:
                await _compare(world, span, seconds, result, checksums=checksums)
    return result


async def _compare(world: VirtualWorld, span: TimeRange, seconds: int, result: FileResult, *, checksums: bool) -> None:
    truth = world.truth(SYMBOL, result.period, span)
    found, table = await world.fetch(SYMBOL, seconds, span, Agreement()), Table()
    table.add(found.pages, found.missing)
    outcome = judge(truth, span, table)
    if not outcome.is_equal or len(table.rows) != len(truth):
        result.problems.append(f"{'' if checksums else 'odds alone: '}{outcome}")
    if not checksums:
        result.odds_calls = found.calls
        return
    result.rows, result.calls = len(truth), found.calls
    proofs = [proof for page in found.pages for proof in page.proofs]
    by_kind = {kind: [p.span for p in proofs if p.kind is kind] for kind in ProofKind}
    result.by_checksum = _count(by_kind[ProofKind.CHECKSUM], seconds)
    result.by_odds = _count(by_kind[ProofKind.ODDS], seconds)
    result.empty, result.provisional = _count(table.empty, seconds), _count(table.provisional, seconds)
    rows, result.ccxt_calls, _ = await world.ccxt_loop(SYMBOL, result.period, span)
    if len(rows) != len(truth):
        result.problems.append(f"ccxt has {len(rows)} rows")


def _count(ranges: Sequence[TimeRange], seconds: int) -> int:
    return sum(count_periods(each, seconds) for each in ranges)


def files_table(results: Sequence[FileResult]) -> str:
    """Return the results as Markdown, with sums."""
    header = (
        "file",
        "period",
        "periods",
        "rows",
        "rows equal",
        "mismatches",
        "by checksum / by odds",
        "verified empty",
        "of these provisional",
        "calls (odds alone)",
        "ccxt's",
    )
    rows = [
        (
            r.file,
            r.period,
            f"{r.periods:,}",
            f"{r.rows:,}",
            "; ".join(r.problems) or "all",
            f"{r.mismatches:,} of {r.compared:,}" if r.compared else "-",
            f"{r.by_checksum:,} / {r.by_odds:,}",
            f"{r.empty:,}",
            f"{r.provisional:,}",
            f"{r.calls:,} ({r.odds_calls:,})",
            f"{r.ccxt_calls:,}",
        )
        for r in results
    ]
    calls, ccxt_calls = sum(r.calls for r in results), sum(r.ccxt_calls for r in results)
    return (
        f"{markdown(header, rows)}\n"
        f"- {sum(r.rows for r in results):,} rows of {len({r.file for r in results})} files, "
        f"{sum(not r.problems for r in results)} of {len(results)} equal.\n"
        f"- Checksums: {sum(r.mismatches for r in results):,} of {sum(r.compared for r in results):,} differ.\n"
        f"- Calls: {calls:,}, ccxt {ccxt_calls:,}: {calls / max(1, ccxt_calls):.2f} times.\n"
    )
