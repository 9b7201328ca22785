"""Report of a campaign as Markdown, to be kept under bench/results."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Sequence


def say(title: str, header: Sequence[str], *rows: Sequence[object], since_s: float) -> None:
    """Print a table with the commit it ran on and how long it took."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout
    minutes, seconds = divmod(round(time.monotonic() - since_s), 60)
    print(f"\n## {title}\n\nCommit {commit.strip()}, {os.cpu_count()} cores, {minutes} min {seconds} s.\n")
    for row in (header, ["---"] * len(header), *rows):
        print(f"| {' | '.join(map(str, row))} |", flush=True)


def spread(seconds: Sequence[float]) -> str:
    """Return median and worst as text."""
    return f"median {statistics.median(seconds):.1f} s, worst {max(seconds):.1f} s"
