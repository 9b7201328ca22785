"""Real installations of the wheel, with the ranges of pyproject.toml: each extra, on the oldest and the newest Python.

Both are looked for on this machine.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.paths import ROOT

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800), pytest.mark.xdist_group("installs")]

EXTRAS = tuple(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
USES = {
    "": "from dexorder import AsyncClient, Client, HistoryRequest, Rows; import dexorder.cli, dexorder.udf",
    "events": "from dexorder.events import Publisher",
    "lake": "import dexorder.rows.catalog",
    "sql": "import dexorder.client.sql, duckdb",
    "chart": "import dexorder.charts.html, plotly",
    "otel": "from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter",
    "service": "import dexorder_common.rpc.lifecycle",
    "spark": "import dexorder_spark.source",
    "relay": "import dexorder_relay.server",
    "ingestor": "import dexorder_ingestor.server, dexorder_exchange_sim.server",
    "gateway": "import dexorder_gateway.server",
    "udsource": "import dexorder_udsource.server",
    "driver": "import dexorder_spark.driver",
    "suite": "import dexorder.supervisor.plan, plotly, dexorder_spark.driver, dexorder_relay.server",
}
"""What works after the installation of an extra, the base under ""."""

BUILT_HERE = {"fast"}
"""Extras with a package that is built from this repository (docs/transports.md)."""

CHECKERS = {"mypy": ["-m", "mypy", "--strict"], "pyright": ["-m", "pyright"]}
PROGRAM = """
from dexorder import Client, Rows

with Client("127.0.0.1:50051") as client:
    rows: Rows = client.history("BTC/USDT.SIM", "1h", "-1d")
    client.history(7, "1h", "-1d")  # the planted error
"""


def run(*command: str | Path, folder: Path, cache: Path) -> str:
    """Run a command with nothing of this user around it; return what it printed."""
    environment = {
        "HOME": str(folder),
        "PATH": f"{Path(command[0]).parent}:/usr/local/bin:/usr/bin:/bin",
        "PIP_CACHE_DIR": str(cache),
        "LANG": "C.UTF-8",
    } | {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name.endswith("_proxy")}
    done = subprocess.run(
        command, env=environment, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}"
    return done.stdout


def pythons() -> list[str]:
    """Return the oldest and the newest Python from 3.11 on that this machine has, pyenv's among them."""
    places = [sys.executable, *(f"python3.{minor}" for minor in range(11, 20))]
    places += [str(path) for path in Path.home().glob(".pyenv/versions/3.*/bin/python")]
    found: dict[tuple[int, int], str] = {}
    for place in places:
        program = "import sys, ensurepip; print(*sys.version_info[:2], sys._base_executable)"
        try:
            done = subprocess.run([place, "-c", program], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        major, minor, executable = done.stdout.split(maxsplit=2)
        if (int(major), int(minor)) >= (3, 11):
            found.setdefault((int(major), int(minor)), executable.strip())
    return [found[version] for version in sorted({min(found), max(found)})]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel as ``make wheel`` does, in a copy of what Git knows of."""
    copy = tmp_path_factory.mktemp("a clone")
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    pack = subprocess.run(
        ["tar", "--null", "-T", "-", "-c"], cwd=ROOT, input=files.stdout, capture_output=True, check=True
    )
    subprocess.run(["tar", "-x"], cwd=copy, input=pack.stdout, check=True)
    subprocess.run(["make", "wheel"], cwd=copy, check=True, capture_output=True)
    assert not (copy / ".venv/.setup-done").exists(), "a wheel needs no `make setup`"
    (found,) = (copy / "dist").glob("*.whl")
    return found


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return pip's cache, empty at first: all installations share it."""
    return tmp_path_factory.mktemp("pip")


def installed(python: str, wheel: Path, extra: str, folder: Path, cache: Path) -> Path:
    """Make an environment, install, and return its interpreter."""
    subprocess.run([python, "-m", "venv", folder / "my env"], check=True)
    own = folder / "my env" / "bin" / "python"
    run(
        own, "-m", "pip", "install", "--quiet", f"{wheel}[{extra}]" if extra else str(wheel), folder=folder, cache=cache
    )
    run(own, "-m", "pip", "check", folder=folder, cache=cache)
    return own


def test_each_extra_has_a_use() -> None:
    assert set(USES) == {"", *EXTRAS} - BUILT_HERE


@pytest.mark.parametrize("extra", USES)
@pytest.mark.parametrize("python", pythons(), ids=lambda path: re.sub(r".*?(3\.\d+)[^/]*/bin.*|.*", r"\1", path))
def test_an_extra_installs_and_its_part_starts(
    python: str, extra: str, wheel: Path, cache: Path, tmp_path: Path
) -> None:
    own = installed(python, wheel, extra, tmp_path, cache)
    version = wheel.name.split("-")[1]
    assert run(own.with_name("dexorder"), "--version", folder=tmp_path, cache=cache).split()[-1] == version
    run(own, "-W", "error::SyntaxWarning", "-c", USES[extra], folder=tmp_path, cache=cache)


@pytest.mark.parametrize("checker", CHECKERS)
def test_a_type_checker_finds_the_planted_error_of_a_users_program(
    checker: str, wheel: Path, cache: Path, tmp_path: Path
) -> None:
    own = installed(pythons()[0], wheel, "", tmp_path, cache)
    run(own, "-m", "pip", "install", "--quiet", checker, folder=tmp_path, cache=cache)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [own, *CHECKERS[checker], str(program)],
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{own.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in done.stdout.splitlines() if ": error: " in line or " - error: " in line]
    assert len(errors) == 1 and "program.py:6" in errors[0], done.stdout + done.stderr
