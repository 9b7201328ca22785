"""Runs breaks of guarantees and limits: small changes of the code that the test named in their row must notice.

``breaks.toml`` has at least one for each row of GUARANTEES.md, and ``limit_breaks.toml`` for each row of
docs/limits.toml. ``python -m tests.breaks`` applies each of them alone in a copy of the tree, runs its test there, and
prints a table; words select those whose row, file or test contains one of them (``limit:`` selects the limits). All
tests run first on the unbroken copy: a test that fails there shows nothing, so its breaks do not run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.paths import ROOT

BREAKS = ROOT / "tests" / "breaks.toml", ROOT / "tests" / "limit_breaks.toml"
LIMITS = ROOT / "docs" / "limits.toml"
SOURCES = (
    ".",
    *(f"services/{each}" for each in ("common", "relay", "ingestor", "udsource", "gateway", "exchange_sim")),
    "spark",
)
"""Folders on the path of Python, before the installed package."""
TIERS = ("unit", "integration", "conformance", "smoke")
GATE = "not nightly and not soak"
"""Examples of a test that run first; if they notice nothing, those of the night run."""
TIMEOUT_SECONDS = 900
"""Limit of a run; a test has a shorter one of its own, after which it fails."""


@dataclass(frozen=True, slots=True)
class Break:
    """A change of one file.

    Attributes:
        row: Boundary and guarantee of the row of GUARANTEES.md, or ``limit`` and a resource of docs/limits.toml, joined
            by a colon.
        text: Stands once in the file.
        test: Test of the row that must fail, as the row names it.
    """

    row: str
    file: str
    text: str
    replacement: str
    test: str

    def fails_in(self, lines: Sequence[str]) -> bool:
        """Return whether pytest's lines say that its test has failed."""
        return any(re.search(rf" tests/{re.escape(self.test)}(\[| |$)", each) for each in lines)

    def apply(self, tree: Path) -> None:
        """Write the broken file.

        Raises:
            ValueError: The text does not stand exactly once in the file.
        """
        path = tree / self.file
        content = path.read_text()
        if (count := content.count(self.text)) != 1:
            raise ValueError(f"{self.file} has {count} times, not once: {self.text!r}")
        path.write_text(content.replace(self.text, self.replacement))


def read_breaks() -> list[Break]:
    """Return all breaks, those of fast tests first."""
    found = [Break(**each) for path in BREAKS for each in tomllib.loads(path.read_text())["break"]]
    return sorted(found, key=lambda each: TIERS.index(each.test.partition("/")[0]))


def rows() -> dict[str, list[str]]:
    """Return the tests of each row of GUARANTEES.md and of docs/limits.toml."""
    limits = tomllib.loads(LIMITS.read_text())["limit"]
    found = {f"limit: {each['resource']}": [each["test"], *each.get("further", [])] for each in limits}
    for line in (ROOT / "tests" / "GUARANTEES.md").read_text().splitlines():
        if tests := re.findall(r"`([\w/]+\.py::\w+)`", line):
            boundary, guarantee = line.strip("| ").split(" | ")[:2]
            found[f"{boundary}: {guarantee}"] = tests
    return found


@contextmanager
def copied_tree() -> Iterator[Path]:
    """Copy what Git knows or would add; packages and jars are those of this tree."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout.decode()
    with tempfile.TemporaryDirectory(prefix="dexorder-breaks-") as folder:
        tree = Path(folder) / "tree"
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, tree / name)
        (tree / ".venv").symlink_to(ROOT / ".venv")
        yield tree


def run_tests(tree: Path, tests: Sequence[str], *options: str, marks: str = GATE) -> tuple[int | None, str]:
    """Run tests in a copy; return pytest's exit status, None after the limit, and what it printed."""
    path = os.pathsep.join(str(tree / each) for each in SOURCES)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", "-m", marks, *options]
    limit = TIMEOUT_SECONDS * len(tests)
    process = subprocess.Popen(
        [*command, *(f"tests/{each}" for each in tests)],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        said, _ = process.communicate()
        return None, said
    return process.returncode, said


def reason(said: str) -> str:
    """Return the line in which pytest says why a test failed."""
    told = re.findall(r"^E  +(\S.*)$", said, re.MULTILINE) or re.findall(r"^[ |]*(\w+Error\b.*)$", said, re.MULTILINE)
    return (told[0] if told else said.strip().rpartition("\n")[2])[:110]


def failing(tree: Path, tests: Sequence[str]) -> list[str]:
    """Return what pytest says of tests that fail on the unbroken copy; those of the night alone are not run."""
    status, said = run_tests(tree, tests)
    if status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return []
    return re.findall(r"^(?:FAILED|ERROR) .*$", said, re.MULTILINE) or [said[-2_000:]]


def judge(tree: Path, each: Break) -> tuple[str, str]:
    """Apply a break, run its test, and take it back; return the verdict and its reason."""
    path = tree / each.file
    content, times = path.read_bytes(), path.stat()
    each.apply(tree)
    try:
        status, said = run_tests(tree, [each.test], "-x")
        if is_of_the_night := status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            status, said = run_tests(tree, [each.test], "-x", marks="nightly and not soak")
    finally:
        path.write_bytes(content)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # so that no compiled file of the break is used
    verdicts = {0: "NOT NOTICED", 1: "at night" if is_of_the_night else "noticed", 5: "NOT NOTICED", None: "HANGS"}
    return verdicts.get(status, "NOT RUN"), reason(said)


def main(words: Sequence[str]) -> int:
    """Run the breaks; return how many their tests have not noticed."""
    chosen = [
        each
        for each in read_breaks()
        if not words or any(word in f"{each.row} {each.file} {each.test}" for word in words)
    ]
    bad = 0
    with copied_tree() as tree:
        tests = list(dict.fromkeys(each.test for each in chosen))
        print(f"{len(tests)} tests on the unbroken tree", flush=True)
        if found := failing(tree, tests):
            print(*found, sep="\n", flush=True)
            if not any(each.fails_in(found) for each in chosen):
                return len(found)  # they have not run
        for number, each in enumerate(chosen, 1):
            started = time.monotonic()
            unbroken = "NOT RUN", "its test fails on the unbroken tree"
            verdict, why = unbroken if each.fails_in(found) else judge(tree, each)
            bad += verdict not in ("noticed", "at night")
            seconds = time.monotonic() - started
            print(
                f"{number:3}/{len(chosen)} {verdict:11} {seconds:6.1f} s  {each.row}\n{'':28}{each.file}: {why}",
                flush=True,
            )
    print(f"{len(chosen) - bad} of {len(chosen)} breaks noticed")
    return bad


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 100))
