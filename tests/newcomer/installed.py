"""The wheel in an environment of its own, with nothing of the checkout or of this user around it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dexorder.setup import config
from dexorder.supervisor.plan import Ports
from tests.confined import confined, own_folder
from tests.paths import ROOT
from tests.rig.processes import free_block, until

READY_SECONDS = 240


def build_wheel(folder: Path) -> Path:
    """Write the project's wheel into a folder."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    copy = folder / "source"  # setuptools writes beside its sources
    for name in ("dexorder", "services", "spark"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, copy / name)
    subprocess.run([*command, "--wheel-dir", str(folder), str(copy)], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


@dataclass(frozen=True)
class Newcomer:
    """User with a home, and an environment with the wheel, whose dependencies are the locked ones.

    ``another`` is a user who can write nothing but the home and ``/tmp``: see `confined`.
    """

    home: Path
    environment_folder: Path
    another: bool = False

    @property
    def python(self) -> Path:
        """Return the environment's interpreter."""
        return self.environment_folder / "bin" / "python"

    def _command(self, *words: str) -> list[str]:
        """Return a command that runs these words in the home, as the user."""
        there = ["env", "-C", str(self.home), *words]
        if not self.another:
            return there
        readable = [self.environment_folder, config.load().cache_dir]
        return confined(there, writable=[self.home], readable=readable)

    def environment(self) -> Mapping[str, str]:
        """Return the variables of a new login, and the cache of jars, whose download is no part of this."""
        path = f"{self.python.parent}:/usr/local/bin:/usr/bin:/bin"
        cache = str(config.load().cache_dir)
        return {"HOME": str(self.home), "PATH": path, "LANG": "C.UTF-8", "COLUMNS": "140", "DEXORDER_CACHE": cache}

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the new user's home; its standard output has the errors as well."""
        return subprocess.run(
            self._command(*command),
            env=self.environment(),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=120,
            check=False,
        )

    @contextmanager
    def suite(self) -> Iterator[None]:
        """Run ``dexorder up`` on free ports until the block ends."""
        log = self.home / "up.log"
        base_port = str(free_block(len(Ports.__annotations__)))
        command = self._command(str(self.python.with_name("dexorder")), "up", "--base-port", base_port)
        with log.open("w") as output:
            process = subprocess.Popen(command, env=self.environment(), stdout=output, stderr=output)
        try:
            until(lambda: "all parts are ready" in log.read_text(), READY_SECONDS, log.read_text)
            yield
        finally:
            process.terminate()
            process.wait(60)


def install(folder: Path, *, another: bool = False) -> Newcomer:
    """Create the environment: the wheel alone, and a path to this environment's packages instead of their download.

    Names of folders have spaces. The environment of another user is in a folder that this user can't write.
    """
    home = own_folder(folder / "another user") if another else folder
    newcomer = Newcomer(home, folder / "my env", another)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(newcomer.environment_folder)], check=True)
    packages = next((newcomer.environment_folder / "lib").glob("python*/site-packages"))
    (packages / "locked.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(newcomer.python), "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--no-index", str(build_wheel(folder))], check=True)
    return newcomer
