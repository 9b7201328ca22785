"""A cut of the power: a folder becomes what its files' fsyncs have put on disk, and nothing else.

``kill -9`` leaves what a process has written in the kernel's memory, so it cannot tell a commit with an fsync from one
without. A C library that processes load (`power_cut.c`) keeps each file as it was at its last fsync; `PowerCut.cut`
puts that in the folder's place. A file in a folder inside it needs the fsync of that folder as well, and of each
folder between them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

import pytest

from tests.paths import ROOT


@lru_cache(maxsize=1)
def library() -> Path:
    """Compile the library once in a process; without a C compiler the test that needs it is skipped."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("a C compiler is needed: gcc or cc")
    made = Path(tempfile.mkdtemp(prefix="dexorder-power-cut-")) / "power_cut.so"
    source = ROOT / "tests" / "rig" / "power_cut.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", made, source, "-ldl"], check=True)
    return made


class PowerCut:
    """A folder whose unsynced writes can be dropped.

    Attributes:
        files: The folder.
    """

    def __init__(self, folder: Path) -> None:
        """Create the folder ``files`` in another one."""
        self.files, self._durable = folder / "files", folder / "durable"
        self._names, self._linked = self._durable / "names", self._durable / "linked"
        for each in (self.files, self._names, self._linked, self._durable / "inodes"):
            each.mkdir(parents=True)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a module of Python that uses the folder; its output is read line by line."""
        env = {
            **os.environ,
            "LD_PRELOAD": str(library()),
            "POWER_CUT_FILES": str(self.files.resolve()),
            "POWER_CUT_DURABLE": str(self._durable.resolve()),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        command = [sys.executable, "-m", *words]
        return subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)

    def cut(self) -> None:
        """Drop what was not synced; no process may use the folder any more."""
        shutil.rmtree(self.files)
        shutil.copytree(self._names, self.files, ignore=self._unlinked)

    def _unlinked(self, folder: str, names: list[str]) -> list[str]:
        """Return the folders whose names no fsync of this one has put on disk."""
        inside = Path(folder).relative_to(self._names)
        return [
            name for name in names if (Path(folder) / name).is_dir() and not (self._linked / inside / name).is_dir()
        ]
