"""Demonstration (``make demo``): the whole suite, one request, its rows, a chart, the notification.

It starts ``dexorder up`` on free ports with its state in ``demo-out/suite``, which is removed at the end; the chart
stays in ``demo-out/chart.html``. The simulated exchange corrupts a fifth of its candle responses. The exit status is 0
only if some were corrupted, the request ended OK, its rows equal the exchange's candles, and no process is left.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path

from dexorder.cli.history import command as history
from dexorder.cli.history.runs import RunStore
from dexorder.cli.rows.options import OutputOptions
from dexorder.cli.terminal import output
from dexorder.client.blocking import Client
from dexorder.client.requests import new_request_id
from dexorder.demo.exchange import FAULT_SHARE, DemoComparison, DemoExchange, FaultCounts, compare
from dexorder.errors import DexorderError, SuiteFailed
from dexorder.rows.table import times_ns
from dexorder.supervisor.orphan_guard import guarded
from dexorder.supervisor.plan import Ports, SuiteOptions
from dexorder.supervisor.prepare import ports_in_use
from dexorder.supervisor.state import PartState, read_state

TICKER, PERIOD, SINCE, UNTIL = "BTC/USDT.SIM", "1m", "2024-03-01", "2024-03-15"
MARKET_ID = "BTCUSDT"
"""Id of the instrument at the exchange."""
READY_SECONDS = 240.0
STOP_SECONDS = 120.0
TAIL_LINES = 15
MARKER = "DEXORDER_DEMO_RUN"
"""Environment variable that every process of the demo inherits; it identifies processes that are left behind."""


def main() -> int:
    """Run the demonstration and return the exit code."""
    started = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops the suite in order, as Ctrl-C does
    folder = Path("demo-out").absolute()
    state_dir, marker = folder / "suite", uuid.uuid4().hex
    shutil.rmtree(state_dir, ignore_errors=True)
    options = SuiteOptions(state_dir, Ports.from_base(free_base_port()))
    unset_own_settings()
    try:
        with running_suite(options, marker):
            code = show_request(options, folder / "chart.html")
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
    return code


def show_request(options: SuiteOptions, chart: Path) -> int:
    """Run one request while the exchange corrupts responses, then compare; on failure show the last log lines."""
    exchange, request_id = DemoExchange(options.address("sim")), new_request_id()
    exchange.start_faults()
    say(f"\nthe simulated exchange now corrupts {FAULT_SHARE:.0%} of its candle responses")
    try:
        code = show_history(options, chart, request_id)
        show_verdict(exchange.stop_faults(), compare_rows(options, exchange, request_id))
    except DexorderError:
        show_logs(options, options.parts)
        raise
    return code


def show_history(options: SuiteOptions, chart: Path, request_id: str) -> int:
    """Run the request through the command's own code, which prints to stdout."""
    say(f"$ dexorder history {TICKER} {PERIOD} --since {SINCE} --until {UNTIL} --chart --plot {chart.name}")
    output_options = OutputOptions(plot=chart, chart=True, rows=10)
    relay = options.address("relay")
    asked = history.new_run((TICKER, PERIOD), None, SINCE, UNTIL, output_options, request_id=request_id, relay=relay)
    return history.run(asked, RunStore(options.directory / "run.json"), timeout=120)


def compare_rows(options: SuiteOptions, exchange: DemoExchange, request_id: str) -> DemoComparison:
    """Compare the request's rows in Iceberg with the exchange's candles, without faults."""
    with Client(options.address("relay")) as client:
        ended = client.wait(request_id, timeout=30)
        rows = client.read(ended)
    opens_ns = times_ns(rows, "open_time")
    values = zip(*(rows[name].to_pylist() for name in ("open", "high", "low", "close", "volume")), strict=True)
    return compare(zip(opens_ns, values, strict=True), exchange.candles(MARKET_ID, PERIOD, ended.record.span))


