"""``python -m dexorder.demo`` (``make demo``): the whole suite, one request, its rows, a chart, the notification.

Starts ``dexorder up`` on free ports with its state in ``demo-out/suite``, which is removed at the end; the chart stays
in ``demo-out/chart.html``. The simulated exchange spoils a fifth of its answers about candles. Exits 0 only if some
were spoiled, the request ended OK, its rows are the exchange's own candles, and no process of the suite is left.
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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa

from dexorder.aio import new_request_id
from dexorder.cli import history, output
from dexorder.client import Client
from dexorder.demo_exchange import SHARE, Comparison, DemoExchange, Mischief, Values, compare
from dexorder.errors import DexorderError, SuiteFailed
from dexorder.run_store import RunStore
from dexorder.runs import Shown
from dexorder.supervisor.orphan_guard import guarded
from dexorder.supervisor.plan import Ports, SuiteOptions
from dexorder.supervisor.prepare import taken_ports
from dexorder.supervisor.state import PartState, read_state

TICKER, PERIOD, SINCE, UNTIL = "BTC/USDT.SIM", "1m", "2024-03-01", "2024-03-15"
MARKET_ID = "BTCUSDT"
"""What the exchange calls it."""
READY_SECONDS = 240.0
STOP_SECONDS = 120.0
TAIL_LINES = 15
MARKER = "DEXORDER_DEMO_RUN"
"""Environment variable that every process of the demo's suite inherits, by which those left behind are found."""


def main() -> int:
    """Run it; returns the exit code."""
    started = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops in order, as Ctrl-C does
    folder = Path("demo-out").absolute()
    state_dir, marker = folder / "suite", uuid.uuid4().hex
    shutil.rmtree(state_dir, ignore_errors=True)
    options = SuiteOptions(state_dir, Ports.from_base(free_base_port()))
    forget_own_settings()
    try:
        with running_suite(options, marker):
            code = show_request(options, folder / "chart.html")
        left = processes_marked(marker)
        if left:
            raise SuiteFailed(f"processes are left behind: {left}")
    except DexorderError as error:
        say(f"demo: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    shutil.rmtree(state_dir, ignore_errors=True)
    say(f"no process is left; {time.monotonic() - started:.0f} s in all")
    return code


def show_request(options: SuiteOptions, chart: Path) -> int:
    """One request while the exchange spoils answers, then the verdict; on failure the logs' ends, then the error."""
    exchange, request_id = DemoExchange(options.address("sim")), new_request_id()
    exchange.misbehave()
    say(f"\nthe simulated exchange now spoils {SHARE:.0%} of its answers about candles")
    try:
        code = show_history(options, chart, request_id)
        show_verdict(exchange.behave(), compare_rows(options, exchange, request_id))
    except DexorderError:
        show_logs(options, options.parts)
        raise
    return code


def show_history(options: SuiteOptions, chart: Path, request_id: str) -> int:
    """The request through the command's own code; what it shows goes to stdout."""
    say(f"$ dexorder history {TICKER} {PERIOD} --since {SINCE} --until {UNTIL} --chart --plot {chart.name}")
    shown = Shown(plot=chart, chart=True, rows=10)
    relay = options.address("relay")
    asked = history.new_run((TICKER, PERIOD), None, SINCE, UNTIL, shown, request_id=request_id, relay=relay)
    return history.run(asked, RunStore(options.directory / "run.json"), timeout=120)


def compare_rows(options: SuiteOptions, exchange: DemoExchange, request_id: str) -> Comparison:
    """The request's rows in Iceberg beside what the exchange says now that it behaves."""
    with Client(options.address("relay")) as client:
        ended = client.wait(request_id, timeout=30)
        rows = client.read(ended)
    return compare(values_of(rows), exchange.candles(MARKET_ID, PERIOD, ended.record.span))


def values_of(rows: pa.Table) -> Iterator[tuple[int, Values]]:
    """Rows of ``trading.ohlc`` as open time in ns and values."""
    opens: list[Any] = rows["open_time"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
    values = zip(*(rows[name].to_pylist() for name in ("open", "high", "low", "close", "volume")), strict=True)
    return ((micros * 1_000, row) for micros, row in zip(opens, values, strict=True))


def show_verdict(done: Mischief, compared: Comparison) -> None:
    """What went wrong beside what came of it.

    Raises:
        SuiteFailed: Nothing went wrong, so that nothing was shown; or a row is not the exchange's candle.
    """
    for line in (*done.lines(), compared.line()):
        say(line)
    if not done.spoiled:
        raise SuiteFailed("no answer was spoiled, so nothing was shown")
    if not compared.equal:
        raise SuiteFailed(f"the rows are not the exchange's candles: {compared.line()}")


@contextmanager
def running_suite(options: SuiteOptions, marker: str) -> Iterator[None]:
    """``dexorder up`` while the block runs, ready when it begins.

    Raises:
        SuiteFailed: It does not become ready, or does not stop; the logs' ends were shown.
    """
    command = [*guarded(), sys.executable, "-m", "dexorder", "up", "--dir", str(options.directory)]
    command += ["--base-port", str(options.ports.relay)]
    # A session of its own: Ctrl-C reaches this process alone, which then stops the suite in order.
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
            suite.kill()  # its guard ends the rest
            suite.wait()
            raise SuiteFailed(f"the suite did not stop within {STOP_SECONDS:g} s and was killed") from None


def wait_ready(suite: subprocess.Popen[bytes], options: SuiteOptions) -> None:
    """Until every part is ready; fails as soon as one keeps dying."""
    deadline = time.monotonic() + READY_SECONDS
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
    late = {name: part for name, part in _parts(options).items() if part.state != "ready"}
    show_logs(options, tuple(late))
    reasons = "; ".join(f"{name}: {part.detail or part.state}" for name, part in late.items())
    raise SuiteFailed(f"not ready after {READY_SECONDS:g} s: {reasons}")


def show_logs(options: SuiteOptions, parts: tuple[str, ...] | list[str]) -> None:
    """The last lines of the parts' logs, on stderr."""
    for name in parts:
        with suppress(FileNotFoundError):
            lines = (options.directory / "logs" / f"{name}.log").read_text(errors="replace").splitlines()
            say(f"--- the end of {name}'s log")
            for line in lines[-TAIL_LINES:]:
                say(f"    {line}")


def free_base_port() -> int:
    """Start of a block of ports of which none is in use, below those that systems hand out on their own."""
    for _ in range(200):
        base = random.randrange(15_000, 30_000, len(fields(Ports)))  # noqa: S311 - no secret
        if not taken_ports(SuiteOptions(Path(), Ports.from_base(base))):
            return base
    raise SuiteFailed("no block of free ports was found between 15000 and 30000")


def forget_own_settings() -> None:
    """The demo is about its own suite, whatever the shell's settings point at."""
    for name in list(os.environ):
        if name in ("DEXORDER_RELAY", "DEXORDER_DIR") or name.startswith("DEXORDER_CATALOG_"):
            del os.environ[name]


def processes_marked(marker: str) -> list[int]:
    """Processes whose environment carries the marker; none on a system without /proc."""
    wanted = f"{MARKER}={marker}".encode()
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # gone meanwhile, or another user's
            if wanted in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
    return found


def say(text: str) -> None:
    """A line on stderr, in order with what the command prints there."""
    output.stderr().print(text, markup=False)


def _parts(options: SuiteOptions) -> dict[str, PartState]:
    now = read_state(options.directory)
    return dict(now.parts) if now is not None else {}


if __name__ == "__main__":
    sys.exit(main())
