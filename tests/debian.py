"""Installation of Debian packages that tests need and a fresh machine lacks."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path


def ensure_installed(package: str, find: Callable[[], Path | None]) -> Path | None:
    """Return the path that ``find`` returns; if it returns None, install the package first, as far as we may.

    Workers of one test run call this at the same time, and apt-get fails while another process holds its lock, so they
    take turns.
    """
    found = find()
    if found is None and shutil.which("apt-get") and os.geteuid() == 0:
        with (Path(tempfile.gettempdir()) / "dexorder-apt.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            found = find()
            if found is None:
                _install(package)
                found = find()
    return found


def _install(package: str) -> None:
    # in this run level a package does not start its own server
    quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    wait = ["-o", "DPkg::Lock::Timeout=300"]  # for others than us
    for command in (["update"], ["install", "-y", "--no-install-recommends", package]):
        subprocess.run(["apt-get", *wait, *command], env=quiet, check=True, stdout=subprocess.DEVNULL)
