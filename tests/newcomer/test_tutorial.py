"""The tutorial, word by word, from the wheel."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.confined import skip_unless_possible
from tests.newcomer.installed import Newcomer, install
from tests.newcomer.tutorial import Step, missing, steps
from tests.paths import ROOT

PAGE = ROOT / "docs" / "tutorial.md"


def test_steps_are_the_commands_and_programs_of_a_page() -> None:
    page = "```\n$ a 'b\nc'\nx 1\n\n$ d\n```\n\n```\nmake setup\n```\n\n```python\np()\n```\n"
    assert steps(page) == [Step("shell", "a 'b\nc'\nd", ["x 1", ""]), Step("python", "p()\n", [])]
    assert missing(Step("shell", "d", ["row  2026-01-01T00:00:00Z"]), "row 2027-01-01T00:00:00Z\nmore") == []
    assert missing(Step("shell", "d", ["row 1"]), "row 2") == ["row 1"]


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_the_tutorial_prints_what_it_says(tmp_path: Path) -> None:
    follow(install(tmp_path))


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_another_user_follows_it_with_a_read_only_wheel(tmp_path: Path) -> None:
    skip_unless_possible()
    follow(install(tmp_path, another=True))


def follow(newcomer: Newcomer) -> None:
    """Do what the page says, and compare what is printed."""
    found = steps(PAGE.read_text())
    assert len(found) == 8, "each block is a step"
    with newcomer.suite():
        for step in found:
            shell = ["bash", "-ec", f"trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{step.code}"]
            done = newcomer.run(*(shell if step.language == "shell" else [str(newcomer.python), "-c", step.code]))
            assert missing(step, done.stdout) == [], f"{step.code}\nprinted\n{done.stdout}"
