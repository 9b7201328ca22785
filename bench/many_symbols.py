"""A day of one-minute candles of many symbols with one command, beside ccxt alone.

    .venv/bin/python -m bench.many_symbols [--symbols 620] [--slots 8] [--files]

Starts a suite whose simulated exchange has so many further markets, each with a candle every minute, writes a file of
tickers and runs ``dexorder history --file``. Then ccxt alone fetches the same symbols with four clients and one
throttle. Prints Markdown: seconds, calls a symbol, CPU and the largest memory of each part. The exit code is the
command's.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import resource
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.memory import family
from bench.parts.backfill import CLIENTS, PAGE, ccxt_clients
from bench.parts.cpu import all_cpu_seconds
from bench.parts.sim_markets import further_symbols, write_exchanges
from dexorder.supervisor.plan import PARTS
from dexorder_common.exchanges import Slots
from tests.rig import report
from tests.rig.suite import Suite, running_suite

SINCE_MS = 1_705_276_800_000
"""2024-01-15, a midnight."""
MINUTES = 1_440
MINUTE_MS = 60_000
SINCE, UNTIL = "2024-01-15", "2024-01-16"
_CALLS = "dexorder_ingestor_calls_total"
_FILES = "dexorder_ingestor_archive_files_total"
_TIMES = {
    "dexorder_ingestor_call_seconds_sum": "in calls",
    "dexorder_ingestor_rate_limit_wait_seconds_total": "of it waiting for the pace",
    "dexorder_ingestor_publish_seconds_sum": "in Produce and ReportPage",
}


def largest_mib(suite: Suite) -> dict[str, float]:
    """Return the largest resident memory so far of each part's processes, added up."""
    found: dict[str, float] = defaultdict(float)
    for part in PARTS:
        with suppress(KeyError):
            for pid, _ in family(suite.pid(part)):
                with suppress(ProcessLookupError, FileNotFoundError):  # it may have ended since it was listed
                    status = Path(f"/proc/{pid}/status").read_text()
                    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
                    found[part] += int(peak[1]) / 1024 if peak else 0.0
    return found


async def ccxt_alone(suite: Suite, wanted: list[str]) -> tuple[float, int]:
    """Return the seconds and the calls of ccxt alone; the rows are discarded."""
    async with ccxt_clients(suite) as clients:
        started, left = time.perf_counter(), iter(wanted)
        calls = sum(await asyncio.gather(*(_pull(client, left) for client in clients)))
        return time.perf_counter() - started, calls


async def _pull(client: Any, left: Iterator[str]) -> int:
    calls, end_ms = 0, SINCE_MS + MINUTES * MINUTE_MS
    for symbol in left:
        for since_ms in range(SINCE_MS, end_ms, PAGE * MINUTE_MS):
            until_ms = min(since_ms + PAGE * MINUTE_MS, end_ms) - 1
            await client.fetch_ohlcv(symbol, "1m", since_ms, PAGE, {"until": until_ms})
            calls += 1
    return calls


def measure(suite: Suite, wanted: list[str], folder: Path) -> tuple[str, int]:
    """Run the command and ccxt; return the table and the command's exit code."""
    tickers = folder / "tickers.txt"
    tickers.write_text("".join(f"{symbol}.SIM\n" for symbol in wanted))
    before = {name: suite.metric("ingestor", name) for name in (_CALLS, _FILES, *_TIMES)}
    cpu_before = all_cpu_seconds(suite)
    started, command_before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    span = ("--since", SINCE, "--until", UNTIL)
    files = ("--file", str(tickers), "--state", str(folder / "run"))
    ended = suite.dexorder("history", "1m", *files, *span, "--quiet", timeout=1_800)
    seconds = time.perf_counter() - started
    grown = {name: suite.metric("ingestor", name) - value for name, value in before.items()}
    calls = grown.pop(_CALLS)
    command = resource.getrusage(resource.RUSAGE_CHILDREN)
    client_mib = command.ru_maxrss / 1024
    cpu = {part: used - cpu_before[part] for part, used in all_cpu_seconds(suite).items()}
    cpu["the command"] = sum(command[:2]) - sum(command_before[:2])
    memory = largest_mib(suite)
    alone, alone_calls = asyncio.run(ccxt_alone(suite, wanted))
    rows = [
        report.Row("seconds", f"{seconds:.1f}", f"{alone:.1f}", f"{alone / seconds:.2f}", "at least 1.0"),
        report.Row("files a symbol", f"{grown.pop(_FILES) / len(wanted):.2f}", "", "", ""),
        report.Row("calls a symbol", f"{calls / len(wanted):.2f}", f"{alone_calls / len(wanted):.2f}", "", ""),
        report.Row(
            f"CPU ms a symbol, all {sum(cpu.values()) * 1_000 / len(wanted):.0f}",
            ", ".join(f"{part} {used * 1_000 / len(wanted):.0f}" for part, used in cpu.items()),
            "",
            "",
            "",
        ),
        report.Row(
            "ms a symbol, all slots",
            ", ".join(f"{_TIMES[name]} {value * 1_000 / len(wanted):.0f}" for name, value in grown.items()),
            "",
            "",
            "",
        ),
        report.Row("candles/s", f"{len(wanted) * MINUTES / seconds:,.0f}", "", "", ""),
        report.Row("MiB at most: the command", f"{client_mib:.0f}", "", "", ""),
        *(report.Row(f"MiB at most: {part}", f"{mib:.0f}", "", "", "") for part, mib in sorted(memory.items())),
    ]
    print("\n".join(ended.stdout.splitlines()[-3:]), ended.stderr[-2_000:], sep="\n", file=sys.stderr)
    title = (
        f"{len(wanted)} symbols, a day of one-minute candles each, with --file; limit: ccxt alone, {CLIENTS} clients"
    )
    return report.table(title, rows), ended.returncode


def main() -> int:
    """Run once and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--symbols", type=int, default=620)
    parser.add_argument("--slots", type=int, default=Slots().historical, help="of the ingestor")
    parser.add_argument("--files", action="store_true", help="the exchange has files of whole days")
    options = parser.parse_args()
    print(report.heading("Many symbols"), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        text, code = _run(Path(folder), options.symbols, options.slots, files=options.files)
    print(text)
    return code


def _run(folder: Path, count: int, slots: int, *, files: bool) -> tuple[str, int]:
    exchanges = write_exchanges(folder, {"historical": slots}, files=files)
    with running_suite(folder / "suite", "--exchanges", exchanges, DEXORDER_SIM_MARKETS=str(count)) as suite:
        return measure(suite, further_symbols(count), folder)


if __name__ == "__main__":
    sys.exit(main())
