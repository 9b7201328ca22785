import os
import subprocess
import sys
from pathlib import Path

import pytest

from dexorder.errors import SuiteFailed
from dexorder.supervisor import state
from dexorder.supervisor.state import PartState, SuiteState


@pytest.fixture(autouse=True)
def own_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "registry"))
    monkeypatch.delenv("DEXORDER_DIR", raising=False)
    monkeypatch.delenv("DEXORDER_RELAY", raising=False)
    monkeypatch.chdir(tmp_path)


def test_state_round_trip(tmp_path: Path) -> None:
    suite = SuiteState(7, "now", "127.0.0.1:1", {"sim": PartState("a:1", "http://a:1", pid=8, state="ready")})
    assert state.read_state(tmp_path) is None
    state.write_state(tmp_path, suite)
    assert state.read_state(tmp_path) == suite
    state.remove_state(tmp_path)
    assert state.read_state(tmp_path) is None


def test_truncated_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "suite.json").write_text('{"pid": 1')
    with pytest.raises(SuiteFailed, match=r"suite\.json is not a valid suite state"):
        state.read_state(tmp_path)


def test_suite_is_found_by_folder_then_by_the_relays_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state.register(20_000, tmp_path / "a")
    state.register(50_051, tmp_path / "b")
    assert state.find_directory(None, "127.0.0.1:20000") == tmp_path / "a"
    assert state.find_directory(None, None) == tmp_path / "b"
    assert state.find_directory(tmp_path / "c", "127.0.0.1:20000") == tmp_path / "c"
    monkeypatch.setenv("DEXORDER_RELAY", "127.0.0.1:20000")
    assert state.find_directory(None, None) == tmp_path / "a"
    monkeypatch.setenv("DEXORDER_DIR", str(tmp_path / "d"))
    assert state.find_directory(None, None) == tmp_path / "d"
    assert state.default_directory() == tmp_path / "d"


def test_only_the_owner_removes_its_entry(tmp_path: Path) -> None:
    state.register(20_000, tmp_path / "new")
    state.unregister(20_000, tmp_path / "old")
    assert state.registered(20_000) == tmp_path / "new"
    state.unregister(20_000, tmp_path / "new")
    assert state.registered(20_000) is None


def test_zombie_is_not_alive() -> None:
    assert state.process_alive(os.getpid()) and not state.process_alive(None)
    child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.read()  # returns when the child ends
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not state.process_alive(child.pid)
    child.communicate()
    assert not state.process_alive(child.pid)