def show_verdict(faults: FaultCounts, compared: DemoComparison) -> None:
    """Show the faults and the comparison; SuiteFailed if there were no faults or a candle differs."""
    for line in (*faults.lines(), compared.line()):
        say(line)
    if not faults.total:
        raise SuiteFailed("no response was corrupted, so nothing was demonstrated")
    if not compared.equal:
        raise SuiteFailed(f"the rows differ from the exchange's candles: {compared.line()}")


@contextmanager
def running_suite(options: SuiteOptions, marker: str) -> Iterator[None]:
    """Run ``dexorder up`` for the block, which starts when all are ready; SuiteFailed if they do not start or stop."""
    command = [*guarded(), sys.executable, "-m", "dexorder", "up", "--dir", str(options.directory)]
    command += ["--base-port", str(options.ports.relay)]
    # In its own session, so that Ctrl-C reaches only this process, which then stops the suite in order.
    suite = subprocess.Popen(command, env={**os.environ, MARKER: marker}, start_new_session=True)
    try:
        wait_ready(suite, options)
        yield
    finally:
        if suite.poll() is None:
            suite.send_signal(signal.SIGTERM)
        try:
            suite.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            suite.kill()  # its orphan guard kills the rest
            suite.wait()
            raise SuiteFailed(f"the suite did not stop within {STOP_SECONDS:g} s and was killed") from None


def wait_ready(suite: subprocess.Popen[bytes], options: SuiteOptions) -> None:
    """Wait until every part is ready; fail as soon as one is failing."""
    deadline = time.monotonic() + READY_SECONDS
    parts: Mapping[str, PartState] = {}
    while time.monotonic() < deadline:
        if (code := suite.poll()) is not None:
            raise SuiteFailed(f"`dexorder up` ended with exit code {code}")
        now = read_state(options.directory)
        parts = now.parts if now is not None and now.pid == suite.pid else {}
        if len(parts) == len(options.parts) and all(part.state == "ready" for part in parts.values()):
            return
        if failing := [name for name, part in parts.items() if part.state == "failing"]:
            show_logs(options, failing)
            raise SuiteFailed(f"{', '.join(failing)} can't run: {parts[failing[0]].detail}")
        time.sleep(0.1)
    late = {name: part for name, part in parts.items() if part.state != "ready"}
    show_logs(options, tuple(late))
    reasons = "; ".join(f"{name}: {part.detail or part.state}" for name, part in late.items())
    raise SuiteFailed(f"not ready after {READY_SECONDS:g} s: {reasons}")


def show_logs(options: SuiteOptions, parts: tuple[str, ...] | list[str]) -> None:
    """Show the last lines of the parts' logs on stderr."""
    for name in parts:
        with suppress(FileNotFoundError):
            lines = (options.directory / "logs" / f"{name}.log").read_text(errors="replace").splitlines()
            say(f"--- last lines of {name}'s log")
            for line in lines[-TAIL_LINES:]:
                say(f"    {line}")


def free_base_port() -> int:
    """Return the start of a block of free ports below the ephemeral range."""
    for _ in range(200):
        base = random.randrange(15_000, 30_000, len(fields(Ports)))  # noqa: S311 - no secret
        if not ports_in_use(SuiteOptions(Path(), Ports.from_base(base))):
            return base
    raise SuiteFailed("found no block of free ports between 15000 and 30000")


def unset_own_settings() -> None:
    """Remove settings of the shell that point to another suite."""
    for name in list(os.environ):
        if name in ("DEXORDER_RELAY", "DEXORDER_DIR") or name.startswith("DEXORDER_CATALOG_"):
            del os.environ[name]


def processes_marked(marker: str) -> list[int]:
    """Return the processes whose environment has the marker; none on a system without /proc."""
    wanted = f"{MARKER}={marker}".encode()
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended, or belongs to another user
            if wanted in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
    return found


def say(text: str) -> None:
    """Print a line on stderr, in order with the command's own output there."""
    output.stderr().print(text, markup=False)
