"""Environments of the real peers, whose packages conflict with ours."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dexorder.setup import config
from tests.paths import ROOT

MAKE_SECONDS = 900
"""Timeout of download and installation."""


def peer_python(name: str, python_version: str | None = None) -> Path:
    """Return the interpreter of a peer's environment, created on the first call in the project's cache.

    It has exactly what ``requirements/peer-<name>.txt`` locks; another lock gives another environment. Calls at the
    same time, also of other processes, make it once. Run it with ``-I``, so that our packages are not in its way.

    Args:
        name: Of the lock file, for example ``numaflow``.
        python_version: Version that the peer needs, ``3.12``, where ours may be older; the test is skipped without it.
    Raises:
        pytest.fail.Exception: It can't be made; says why.
    """
    lock = ROOT / "requirements" / f"peer-{name.removeprefix('peer-')}.txt"
    try:
        digest = hashlib.sha256(lock.read_bytes()).hexdigest()[:16]
    except FileNotFoundError:
        pytest.fail(f"there is no peer {name}: {lock.name} is missing", pytrace=False)
    folder = config.load().cache_dir / "peers" / f"{lock.stem.removeprefix('peer-')}-{digest}"
    python = folder / "bin" / "python"
    if not python.exists():  # also false if the interpreter behind the link was removed
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _alone(folder.with_suffix(".lock")):
            if not python.exists():
                _make(folder, lock, _interpreter(python_version))
    return python


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    with file.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _interpreter(version: str | None) -> str:
    if version is None:
        return sys.executable
    found = next(_of_pyenv(version), None) or shutil.which(f"python{version}")  # not pyenv's shim
    if found is None:
        pytest.skip(f"Python {version} is not installed")
    return found


def _of_pyenv(version: str) -> Iterator[str]:
    root = os.environ.get("PYENV_ROOT", str(Path.home() / ".pyenv"))
    return iter(list(map(str, sorted(Path(root, "versions").glob(f"{version}.*/bin/python")))))


def _make(folder: Path, lock: Path, interpreter: str) -> None:
    """Create it under another name and rename it, so that a kill leaves nothing incomplete."""
    shutil.rmtree(folder, ignore_errors=True)
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        pytest.fail(f"uv is not beside {sys.executable}: run make setup", pytrace=False)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}.") as half:
        fresh = Path(half) / "environment"
        _run([str(uv), "venv", "--quiet", "--relocatable", "--python", interpreter, str(fresh)], lock)
        sync = [str(uv), "pip", "sync", "--quiet", "--compile-bytecode", "--require-hashes", "--strict"]
        _run([*sync, "--python", str(fresh / "bin" / "python"), str(lock)], lock)
        fresh.rename(folder)


def _run(command: list[str], lock: Path) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=MAKE_SECONDS)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired, OSError) as error:
        output = getattr(error, "stderr", None) or ""
        text = output if isinstance(output, str) else output.decode(errors="replace")
        pytest.fail(f"the environment of {lock.name} can't be made: {error}\n{text[-2000:]}", pytrace=False)
