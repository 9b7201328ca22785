"""Reports of benchmarks and campaigns as Markdown."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Row(NamedTuple):
    """One measurement beside its limit; ``ratio`` and ``aim`` are text, because their form differs."""

    what: str
    ours: str
    limit: str = ""
    ratio: str = ""
    aim: str = ""


def heading(title: str) -> str:
    """Return the title of a benchmark with the commit and the load it ran under."""
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"# {title}\n\nCommit {_commit()}, {os.cpu_count()} cores, load before {load}.\n"


def table(title: str, rows: Iterable[Row]) -> str:
    """Return a heading and the table of a benchmark."""
    columns = ("what", "ours", "limit, same run", "ratio", "aim")
    return f"## {title}\n\n" + markdown(columns, rows)


def print_campaign(title: str, header: Sequence[str], *rows: Sequence[object], since_s: float) -> None:
    """Print the table of a campaign with the commit it ran on and its duration."""
    minutes, seconds = divmod(round(time.monotonic() - since_s), 60)
    print(f"\n## {title}\n\nCommit {_commit()}, {os.cpu_count()} cores, {minutes} min {seconds} s.\n")
    print(markdown(header, rows), end="", flush=True)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share of the values lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(share * len(ordered)) - 1))]


def spread(values: Sequence[float], unit: str = "s") -> str:
    """Return p50 and p95 as text."""
    return f"p50 {statistics.median(values):.2f}, p95 {quantile(values, 0.95):.2f} {unit}"


def median_and_worst(seconds: Sequence[float]) -> str:
    """Return the median and the worst of some durations as text."""
    return f"median {statistics.median(seconds):.1f} s, worst {max(seconds):.1f} s"


def markdown(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = (header, ["---"] * len(header), *rows)
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
