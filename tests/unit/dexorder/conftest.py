"""Fixtures: a scripted relay with a small real Iceberg table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.candle_table import HOURS, Warehouse, make_warehouse
from tests.fakes.relay_server import FakeRelay, Notify, ended, serving


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """A table of thirty candles in two snapshots."""
    return make_warehouse(tmp_path_factory.mktemp("iceberg"))


@pytest.fixture(autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """State folder of the test's user, which lists the suites that run: none, whatever else this machine does."""
    folder = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    return folder


@pytest.fixture
def fake(warehouse: Warehouse, state_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRelay]:
    """A relay whose requests end OK with all thirty candles; DEXORDER_RELAY points to it."""
    for name in ("DEXORDER_CATALOG_NAME", "DEXORDER_CATALOG_URI", "DEXORDER_CATALOG_WAREHOUSE", "DEXORDER_DIR"):
        monkeypatch.delenv(name, raising=False)
    relay = FakeRelay(warehouse.properties, ended(Notify.OK, rows=HOURS, snapshot=warehouse.last_snapshot))
    with serving(relay):
        monkeypatch.setenv("DEXORDER_RELAY", relay.address)
        yield relay


@pytest.fixture
def tmp_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working folder of the test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
