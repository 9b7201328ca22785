"""CPU time of processes and of the suite's parts."""

from __future__ import annotations

import os
from pathlib import Path

from tests.rig.suite import Suite

_TICKS = os.sysconf("SC_CLK_TCK")
PARTS = ("sim", "ingestor", "gateway", "kafka", "udsource", "spark", "relay")


def process_cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process since its start, in user and kernel mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def cpu_seconds(suite: Suite, part: str) -> float:
    """Return the CPU time of a part and its children so far."""
    session, ticks = suite.pid(part), 0
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS


def all_cpu_seconds(suite: Suite) -> dict[str, float]:
    """Return the CPU time of each part so far."""
    return {part: cpu_seconds(suite, part) for part in PARTS}
