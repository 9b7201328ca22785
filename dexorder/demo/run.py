"""Demonstration (``make demo``): one range of a faulty exchange, fetched by ccxt's loop, by its ``paginate`` and by us.

It starts ``dexorder up`` on free ports with its state in ``demo-out/suite``, which is removed at the end unless the
suite is kept; the chart stays in ``demo-out/chart.html``. The simulated exchange corrupts a share of its candle
responses, and Spark and the ingestor are killed while the request runs. The exit status is 0 only if responses were
corrupted, both were killed, the request ended OK, its rows equal the exchange's candles, and no process is left.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from dexorder.cli.history import command as history
from dexorder.cli.history.runs import RunStore
from dexorder.cli.history.why import why
from dexorder.cli.rows.options import OutputOptions
from dexorder.cli.terminal import output
from dexorder.client.blocking import Client
from dexorder.client.requests import Ended, new_request_id
from dexorder.demo.exchange import FAULT_SHARE, DemoExchange, Values, compare
from dexorder.demo.kills import Killer
from dexorder.demo.peers import Peers, paginate, retrying_loop
from dexorder.demo.suite import free_base_port, processes_marked, running_suite, say, show_logs
from dexorder.demo.verdict import Column, check, verdict_table
from dexorder.errors import DexorderError, SuiteFailed
from dexorder.rows.table import times_ns
from dexorder.supervisor.plan import Ports, SuiteOptions
from dexorder_common.model.periods import count_periods
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS, iso, parse_time

SYMBOL, PERIOD, SINCE, UNTIL = "XMR/USD", "1m", "2024-03-01", "2024-04-01"
TICKER = f"{SYMBOL}.SIM"
"""A market in which no trade happens in many minutes."""
MARKET_ID = "XMRUSD"
"""Id of the instrument at the exchange."""
SPAN = TimeRange(parse_time(SINCE), parse_time(UNTIL))
_REQUEST_SECONDS = 180


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demonstration and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m dexorder.demo", description="Demonstrate dexorder on loopback.")
    parser.add_argument("--keep", action="store_true", help="let the suite run until Ctrl-C, to try commands on it")
    keep = parser.parse_args(arguments).keep
    started = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops the suite in order, as Ctrl-C does
    folder = Path("demo-out").absolute()
    state_dir, marker = folder / "suite", uuid.uuid4().hex
    shutil.rmtree(state_dir, ignore_errors=True)
    options = SuiteOptions(state_dir, Ports.from_base(free_base_port()))
    unset_own_settings()
    try:
        with running_suite(options, marker):
            show_race(options, folder / "chart.html")
            show_next(options, keep=keep, seconds=time.monotonic() - started)
        left = processes_marked(marker)
        if left:
            raise SuiteFailed(f"processes are still running: {left}")
    except DexorderError as error:
        say(f"demo: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    shutil.rmtree(state_dir, ignore_errors=True)
    say(f"no process is left; {time.monotonic() - started:.0f} s in all")
    return 0


def show_race(options: SuiteOptions, chart: Path) -> None:
    """Fetch the range in three ways while the exchange is faulty, then compare; on failure show the last log lines."""
    exchange, request_id = DemoExchange(options.address("sim")), new_request_id()
    exchange.start_faults()
    say(
        f"\nThe simulated exchange now corrupts {FAULT_SHARE:.0%} of its answers for candles. Three ways fetch the "
        f"{count_periods(SPAN, 60):,} minutes of {SYMBOL} from {SINCE} to {UNTIL} at the same time:"
    )
    say("a loop over ccxt's fetch_ohlcv that asks again after errors, ccxt's own paginate, and dexorder.\n")
    peers = Peers(exchange.address, SYMBOL, SPAN).start(retrying_loop, paginate)
    killer = Killer(options, request_id)
    try:
        killer.start()
        show_history(options, chart, request_id)
        killer.finish()
        ends = peers.result()
    except DexorderError:
        show_logs(options, options.parts)
        raise
    faults = exchange.stop_faults()
    truth = exchange.candles(MARKET_ID, PERIOD, SPAN)
    ours = compare(read_rows(options, request_id), truth)
    for line in faults.lines():
        say(line)
    names = ("ccxt, loop with retries", "ccxt, paginate")
    columns = [Column(name, end.told, compare(end.rows, truth)) for name, end in zip(names, ends, strict=True)]
    output.stdout().print(verdict_table([*columns, Column("dexorder", "OK", ours)], len(truth)))
    check(faults, ours)
    show_hole(options, truth)


def show_history(options: SuiteOptions, chart: Path, request_id: str) -> None:
    """Run the request through the command's own code, which prints to stdout; it raises unless it ends OK."""
    say(f"$ dexorder history {TICKER} {PERIOD} --since {SINCE} --until {UNTIL} --chart --plot {chart.name}")
    output_options = OutputOptions(plot=chart, chart=True, rows=6)
    relay = options.address("relay")
    asked = history.new_run((TICKER, PERIOD), None, SINCE, UNTIL, output_options, request_id=request_id, relay=relay)
    if history.run(asked, RunStore(options.directory / "run.json"), timeout=_REQUEST_SECONDS):
        raise SuiteFailed("the request did not end OK")


def read_rows(options: SuiteOptions, request_id: str) -> list[tuple[int, Values]]:
    """Return the request's rows in Iceberg."""
    with Client(options.address("relay")) as client:
        ended: Ended = client.wait(request_id, timeout=30)
        rows = client.read(ended)
    values = zip(*(rows[name].to_pylist() for name in ("open", "high", "low", "close", "volume")), strict=True)
    return list(zip(times_ns(rows, "open_time"), values, strict=True))


def show_hole(options: SuiteOptions, truth: dict[int, Values]) -> None:
    """Show the proof that one of the market's minutes is empty."""
    minutes = range(SPAN.start_ns, SPAN.end_ns, 60 * SECOND_NS)
    hole = next((minute for minute in minutes if minute not in truth), None)
    if hole is None:
        raise SuiteFailed(f"every minute of {SYMBOL} has a trade; the demo needs a market with empty minutes")
    time_text = iso(hole)
    say(f"\n{len(minutes) - len(truth):,} minutes have no row. Is one lost, or was there no trade?")
    say(f"$ dexorder coverage --why {TICKER} {PERIOD} {time_text}")
    why(TICKER, PERIOD, time_text, as_json=False, relay=options.address("relay"))


def show_next(options: SuiteOptions, *, keep: bool, seconds: float) -> None:
    """Say what to type next; with ``keep`` let the suite run until Ctrl-C."""
    if not keep:
        say("\nTo go on: `make demo KEEP=1` leaves this suite running, `dexorder up` starts one that stays.\n")
        return
    say(f"\nAfter {seconds:.0f} s the suite keeps running until Ctrl-C. In another shell:")
    say(f"  source .venv/bin/activate; export DEXORDER_DIR={options.directory}")
    for command in (
        f"dexorder coverage {TICKER} {PERIOD}",
        f"dexorder verify {TICKER} {PERIOD}",
        "dexorder history BTC/USDT.SIM 1h --since 2024-01-01 --until 2024-02-01 --chart",
        "dexorder watch BTC/USDT.SIM --period 1m",
    ):
        say(f"  {command}")
    try:
        signal.pause()
    except KeyboardInterrupt:
        say("stopping the suite")


def unset_own_settings() -> None:
    """Remove settings of the shell that point to another suite."""
    for name in list(os.environ):
        if name in ("DEXORDER_RELAY", "DEXORDER_DIR") or name.startswith("DEXORDER_CATALOG_"):
            del os.environ[name]
