"""The clients in docs/clients, generated, compiled and run with their languages' own tools; and Python's.

Each runs against a whole suite on the simulated exchange: it requests a history, follows notifications while the
relay's database is restored from an older copy and while a proxy resets the stream, and makes calls while the relay is
killed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nightly.language_client import KILLS, RESETS, call_killed, follow_reset, follow_restored
from tests.nightly.suite_lives import SuiteLives
from tests.paths import ROOT
from tests.rig.report import print_campaign

CLIENTS = ROOT / "docs" / "clients"
RANGE = ("3600", "2024-01-01T00:00:00Z", "2024-01-02T00:00:00Z")
PLUGINS = (
    "google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12",
    "google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2",
)
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1_800)]


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SuiteLives]:
    with SuiteLives(tmp_path_factory.mktemp("suite")) as lives:
        yield lives


def run(*arguments: str, folder: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program; its output is in the failure if it ends with an error."""
    environment = dict(os.environ)
    if path is not None:
        environment |= {"GOBIN": str(path), "PATH": f"{path}{os.pathsep}{environment['PATH']}"}
    return subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, timeout=1_700)


def need(*arguments: str, folder: Path, path: Path | None = None) -> None:
    found = run(*arguments, folder=folder, path=path)
    assert found.returncode == 0, f"{arguments}: {found.stdout}{found.stderr}"


def check(suite: SuiteLives, *program: str, folder: Path) -> None:
    """Run a client in each way, and print what it saw."""
    started_s = time.monotonic()
    check_history(suite, *program, folder=folder)
    restored = follow_restored(suite, *program, folder=folder)
    resets = follow_reset(suite, *program, folder=folder)
    killed = call_killed(suite, *program, folder=folder)
    print_campaign(
        f"{folder.name}: the relay's database restored from an older copy; kill -9 of the relay",
        ["resets", "announced", "missed", "streams reset", "kills", "calls", "failed calls", "repeats by the program"],
        [*restored, resets, KILLS, *killed],
        since_s=started_s,
    )
    assert (restored.resets, restored.missed) == (1, 0)
    assert 1 < resets <= RESETS, "a frame may carry several notifications"
    assert killed.failed == 0


def check_history(suite: SuiteLives, *program: str, folder: Path) -> None:
    """Run a client twice: the history is there, and a request is refused."""
    found = run(*program, suite.address, "history", "BTC/USDT.SIM", *RANGE, folder=folder)
    assert (found.returncode, found.stdout.strip()) == (0, "OK: 24 rows in trading.ohlc"), found.stderr
    refused = run(*program, suite.address, "history", "BTC/USDT.NOWHERE", *RANGE, folder=folder)
    assert refused.returncode != 0
    assert "INVALID: " in refused.stderr and "NOWHERE" in refused.stderr


def copy(language: str, tmp_path: Path) -> Path:
    """Return a copy of a client beside a copy of the protos, so that nothing is written into the project."""
    folder = tmp_path / "docs" / "clients" / language
    ignored = shutil.ignore_patterns(
        "gen", "service_config.json", "node_modules", "package-lock.json", "target", "Cargo.lock"
    )
    shutil.copytree(CLIENTS / language, folder, ignore=ignored)
    shutil.copytree(ROOT / "protos", tmp_path / "protos")
    shutil.copy(ROOT / "buf.yaml", tmp_path)  # the modules, of which one imports the other
    return folder


@pytest.mark.skipif(shutil.which("go") is None, reason="Go is not installed")
def test_the_go_client(suite: SuiteLives, tmp_path: Path) -> None:
    folder, path = copy("go", tmp_path), tmp_path / "bin"
    for plugin in PLUGINS:
        need("go", "install", plugin, folder=tmp_path, path=path)
    protos = ("../../../protos", "--path", "../../../protos/dexorder")
    need("buf", "generate", *protos, "--include-imports", "--template", "buf.gen.yaml", folder=folder, path=path)
    shutil.copy(ROOT / "protos" / "service_config.json", folder)
    need("go", "mod", "init", "dexorder.com/proto", folder=folder / "gen", path=path)
    need("go", "mod", "tidy", folder=folder, path=path)  # the version of Go here may be newer
    need("go", "build", "-o", "client", ".", folder=folder, path=path)
    check(suite, "./client", folder=folder)


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_the_typescript_client(suite: SuiteLives, tmp_path: Path) -> None:
    folder = copy("typescript", tmp_path)
    need("npm", "install", "--no-audit", "--no-fund", "--no-package-lock", folder=folder)
    need("npm", "run", "-s", "stubs", folder=folder)
    need("npm", "run", "-s", "build", folder=folder)
    check(suite, "npm", "start", "-s", "--", folder=folder)


@pytest.mark.skipif(shutil.which("cargo") is None, reason="Rust is not installed")
def test_the_rust_client(suite: SuiteLives, tmp_path: Path) -> None:
    folder = copy("rust", tmp_path)
    need("cargo", "build", folder=folder)
    check(suite, os.environ.get("CARGO_TARGET_DIR", "target") + "/debug/dexorder-example", folder=folder)


def test_the_python_client(suite: SuiteLives, tmp_path: Path) -> None:
    folder = tmp_path / "python"
    folder.mkdir()
    check(suite, sys.executable, str(ROOT / "tests" / "nightly" / "python_client.py"), folder=folder)
