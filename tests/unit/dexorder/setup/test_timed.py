import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT

SCRIPT = ROOT / "dexorder" / "setup" / "timed.py"
UNTIL = """
import pathlib, sys, time
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.01)
sys.exit(int(sys.argv[2]))
"""
QUIET = re.compile(r"--quiet|compileall -q|-m venv|build_http2")


@pytest.mark.parametrize(("status", "end"), [(0, "done"), (7, "failed")])
def test_lines_come_while_a_silent_command_runs_and_its_status_is_kept(status: int, end: str, tmp_path: Path) -> None:
    command = [sys.executable, "-I", str(SCRIPT), "x: doing", sys.executable, "-c", UNTIL]
    with subprocess.Popen(
        [*command, str(tmp_path / "go"), str(status)],
        env={"DEXORDER_TIMED_SECONDS": "0.05"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for _ in range(3):
            assert re.fullmatch(r"\[ *\d+\.\d s\] x: doing \.\.\.\n", process.stdout.readline())
        (tmp_path / "go").touch()
        rest = process.stdout.read().splitlines()
    assert process.returncode == status
    assert re.fullmatch(rf"\[ *\d+\.\d s\] x: doing: {end}", rest[-1])


def test_the_status_of_a_killed_command_is_a_shells() -> None:
    command = [sys.executable, "-I", str(SCRIPT), "x", "sh", "-c", "kill -9 $$"]
    assert subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode == 137


def test_each_silent_command_of_the_first_minutes_is_timed() -> None:
    text = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    recipes = "\n".join(line for line in text.splitlines() if line.startswith("\t"))
    recipes = recipes[: recipes.index("uv pip compile")]  # `make lock` is for maintainers
    silent = [part for line in recipes.splitlines() for part in line.split("&&") if QUIET.search(part)]
    assert len(silent) >= 8
    assert [part for part in silent if "TIMED" not in part and "coverage" not in part] == []
