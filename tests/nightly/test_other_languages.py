"""The clients in docs/clients, generated, compiled and run with their languages' own tools.

Each requests a history, follows notifications of a relay whose database is restored from an older copy, and makes calls
while the relay is killed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.fakes.candle_table import HOURS, make_warehouse
from tests.fakes.relay_server import FakeRelay, Notify, ended, serving
from tests.nightly.language_client import KILLS, call_killed, follow_restored
from tests.nightly.relay_lives import RelayLives
from tests.paths import ROOT
from tests.rig.report import print_campaign

CLIENTS = ROOT / "docs" / "clients"
RANGE = ("3600", "2024-01-01T00:00:00Z", "2024-01-02T00:00:00Z")
PLUGINS = (
    "google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12",
    "google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2",
)
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1_800)]


@pytest.fixture
def relay(tmp_path: Path) -> FakeRelay:
    warehouse = make_warehouse(tmp_path)
    return FakeRelay(warehouse.properties, ended(Notify.OK, rows=HOURS, snapshot=warehouse.last_snapshot))


def run(*arguments: str, folder: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program; its output is in the failure if it ends with an error."""
    environment = dict(os.environ)
    if path is not None:
        environment |= {"GOBIN": str(path), "PATH": f"{path}{os.pathsep}{environment['PATH']}"}
    return subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, timeout=1_700)


def need(*arguments: str, folder: Path, path: Path | None = None) -> None:
    found = run(*arguments, folder=folder, path=path)
    assert found.returncode == 0, f"{arguments}: {found.stdout}{found.stderr}"


def check(fake: FakeRelay, *program: str, folder: Path) -> None:
    """Run a client in each way, and print what it saw."""
    started_s = time.monotonic()
    check_history(fake, *program, folder=folder)
    with RelayLives(folder / "restored") as relay:
        restored = follow_restored(relay, *program, folder=folder)
    with RelayLives(folder / "killed") as relay:
        killed = call_killed(relay, *program, folder=folder)
    print_campaign(
        f"docs/clients/{folder.name}: the relay's database restored from an older copy; kill -9 of the relay",
        ["resets", "announced", "missed", "kills", "calls", "failed calls", "repeats by the program"],
        [*restored, KILLS, *killed],
        since_s=started_s,
    )
    assert (restored.resets, restored.missed) == (1, 0)
    assert killed.failed == 0


def check_history(fake: FakeRelay, *program: str, folder: Path) -> None:
    """Run a client twice: the history is there, and the request is refused."""
    with serving(fake):
        arguments = (fake.address, "history", "BTC/USDT.SIM", *RANGE)
        answer = run(*program, *arguments, folder=folder)
        assert (answer.returncode, answer.stdout.strip()) == (0, f"OK: {HOURS} rows in trading.ohlc"), answer.stderr
        fake.refuse = "ticker 'BTC/USDT.SIM' is unknown"
        refused = run(*program, *arguments, folder=folder)
        assert refused.returncode != 0
        assert f"INVALID: {fake.refuse}" in refused.stderr


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
def test_the_go_client(relay: FakeRelay, tmp_path: Path) -> None:
    folder, path = copy("go", tmp_path), tmp_path / "bin"
    for plugin in PLUGINS:
        need("go", "install", plugin, folder=tmp_path, path=path)
    protos = ("../../../protos", "--path", "../../../protos/dexorder")
    need("buf", "generate", *protos, "--include-imports", "--template", "buf.gen.yaml", folder=folder, path=path)
    shutil.copy(ROOT / "protos" / "service_config.json", folder)
    need("go", "mod", "init", "dexorder.com/proto", folder=folder / "gen", path=path)
    need("go", "mod", "tidy", folder=folder, path=path)  # the version of Go here may be newer
    need("go", "build", "-o", "client", ".", folder=folder, path=path)
    check(relay, "./client", folder=folder)


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_the_typescript_client(relay: FakeRelay, tmp_path: Path) -> None:
    folder = copy("typescript", tmp_path)
    need("npm", "install", "--no-audit", "--no-fund", "--no-package-lock", folder=folder)
    need("npm", "run", "-s", "stubs", folder=folder)
    need("npm", "run", "-s", "build", folder=folder)
    check(relay, "npm", "start", "-s", "--", folder=folder)


@pytest.mark.skipif(shutil.which("cargo") is None, reason="Rust is not installed")
def test_the_rust_client(relay: FakeRelay, tmp_path: Path) -> None:
    folder = copy("rust", tmp_path)
    need("cargo", "build", folder=folder)
    check(relay, os.environ.get("CARGO_TARGET_DIR", "target") + "/debug/dexorder-example", folder=folder)
