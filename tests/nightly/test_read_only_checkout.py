"""A checkout that its user can't write: make says so, and the installed command runs in the user's own folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.confined import confined, own_folder, skip_unless_possible
from tests.paths import ROOT
from tests.rig.processes import until

pytestmark = pytest.mark.nightly


def words(*command: str, home: Path) -> list[str]:
    """Return the confined command of a user with this home."""
    return confined(["env", f"HOME={home}", *command], writable=[home])


def refused(*command: str, home: Path) -> str:
    """Return what a command prints that must fail."""
    done = subprocess.run(
        words(*command, home=home), cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode in (1, 2), done
    return done.stdout + done.stderr


def test_make_says_that_it_can_not_write_the_checkout(tmp_path: Path) -> None:
    skip_unless_possible()
    said = refused("make", "-C", str(ROOT), "demo", home=own_folder(tmp_path / "home"))
    assert f"make: {ROOT} cannot be written, and make keeps .venv and its results there" in said
    assert "Traceback" not in said


def test_the_command_of_a_read_only_checkout_runs_in_a_folder_of_the_user(tmp_path: Path) -> None:
    skip_unless_possible()
    home, log = own_folder(tmp_path / "home"), tmp_path / "up.log"
    up = [sys.executable, "-m", "dexorder", "up", "--only", "relay"]
    assert "can't use the folder" in refused(*up, home=home)
    with log.open("w") as output:
        process = subprocess.Popen(
            words(*up, "--dir", str(home / "s"), home=home), cwd=ROOT, stdout=output, stderr=output
        )
    try:
        until(lambda: "] ready: relay" in log.read_text(), 60, log.read_text)
    finally:
        process.terminate()
        process.wait(60)
