"""A ZIP of the tree, or a clone without symbolic links, imports and runs without being installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from dexorder_common.packages import PACKAGES, import_roots
from tests.paths import ROOT

IMPORT = """
import importlib, sys
from pathlib import Path

for name in sys.argv[2:]:
    assert Path(importlib.import_module(name).__file__).is_relative_to(sys.argv[1]), name
"""


SAFE: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""Arguments for extraction; without them Python 3.12 warns, and 3.11.3 does not know them."""


def git(*command: str) -> bytes:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("this tree is no checkout of git")
    return subprocess.run(["git", *command], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files of the last commit, as a ZIP has them."""
    folder = tmp_path_factory.mktemp("tree")
    with tarfile.open(fileobj=BytesIO(git("archive", "HEAD", "dexorder", "services", "spark"))) as files:
        for member in files:
            files.extract(member, folder, **SAFE)
    return folder


def test_git_tracks_no_links() -> None:
    """With ``core.symlinks=false`` a link would be a file that contains its target."""
    assert [line for line in git("ls-files", "--stage").splitlines() if line.startswith(b"120000")] == []


@pytest.fixture(scope="module")
def environment(unpacked: Path) -> dict[str, str]:
    """Return an environment in which only the folders above the packages are on the path."""
    roots = [str(unpacked / Path(root).relative_to(ROOT)) for root in import_roots()]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(roots)}


def test_each_package_and_the_settings_of_each_part_are_imported(unpacked: Path, environment: dict[str, str]) -> None:
    settings = [f"{path.parent.name}.config" for path in unpacked.glob("*/*/dexorder_*/config.py")]
    assert len(settings) > 4
    child = [sys.executable, "-P", "-c", IMPORT, str(unpacked), *PACKAGES, *settings]
    subprocess.run(child, cwd=unpacked, env=environment, check=True, timeout=60)


def test_the_command_starts(unpacked: Path, environment: dict[str, str]) -> None:
    command = [sys.executable, "-P", "-m", "dexorder", "--help"]
    ran = subprocess.run(command, cwd=unpacked, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert "history" in ran.stdout
