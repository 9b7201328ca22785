"""Lost, duplicate and changed candles on a faulty exchange: the whole suite beside ccxt's tutorial loop, ``paginate``
and freqtrade; and the ingestor alone where an exchange is untrue for a time. Trades in real time beside a bare ccxt.pro
loop and cryptofeed.

    .venv/bin/python -m bench.completeness [--small] [--share 5,20,50] [--rows NAME,...] [--out FILE]

One table for each share of faulty answers, one row for each kind of fault, all on the simulated exchange. Each cell
fetches a range of its own in each way, one after the other, with the same rules and the same seed, and compares every
candle with the exchange's answer without faults. freqtrade needs Python 3.12; ``--no-freqtrade`` leaves it out.
Then two tables of faults that last for a time, stay at a replica or are always in the same place
(`bench.parts.completeness.timed`), and one of the calls that prove that a market has no candle before its listing
(`bench.parts.completeness.listing`), in virtual time; ``--rows`` of these alone start no suite. ``--rows realtime`` is
the table of trades in real time (`bench.parts.completeness.live`), which takes ten minutes. Prints Markdown, and
progress on stderr. The exit code is 0 only if dexorder kept its promise in every cell
(`bench.parts.completeness.tables.Result`).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

import structlog

from bench.parts.completeness import (
    cells,
    freqtrade,
    listing,
    live,
    query_odds,
    tables,
    timed,
    timed_cells,
    timed_tables,
    ways,
)
from bench.parts.completeness.cells import Cell
from bench.parts.completeness.compare import HANG, Outcome, Row, Values, judge
from bench.parts.completeness.exchange import PAGE, SimulatedExchange
from bench.parts.completeness.tables import Result
from dexorder_common.model.time_range import TimeRange
from tests.rig.report import heading
from tests.rig.suite import running_suite

CANDLES, SMALL = 100_000, 5_000
DEADLINE_SECONDS = 300.0
Answer = tuple[str, list[Row], tuple[TimeRange, ...]]


class Bench:
    """Measures one cell after the other on one suite."""

    def __init__(
        self, relay: str, exchange: SimulatedExchange, deadline_s: float, *, with_freqtrade: bool = True
    ) -> None:
        self._relay = relay
        self._with_freqtrade = with_freqtrade
        self._exchange = exchange
        self._deadline_s = deadline_s

    def measure(self, cell: Cell) -> Result:
        """Measure each way in one cell; an exception is an outcome too."""

        def loop() -> Answer:
            return *self._peer(ways.tutorial_loop, cell), ()

        def paginate() -> Answer:
            return *self._peer(ways.paginate, cell), ()

        def download() -> Answer:
            return *freqtrade.run_freqtrade(self._exchange.address, cell, self._deadline_s), ()

        def chain() -> Answer:
            return ways.run_ours(self._relay, cell, self._deadline_s)

        peers = {tables.LOOP: loop, tables.PAGINATE: paginate}
        if self._with_freqtrade:
            peers[tables.FREQTRADE] = download
        try:
            truth = self._exchange.truth(cell)
            outcomes = {name: self._outcome(cell, truth, way) for name, way in peers.items()}
            return Result(cell, outcomes, self._outcome(cell, truth, chain))
        except Exception as error:  # the exchange itself; the next cell may find it again
            return Result(cell, dict.fromkeys(peers, _broken(error)), _broken(error))

    def _peer(self, way: ways.Way, cell: Cell) -> tuple[str, list[Row]]:
        return asyncio.run(ways.run_peer(way, self._exchange.address, cell, self._deadline_s))

    def _outcome(self, cell: Cell, truth: Mapping[int, Values], way: Callable[[], Answer]) -> Outcome:
        self._exchange.set_faults(cells.rules(cell))
        self._exchange.reset_counters()
        started = time.perf_counter()
        try:
            end, rows, missing = way()
        except Exception as error:
            return _broken(error)
        finally:
            seconds = time.perf_counter() - started
            counters = self._exchange.counters()
            self._exchange.set_faults([])
        verdict = None if end == HANG and not rows else judge(truth, rows, cell.span, missing)
        return Outcome(end, verdict, *counters, seconds, len(missing))


def _broken(error: Exception) -> Outcome:
    return Outcome(" ".join(f"not measured: {type(error).__name__} {error}".split())[:160])


def documents(
    options: argparse.Namespace, plan: Sequence[Cell], skipped: Sequence[cells.Fault], results: list[Result]
) -> Iterator[str]:
    """Yield the parts of the page as soon as they are ready; ``results`` grows with them."""
    yield f"{heading('Completeness on a bad exchange')}\n{about(options.candles, skipped)}"
    pages = ways.pages(plan[0])
    with (
        tempfile.TemporaryDirectory() as folder,
        running_suite(Path(folder) / "suite", **query_odds.environment()) as suite,
    ):
        exchange = SimulatedExchange(suite.address("sim"))
        bench = Bench(suite.relay, exchange, options.deadline, with_freqtrade=options.freqtrade)
        say, started = Progress(len(plan)), time.monotonic()
        for share in options.share:
            for cell in (cell for cell in plan if cell.share == share):
                results.append(bench.measure(cell))
                say(results[-1], time.monotonic() - started)
            of_share = [result for result in results if result.cell.share == share]
            yield tables.share_table(share, options.candles, pages, of_share)
    yield query_odds.odds_text(max(options.share))
    yield tables.readme_table(results)


def about(candles: int, skipped: Sequence[cells.Fault]) -> str:
    """Return the explanation of the tables."""
    text = (
        f"One-minute candles of synthetic markets, {candles:,} in a cell, {PAGE:,} in a call; faults hit calls for "
        f"candles at random, Retry-After is {cells.RETRY_AFTER_SECONDS} s. A candle is lost if no row has its open "
        "time, doubled if a second row has it, wrong if its values differ from the exchange's or it does not exist, "
        "null if a value is absent. Brackets hold the error that a peer's caller gets, if any. Peers' rows outside the "
        "range are not counted. Figures of all ways in a cell are in the order of the columns. One ingestor serves "
        "all cells, so the measured share of untrue answers carries over from cell to cell.\n\n"
    )
    names = ", ".join(fault.name for fault in skipped)
    return (
        text + query_odds.settings_text() + (f"\nNot offered by this simulated exchange: {names}.\n" if names else "")
    )


class Progress:
    """Progress on stderr, a line after each cell."""

    def __init__(self, cells_: int) -> None:
        self._cells = cells_
        self._done = 0

    def __call__(self, result: Result, seconds: float) -> None:
        self._done += 1
        left = seconds / self._done * (self._cells - self._done)
        cell, outcome = result.cell, result.ours
        print(
            f"cell {self._done} of {self._cells}, {seconds:.0f} s, {left:.0f} s to go: {tables.percent(cell.share)} "
            f"{cell.label}: {tables.ours_end(outcome)}, {tables.harm(outcome.verdict)}, {outcome.seconds:.1f} s",
            file=sys.stderr,
            flush=True,
        )


def read_options(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help=f"{SMALL:,} candles a cell instead of {CANDLES:,}")
    parser.add_argument("--share", type=read_shares, default=[0.05, 0.2, 0.5], help="per cent, default 5,20,50")
    parser.add_argument("--rows", type=lambda text: text.split(","), help="names of rows; default all")
    parser.add_argument("--market", type=lambda text: tuple(text.split(",")), default=cells.DENSE, help="BTC/USDT,...")
    parser.add_argument("--thin", default=cells.thin_market(), help="a market with true holes, for a few more rows")
    parser.add_argument("--freqtrade", action=argparse.BooleanOptionalAction, default=True, help="measure it too")
    parser.add_argument("--deadline", type=float, default=DEADLINE_SECONDS, help="seconds a request may take")
    parser.add_argument("--out", type=Path, help="write the Markdown there, too")
    options = parser.parse_args(argv)
    options.candles = SMALL if options.small else CANDLES
    return options


def read_shares(text: str) -> list[float]:
    """Return shares such as ``5,20`` as fractions of 1, ascending."""
    shares = sorted({float(each) / 100 for each in text.split(",")})
    if not all(0 < share < 1 for share in shares):
        raise argparse.ArgumentTypeError(f"{text!r}: each share is between 0 and 100 per cent")
    return shares


def timed_documents(plan: Sequence[timed_cells.TimedCell], results: list[timed.TimedResult]) -> Iterator[str]:
    """Yield the tables of faults that last for a time; ``results`` grows with them."""
    yield f"# Untrue for a time\n\n{timed_tables.ABOUT}"
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))

    def say(result: timed.TimedResult) -> None:
        text = timed_tables.outcome(timed.worst(result.runs).first)
        print(f"{result.cell.label}, {tables.percent(result.cell.share)}: {text}", file=sys.stderr, flush=True)

    for title, checksums in (("With coarser candles", True), ("Without coarser candles", False)):
        wanted = plan if checksums else [cell for cell in plan if "computed" not in cell.row and "kept" not in cell.row]
        with tempfile.TemporaryDirectory() as folder:
            found = asyncio.run(timed.measure_all(wanted, Path(folder), checksums=checksums, say=say))
        results += found
        yield timed_tables.timed_table(title, found)


def listing_documents(results: list[listing.ListingResult]) -> Iterator[str]:
    """Yield the table of calls before a listing; ``results`` grows with it."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with tempfile.TemporaryDirectory() as folder:
        results += asyncio.run(listing.measure(Path(folder)))
    yield listing.table(results)


