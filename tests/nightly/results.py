"""Results of a nightly run: each test is written down as it ends, and the page that shows them all.

As a plugin of pytest (``-p tests.nightly.results``) this module appends a line for each test to a file, so that a run
that is killed keeps what it has shown.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

FILE = "DEXORDER_NIGHTLY_RESULTS"
"""Environment variable: the file of the lines."""
RESULTS = ("passed", "failed", "skipped", "expected failure")
SLOWEST = 15
"""Tests shown of a part that has hundreds; failures are shown all."""
FEW = 250
"""Most tests of a part that are shown one by one."""


@dataclass(frozen=True, slots=True)
class EndedTest:
    """How one test ended; seconds include its fixtures'."""

    name: str
    seconds: float
    result: str


@dataclass(frozen=True, slots=True)
class PartResult:
    """How one command of the night ended.

    Attributes:
        result: "passed", "failed (exit code N)", or "stopped at its limit".
        tests: Empty for a command that is not pytest's.
    """

    name: str
    seconds: float
    result: str
    tests: Sequence[EndedTest] = ()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Append a phase of a test to the file. Only the process that collects the reports of all workers does it."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        outcome = "expected failure" if report.skipped and hasattr(report, "wasxfail") else report.outcome
        name, _, group = report.nodeid.rpartition("@")  # xdist appends the group
        name = report.nodeid if "]" in group or not name else name
        with Path(os.environ[FILE]).open("a") as file:
            file.write(json.dumps([name, report.duration, outcome]) + "\n")


def read_results(path: Path) -> list[EndedTest]:
    """Return the tests of a file, in the order of their first phase; a phase that failed decides."""
    found: dict[str, list[Any]] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        name, seconds, outcome = json.loads(line)
        test = found.setdefault(name, [0.0, "passed"])
        test[0] += seconds
        if outcome == "failed" or test[1] == "passed":
            test[1] = outcome
    return [EndedTest(name, seconds, result) for name, (seconds, result) in found.items()]


def page(title: str, facts: str, parts: Sequence[PartResult], seconds: float) -> str:
    """Return a night of so many seconds as Markdown; parts may have run at the same time."""
    rows = [(part.name, f"{part.seconds:.0f}", part.result, _counts(part.tests)) for part in parts]
    lines = [f"# {title}", "", facts, "", f"{seconds / 60:.0f} minutes in all.", ""]
    lines += table(("part", "seconds", "result", "tests"), rows)
    for part in parts:
        if part.tests:
            shown = _shown(part.tests)
            left = len(part.tests) - len(shown)
            lines += ["", f"## {part.name}", ""]
            lines += table(("test", "seconds", "result"), [(t.name, f"{t.seconds:.1f}", t.result) for t in shown])
            lines += ["", f"{left} more tests passed, each faster than these."] if left else []
    return "\n".join([*lines, ""])


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table as lines of Markdown."""
    return [f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows)]


def _counts(tests: Sequence[EndedTest]) -> str:
    counts = {result: sum(test.result == result for test in tests) for result in RESULTS}
    return ", ".join(f"{count} {result}" for result, count in counts.items() if count)


def _shown(tests: Sequence[EndedTest]) -> list[EndedTest]:
    """Return failures first, then by time; of many tests only the slowest."""
    ordered = sorted(tests, key=lambda test: (test.result != "failed", -test.seconds))
    failed = sum(test.result == "failed" for test in tests)
    return ordered if len(tests) <= FEW else ordered[: failed + SLOWEST]
