"""A night goes on after a failure and after a part that hangs, and its page shows each test with its result."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.nightly.__main__ import PARTS, Lane, Part, main, run_parts
from tests.nightly.results import FEW, SLOWEST, EndedTest, PartResult, page, read_results

TESTS = """
import pytest

def test_good():
    pass

def test_bad():
    assert False

def test_left_out():
    pytest.skip("not here")

@pytest.fixture
def broken():
    raise OSError

def test_without_its_fixture(broken):
    pass

@pytest.mark.xfail(strict=True)
def test_known_fault():
    assert False
"""


def test_night_goes_on_after_a_failure_and_a_hang(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_made.py").write_text(TESTS)
    child = tmp_path / "child"
    parts = [
        Part("hangs", 1, command=f"sleep 600 & echo $! > {child}; wait"),
        Part("fails", 60, command="exit 3"),
        Part("tests", 60, f"-q -p no:cacheprovider -c {os.devnull} --rootdir {tmp_path} {tmp_path}"),
        Part("seeded", 60, command='test "$DEXORDER_TEST_SEED" = 17'),
    ]
    to = tmp_path / "nightly.md"
    assert not run_parts(parts, "17", to)
    text = to.read_text()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    assert {row[0]: row[2] for row in cells[2:6]} == {
        "hangs": "stopped at its limit",
        "fails": "failed (exit code 3)",
        "tests": "failed (exit code 1)",
        "seeded": "passed",
    }
    assert {row[0].partition("::")[2]: row[2] for row in cells[8:]} == {
        "test_good": "passed",
        "test_bad": "failed",
        "test_left_out": "skipped",
        "test_without_its_fixture": "failed",
        "test_known_fault": "expected failure",
    }
    assert "seed 17" in text and text in capfd.readouterr().out
    stopped = Path("/proc") / child.read_text().strip()
    deadline = time.monotonic() + 60
    while stopped.exists() and "Z (zombie)" not in (stopped / "status").read_text():
        assert time.monotonic() < deadline, "a process of the part that hung still runs"
        time.sleep(0.01)


def test_failures_and_the_slowest_of_many_tests_are_shown() -> None:
    tests = [EndedTest(f"t{n}", float(n), "failed" if n == 5 else "passed") for n in range(FEW + 1)]
    text = page("a night", "facts", [PartResult("part", 9.0, "failed (exit code 1)", tests)], 540.0)
    assert text.count("\n| t") == 1 + 1 + SLOWEST  # the head, the failure, the slowest
    assert "| t5 | 5.0 | failed |" in text and f"{FEW - SLOWEST} more tests passed" in text


def test_results_of_a_part_that_ran_no_test(tmp_path: Path) -> None:
    assert read_results(tmp_path / "none") == []


def test_limits_of_each_lane_add_up_to_at_most_four_hours() -> None:
    for lane in Lane:
        assert 0 < sum(part.limit_seconds for part in PARTS if part.lane is lane) <= 4 * 3_600


def test_lanes_run_at_once_and_the_output_of_the_computing_one_comes_at_its_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    met = tmp_path / "met"
    other = f"until test -e {met}-{{}}; do sleep 0.01; done"
    parts = [
        Part("suite", 60, command=f"touch {met}-suite; {other.format('computing')}; nice"),
        Part("computes", 60, command=f"touch {met}-computing; {other.format('suite')}; nice", lane=Lane.COMPUTING),
    ]
    assert run_parts(parts, "17", tmp_path / "nightly.md")
    lines = capfd.readouterr().out.splitlines()
    assert lines[lines.index("== computes: passed") + 1] == "19"
    assert str(os.nice(0)) in lines


def test_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["propertys"]) == 2
    assert "'propertys'" in capsys.readouterr().err
