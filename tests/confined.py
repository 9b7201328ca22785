"""Processes as in a pod of the restricted policy: another user, no capabilities, a read-only root file system.

``confined.sh`` makes every file system of this machine read-only in a mount name space, and hides /root, /home and /tmp
behind empty ones. It needs root, and a kernel that permits it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.paths import ROOT

UID = 10_001
"""User of the images."""
_SCRIPT = ROOT / "tests" / "confined.sh"
_TOOLS = ("unshare", "setpriv", "findmnt")


def confined(command: Sequence[str], *, writable: Sequence[Path] = (), readable: Sequence[Path] = ()) -> list[str]:
    """Return a command that becomes ``command``, confined.

    Args:
        writable: Folders of the user that it may write; it also has an empty ``/tmp`` of its own.
        readable: Folders that it may read besides the checkout and Python, in case they are in a hidden one.
    """
    python = [ROOT, Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()]
    folders = [*(f"ro:{each}" for each in (*python, *readable)), *(f"rw:{each}" for each in writable)]
    return ["unshare", "--mount", "--propagation", "private", "bash", str(_SCRIPT), str(UID), *folders, "--", *command]


def own_folder(path: Path) -> Path:
    """Create a folder that belongs to the confined user."""
    path.mkdir(parents=True)
    os.chown(path, UID, UID)
    return path


def skip_unless_possible() -> None:
    """Skip the test with the reason why this machine can't confine a process, if it can't."""
    if os.geteuid() != 0:
        pytest.skip("only root can make the root file system read-only for a process")
    if missing := [name for name in _TOOLS if shutil.which(name) is None]:
        pytest.skip(f"{', '.join(missing)} of util-linux is not installed")
    tried = subprocess.run(confined(["true"]), capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"the kernel does not permit it: {tried.stderr.strip()}")
