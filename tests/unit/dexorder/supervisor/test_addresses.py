"""Address of the local suite for clients that are given none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dexorder.errors import DexorderError
from dexorder.supervisor.state import (
    EVENTS_FAST,
    RELAY,
    SPARK,
    PartState,
    SuiteState,
    address_of,
    find_directory,
    register,
    write_state,
)


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    for name in ("DEXORDER_DIR", RELAY.variable, SPARK.variable, EVENTS_FAST.variable):
        monkeypatch.delenv(name, raising=False)


def suite(directory: Path, port: int, *, pid: int | None = None, registered: bool = True) -> Path:
    directory.mkdir()
    ports = {"relay": {"relay": f"127.0.0.1:{port}"}, "spark": {"spark": f"127.0.0.1:{port + 1}"}}
    ports["gateway"] = {"events_sub": f"127.0.0.1:{port + 2}"}
    parts = {name: PartState("", "", ports=own) for name, own in ports.items()}
    write_state(directory, SuiteState(pid or os.getpid(), "", f"127.0.0.1:{port}", parts))
    if registered:
        register(port, directory)
    return directory


def test_an_address_that_is_given_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite(tmp_path / "dexorder-data", 20_000)
    monkeypatch.setenv(RELAY.variable, "relay.example:1")
    assert address_of(RELAY, "here.example:2") == "here.example:2"
    assert address_of(RELAY, None) == "relay.example:1"
    assert address_of(SPARK, None) == "127.0.0.1:20001"
    assert address_of(EVENTS_FAST, None) == "tcp://127.0.0.1:20002"


def test_the_suite_of_this_folder_is_before_others(tmp_path: Path) -> None:
    suite(tmp_path / "dexorder-data", 20_000, registered=False)
    suite(tmp_path / "other", 30_000)
    assert address_of(RELAY, None) == "127.0.0.1:20000"


def test_the_only_suite_is_found_from_any_folder(tmp_path: Path) -> None:
    other = suite(tmp_path / "other", 30_000)
    suite(tmp_path / "dead", 40_000, pid=2**22 + 1)
    assert (address_of(RELAY, None), address_of(SPARK, None)) == ("127.0.0.1:30000", "127.0.0.1:30001")
    assert find_directory(None, None) == other


def test_of_several_the_default_ports_are_chosen_or_the_user_is_asked(tmp_path: Path) -> None:
    suite(tmp_path / "one", 20_000)
    suite(tmp_path / "two", 30_000)
    with pytest.raises(DexorderError, match=r"several suites run here: set DEXORDER_RELAY .*20000, 127\.0\.0\.1:30000"):
        address_of(RELAY, None)
    suite(tmp_path / "three", 50_051)
    assert address_of(RELAY, None) == RELAY.default


def test_without_a_suite_the_default_ports(tmp_path: Path) -> None:
    (tmp_path / "dexorder-data").mkdir()
    (tmp_path / "dexorder-data" / "suite.json").write_text("{")
    assert address_of(RELAY, None) == RELAY.default
