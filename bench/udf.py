"""Points per second and CPU per point of our host with a Python UDF on our SDK, by transport, stream and batch.

    python -m bench.udf [--points 200000] [--rounds 3] [--only topic|kapacitor]

The points are candles: 5 doubles, 1 int, 2 tags. ``moving_average`` answers each point with one, ``mirror`` with
itself, ``same`` sends its frame on. ``batch_outliers`` reads batches of 1,000 and returns the few that are far. CPU is
that of the process, user and system. "CPU limit" is the rate at which the busier of the two processes would use a core
of its own. On a machine with other work, compare CPU with the line of the reference: parsing such a point took 1.3 µs
on two quiet cores.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.parts import udf_kapacitor, udf_topic
from bench.parts.cpu import process_cpu_seconds
from dexorder_udf import messages
from dexorder_udf.framing import FrameSplitter
from dexorder_udf.host import UdfHost
from dexorder_udf.points import Batch, Point
from dexorder_udf.spec import UdfSpec
from tests.rig.report import heading, markdown

ROOT = Path(__file__).resolve().parent.parent
FED_AT_ONCE = 5_000
BATCH = 1_000
MINUTE_NS = 60 * 10**9
FUNCTIONS = {
    "mirror": ("stream", 1.0),
    "same": ("stream", 1.0),
    "moving_average": ("stream", 1.0),
    "batch_mirror": ("batch", 1.0),
    "batch_outliers": ("batch", 0.0),
}


@dataclass
class Measurement:
    """One run."""

    points_per_second: float
    host_us: float
    udf_us: float


def candles(count: int) -> list[Point]:
    """Return candles of 20 tickers by turns."""
    source = random.Random(1)
    start_ns = 1_700_000_000 * 10**9
    return [
        Point(
            start_ns + n // 20 * MINUTE_NS,
            {"ticker": f"COIN{n % 20:02}/USDT.BINANCE", "period": "1m"},
            {
                "open": source.gauss(100, 1),
                "high": source.gauss(101, 1),
                "low": source.gauss(99, 1),
                "close": source.gauss(100, 1),
                "volume": source.uniform(0, 1000),
                "trades": source.randrange(10_000),
            },
            "ohlc",
            ("ticker", "period"),
            database="trading",
        )
        for n in range(count)
    ]


def batches(points: Sequence[Point]) -> list[Batch]:
    """Return the points as batches of one group each."""
    by_ticker: dict[str, list[Point]] = {}
    for each in points:
        by_ticker.setdefault(each.tags["ticker"], []).append(each)
    return [
        Batch(rows[first : first + BATCH], "ohlc", rows[0].group_tags, rows[-1].time_ns)
        for rows in by_ticker.values()
        for first in range(0, len(rows), BATCH)
    ]


@contextmanager
def reached(way: str, function: str) -> Iterator[tuple[UdfSpec, Callable[[], float]]]:
    """Serve a function in a process of its own; yield its declaration and a reader of its CPU seconds."""
    command = [sys.executable, str(ROOT / "bench" / "parts" / "udf_functions.py"), function]
    if way == "stdio":
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        yield (
            UdfSpec(function, prog=command[0], args=tuple(command[1:]), env={"PYTHONPATH": str(ROOT)}),
            lambda: _cpu(resource.getrusage(resource.RUSAGE_CHILDREN)) - _cpu(before),
        )
        return
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/udf.sock"
        arguments = ["--socket", path] if way == "socket" else ["--grpc", "127.0.0.1:0"]
        process = subprocess.Popen(
            [*command, *arguments], env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True
        )
        try:
            if way == "socket":
                spec = UdfSpec(function, socket=path)
            else:
                assert process.stderr
                spec = UdfSpec(function, grpc_target=f"127.0.0.1:{process.stderr.readline().split()[-1]}")
            yield spec, lambda: process_cpu_seconds(process.pid)
        finally:
            process.terminate()
            process.wait()


def measure(way: str, function: str, items: Sequence[Point | Batch], points: int) -> Measurement:
    """Feed everything once and read every output."""
    with reached(way, function) as (spec, udf_cpu):
        host = UdfHost(spec, on_log=lambda line: None)
        host.start()
        at_once = FED_AT_ONCE if isinstance(items[0], Point) else FED_AT_ONCE // BATCH
        udf_before = udf_cpu()
        cpu_before, started = time.process_time(), time.perf_counter()
        outputs = 0
        for first in range(0, len(items), at_once):
            outputs += len(host.process(items[first : first + at_once]))
        outputs += len(host.checkpoint()[0])
        took, cpu = time.perf_counter() - started, time.process_time() - cpu_before
        if way == "stdio":
            host.close()
        used = udf_cpu() - udf_before - (_start_cpu() if way == "stdio" else 0.0)
        host.close()
        assert outputs >= 0.9 * len(items)
        return Measurement(points / took, cpu / points * 1e6, used / points * 1e6)


def _start_cpu() -> float:
    """Return the CPU seconds of a process that only imports."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-c", "import dexorder.udf.agent"], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True
    )
    return _cpu(resource.getrusage(resource.RUSAGE_CHILDREN)) - _cpu(before)


def _cpu(usage: resource.struct_rusage) -> float:
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--points", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    points = candles(arguments.points)
    size = sum(map(len, messages.encode_points(points[:1000]))) / 1000
    print(heading(f"UDFs: {arguments.points:,} points of {size:.0f} bytes, {arguments.rounds} rounds"))
    bodies = FrameSplitter().feed(b"".join(messages.encode_points(points[:20_000])))
    cpu = time.process_time()
    for each in bodies:
        messages.decode_response(each)
    print(f"Reference: parsing one point takes {(time.process_time() - cpu) / len(bodies) * 1e6:.1f} µs of CPU.\n")
    rows = []
    for function, (edge, _) in FUNCTIONS.items():
        items: Sequence[Point | Batch] = points if edge == "stream" else batches(points)
        for way in ("stdio", "socket", "grpc"):
            if arguments.only and arguments.only not in (function, way, edge):
                continue
            runs = [measure(way, function, items, len(points)) for _ in range(arguments.rounds)]
            rates = sorted(each.points_per_second for each in runs)
            rows.append(
                [
                    f"{function}, {edge}",
                    way,
                    f"{rates[0]:,.0f}",
                    f"{statistics.median(rates):,.0f}",
                    f"{rates[-1]:,.0f}",
                    f"{statistics.median(each.host_us for each in runs):.1f}",
                    f"{statistics.median(each.udf_us for each in runs):.1f}",
                    f"{statistics.median(1e6 / max(each.host_us, each.udf_us) for each in runs):,.0f}",
                ]
            )
            print(rows[-1], file=sys.stderr)
    if arguments.only in ("", "kapacitor"):
        print("Under Kapacitor's host:\n")
        head = ["edge, agent", "UDF CPU µs/point", "points/s", "longest delay of a lone point, ms"]
        print(markdown(head, list(udf_kapacitor.rows())) + "\n")
    if arguments.only in ("", "topic"):
        rate, cpu_us = udf_topic.measure(arguments.points)
        print(f"To a topic, sender and gateway in one process: {rate:,.0f} rows/s, {cpu_us:.1f} µs of CPU a row.\n")
    print(
        markdown(
            ["UDF", "over", "min points/s", "median", "max", "host CPU µs/point", "UDF CPU µs/point", "CPU limit"], rows
        )
    )


if __name__ == "__main__":
    main()
