"""Figures as Markdown."""

from __future__ import annotations

import os
import statistics
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One figure with its limit; ``ratio`` and ``aim`` are text, as each measurement has its own."""

    what: str
    ours: str
    limit: str = ""
    ratio: str = ""
    aim: str = ""


def table(title: str, rows: Iterable[Row]) -> str:
    """Return a heading and a table."""
    lines = [f"## {title}\n", "| what | ours | limit, same run | ratio | aim |", "| --- | --- | --- | --- | --- |"]
    lines += [f"| {row.what} | {row.ours} | {row.limit} | {row.ratio} | {row.aim} |" for row in rows]
    return "\n".join(lines) + "\n"


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` of the values lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(share * len(ordered)) - 1))]


def spread(values: Sequence[float], unit: str = "s") -> str:
    """Return p50 and p95 as text."""
    return f"p50 {statistics.median(values):.2f}, p95 {quantile(values, 0.95):.2f} {unit}"


def heading(title: str) -> str:
    """Return a heading with the commit and the load of the machine."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"# {title}\n\nCommit {commit.strip()}, {os.cpu_count()} cores, load before {load}.\n"
