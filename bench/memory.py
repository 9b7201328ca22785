"""Memory of the suite's processes while it serves one small request every two seconds.

    .venv/bin/python -m bench.memory [--minutes 60]

Prints a line for each minute, then a table: private memory of each process and its slope after the first quarter of
the time. The table keeps at most NAMED snapshots for notifications instead of 1,000: it has its greatest number of
snapshots before the slope begins, and the slope shows what is never released.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import grpc
import numpy as np

from bench.parts.latency import one_request
from dexorder.supervisor.plan import PARTS
from dexorder_common.rpc.relay_stubs import BlockingRelayStubs
from tests.rig import report
from tests.rig.oracle import minutes
from tests.rig.suite import Suite, running_suite

REQUEST_SECONDS = 2.0
CANDLES = 60
FIRST_MINUTE = -3_000_000
AIM_MIB_AN_HOUR = 5.0
NAMED = 200


def memory(suite: Suite) -> dict[str, float]:
    """Return the private, modified MiB of each part; those of Spark's driver, Java and workers apart."""
    found: dict[str, float] = defaultdict(float)
    for part in PARTS:
        for pid, is_first in family(suite.pid(part)):
            with suppress(ProcessLookupError, FileNotFoundError):  # it may have ended since it was listed
                name = part if is_first else f"{part}: {'Java' if comm(pid) == 'java' else 'workers'}"
                found[name] += private_mib(pid)
    return found


def family(pid: int) -> Iterator[tuple[int, bool]]:
    """Yield a process and all its descendants."""
    yield pid, True
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(ProcessLookupError, FileNotFoundError):
            for child in children.read_text().split():
                yield from ((each, False) for each, _ in family(int(child)))


def comm(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def private_mib(pid: int) -> float:
    """Return the memory that only the end of this process would release; clean pages of files are the system's."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty:")) / 1024


def run(suite: Suite, total_minutes: int) -> str:
    """Send the requests and sample the memory; return the table."""
    samples: dict[str, list[tuple[float, float]]] = defaultdict(list)
    started_s, number = time.monotonic(), 0
    with grpc.insecure_channel(suite.relay) as channel:
        relay = BlockingRelayStubs(channel)
        while (spent_s := time.monotonic() - started_s) < total_minutes * 60:
            if spent_s // 60 >= max(map(len, samples.values()), default=0):
                for name, mib in memory(suite).items():
                    samples[name].append((spent_s / 3_600, mib))
                now = ", ".join(f"{name} {each[-1][1]:.0f}" for name, each in samples.items())
                print(f"{spent_s / 60:.0f} min, {number} requests, MiB: {now}", file=sys.stderr, flush=True)
            one_request(relay, minutes(FIRST_MINUTE + number * CANDLES, CANDLES))
            number += 1
            time.sleep(max(0.0, started_s + number * REQUEST_SECONDS - time.monotonic()))
    title = f"Memory, {number} requests in {total_minutes} min; second column: after the first quarter, then the slope"
    return report.table(title, slopes(samples, from_hours=total_minutes / 240))


def slopes(samples: Mapping[str, Sequence[tuple[float, float]]], *, from_hours: float) -> list[report.Row]:
    """Return a row for each process: memory at the end and at ``from_hours``, and the slope between.

    Args:
        samples: Hours since the start and MiB, by process.
    """
    rows = []
    for name, each in samples.items():
        hours, mib = np.array([sample for sample in each if sample[0] >= from_hours]).T
        slope = float(np.polyfit(hours, mib, 1)[0])
        rows.append(
            report.Row(
                name, f"{mib[-1]:.0f} MiB", f"{mib[0]:.0f} MiB", f"{slope:+.1f} MiB/h", f"< {AIM_MIB_AN_HOUR} MiB/h"
            )
        )
    return rows


def main() -> int:
    """Run the suite and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=int, default=60)
    options = parser.parse_args()
    print(report.heading("Memory under small requests"), flush=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        running_suite(Path(folder) / "suite", DEXORDER_SPARK_MAINTENANCE_MAX_NAMED_SNAPSHOTS=str(NAMED)) as suite,
    ):
        print(run(suite, options.minutes), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
