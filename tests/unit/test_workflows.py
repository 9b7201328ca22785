"""The workflows only call targets of the Makefile, on pinned actions, and cover what a commit and a night must pass."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.nightly.__main__ import PAGE, PARTS, Lane
from tests.paths import ROOT

WORKFLOWS = {path.stem: path for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))}
TARGETS = re.compile(r"^([a-z-]+):", re.M)
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}")


def jobs(path: Path) -> dict[str, dict[str, Any]]:
    loaded: dict[str, dict[str, Any]] = yaml.safe_load(path.read_text())["jobs"]
    return loaded


def steps(path: Path) -> Iterator[dict[str, Any]]:
    for job in jobs(path).values():
        yield from job["steps"]


def called(path: Path) -> list[str]:
    """Return the make targets of a workflow, in order."""
    lines = [step["run"] for step in steps(path) if "run" in step]
    assert lines and all(re.fullmatch(r"make [a-z-]+", line) for line in lines), lines
    return [line.removeprefix("make ") for line in lines]


def test_there_is_a_workflow_for_each_gate() -> None:
    found = {name: called(path) for name, path in WORKFLOWS.items()}
    assert found == {"check": ["check"], "test": ["test", "smoke"], "nightly": ["nightly"], "wheels": ["wheel"]}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_each_step_is_a_target_that_exists(name: str) -> None:
    assert set(called(WORKFLOWS[name])) <= set(TARGETS.findall((ROOT / "Makefile").read_text()))


@pytest.mark.parametrize("name", WORKFLOWS)
def test_actions_are_pinned_and_tokens_only_read(name: str) -> None:
    path = WORKFLOWS[name]
    used = [step["uses"] for step in steps(path) if "uses" in step]
    assert used and all(PINNED.fullmatch(each) for each in used), used
    assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}
    assert all(re.search(r"@[0-9a-f]{40} # v\d", line) for line in path.read_text().splitlines() if "uses:" in line)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_each_job_ends_and_names_no_machine(name: str) -> None:
    path = WORKFLOWS[name]
    assert all(job["timeout-minutes"] for job in jobs(path).values())
    assert not re.search(r"https?://|/(?:work|home)/|localhost", path.read_text())


def test_a_night_has_time_for_the_limits_of_all_parts_and_keeps_its_page() -> None:
    ((_, job),) = jobs(WORKFLOWS["nightly"]).items()
    for lane in Lane:
        assert job["timeout-minutes"] * 60 > sum(part.limit_seconds for part in PARTS if part.lane is lane)
    assert PAGE.relative_to(ROOT).as_posix() in [
        step["with"]["path"] for step in job["steps"] if "path" in step.get("with", {})
    ]