def live_documents(results: list[bool]) -> Iterator[str]:
    """Yield the table of trades in real time; ``results`` gets whether dexorder kept its promise."""
    with tempfile.TemporaryDirectory() as folder:
        text, is_kept = live.measure(Path(folder))
    results.append(is_kept)
    yield text


def split_rows(names: Sequence[str] | None) -> tuple[Sequence[str] | None, Sequence[str] | None]:
    """Return the names of rows of the first tables and of the timed ones; None for all of them, [] for none."""
    if names is None:
        return None, None
    known = timed_cells.names()
    return [name for name in names if name not in known], [name for name in names if name in known]


def chosen(offered: Sequence[cells.Fault], names: Sequence[str] | None) -> list[cells.Fault]:
    """Return the selected rows in the table's order; all rows without names.

    Raises:
        ValueError: A name is not a row's. The message lists the names.
    """
    known = [fault.name for fault in offered]
    if names and (strange := [name for name in names if name not in known]):
        raise ValueError(f"no rows {', '.join(strange)}; there are {', '.join(known)}")
    return [fault for fault in offered if names is None or fault.name in names]


def main() -> int:
    """Run the measurement and print the result."""
    options = read_options()
    offered, skipped = cells.offered()
    is_listing = options.rows is None or listing.ROW in options.rows
    is_live = options.rows is None or live.ROW in options.rows
    others = (listing.ROW, live.ROW)
    rows, timed_rows = split_rows(options.rows and [name for name in options.rows if name not in others])
    try:
        plan = cells.plan(
            chosen(offered, rows),
            options.share,
            candles=options.candles,
            symbols=options.market,
            thin=options.thin,
        )
    except ValueError as error:
        print(f"bench.completeness: {error}", file=sys.stderr)
        return 2
    if options.out:
        options.out.write_text("")
    results: list[Result] = []
    timed_results: list[timed.TimedResult] = []
    listing_results: list[listing.ListingResult] = []
    texts = documents(options, plan, skipped, results) if plan else iter([heading("Completeness on a bad exchange")])
    timed_plan = [] if timed_rows == [] else timed_cells.chosen(timed_rows)
    timed_texts = timed_documents(timed_plan, timed_results) if timed_plan else iter(())
    live_results: list[bool] = []
    listing_texts = listing_documents(listing_results) if is_listing else ()
    for text in chain(texts, timed_texts, listing_texts, live_documents(live_results) if is_live else ()):
        print(text, flush=True)
        if options.out:
            with options.out.open("a") as file:
                file.write(f"{text}\n")
    wrong = any(run.first.is_silently_wrong for result in timed_results for run in result.runs)
    kept = [*live_results, *(result.as_promised for result in results)] + [
        result.as_promised for result in listing_results
    ]
    return int(wrong or not all(kept))


if __name__ == "__main__":
    sys.exit(main())
