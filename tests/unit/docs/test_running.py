"""The parts of `tests.documentation` that compare what a block prints with its page."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.documentation.blocks import Block
from tests.documentation.entries import Page, Run
from tests.documentation.interrupted import main as interrupted
from tests.documentation.running import like, refuted
from tests.documentation.session import END
from tests.documentation.shape import differences, shapes, values
from tests.newcomer.tutorial import shell_step
from tests.paths import ROOT

SHAPE = "{a, b: [{c,\n d}] or null, e: `x, y`, f: the same, or null, g: [...], h: {i, ...}}"


def test_shape_of_json() -> None:
    (shape,) = shapes(SHAPE)
    assert set(shape) == {"a", "b", "e", "f", "g", "h"}
    fits = {"a": 1, "b": [{"c": 1, "d": 2}], "e": 1, "f": {"z": 1}, "g": [{"z": 1}], "h": {"i": 1, "z": 2}}
    assert differences(shape, fits) == []
    assert differences(shape, fits | {"b": None}) == []
    other = fits | {"b": [{"c": 1, "x": 2}], "y": 1}
    assert sorted(differences(shape, other)) == ["b.d is not printed", "b.x is not on the page", "y is not on the page"]
    assert differences(shape, {}) == [f"{name} is not printed" for name in "abefgh"]
    assert list(values('{"a": 1}\n[2]\n\n')) == [{"a": 1}, [2]]


def test_commands_continue_after_a_backslash_and_inside_quotes() -> None:
    step = shell_step(["$ a \\", "  b 'c", "  d'", "printed", "$ e"])
    assert (step.code, step.shown) == ("a \\\n  b 'c\n  d'\ne", ["printed"])


@pytest.mark.parametrize(
    ("shown", "printed", "unlike", "is_like"),
    [
        ("row 1  ──── 2026-01-01T00:00:00Z", "row 1  ─────── 2027-01-01T00:00:00Z\n", "", True),
        ("cut off …", "cut off here", "", True),
        ("count 17", "count 18", r"count \d+", True),
        ("count 17", "count 18", "", False),
    ],
)
def test_what_may_differ(shown: str, printed: str, unlike: str, is_like: bool) -> None:
    assert (like(shown, unlike) in like(printed, unlike)) is is_like


def test_an_output_is_refuted_by_a_line_that_it_lacks_and_by_a_pattern() -> None:
    step = shell_step(["$ a", "one", "two |", "three"])
    entry = Run("$ a", apart=r"\|$", prints="four")
    assert refuted(step, entry, "one\nthree\nfour") == []
    assert refuted(step, entry, "one\nthree") == ["four"]
    assert refuted(step, entry, "four") == ["one", "three"]


def test_ctrl_c_ends_a_command_once_it_has_shown_a_text(capfd: pytest.CaptureFixture[str]) -> None:
    endless = "import time; print('begun', flush=True); time.sleep(600)"
    assert interrupted("begun", sys.executable, "-c", endless) == 0
    assert "begun" in capfd.readouterr().out
    assert interrupted("begun", sys.executable, "-c", "print('other')") == 1


def test_programs_of_a_page_share_their_names() -> None:
    programs = ["a = 1", "print(a)", "raise SystemExit"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.documentation.session"],
        input="".join(f'"{each}"\n' for each in programs),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("\n") == ["", f"{END}ran", "1", "", f"{END}ran", "", f"{END}failed", ""]
    assert "SystemExit" in done.stderr


def test_a_page_runs_if_one_of_its_blocks_does() -> None:
    assert Page((Run(""),)).runs and not Page(()).runs
    assert Block("docs/a.md", 7, "", "").place == "docs/a.md:7"
