import os
import subprocess
import sys
from pathlib import Path

import pytest

from dexorder import demo
from dexorder.errors import SuiteFailed
from dexorder.supervisor.plan import Ports, SuiteOptions
from dexorder.supervisor.prepare import taken_ports
from dexorder.supervisor.state import PartState, SuiteState, write_state


def test_marked_processes_are_found_until_they_end() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, demo.MARKER: "x1"},
    )  # fmt: skip
    assert child.stdout is not None
    child.stdout.readline()
    assert demo.processes_marked("x1") == [child.pid]
    child.communicate(b"\n")
    assert demo.processes_marked("x1") == []


def test_a_free_block_is_free() -> None:
    assert taken_ports(SuiteOptions(Path(), Ports.from_base(demo.free_base_port()))) == []


def test_a_failing_part_ends_the_wait_with_its_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = SuiteOptions(tmp_path, only=("relay", "sim"))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as suite:
        ready, failing = PartState("a", "b", 1, "ready"), PartState("a", "b", None, "failing", 5, "ended")
        write_state(tmp_path, SuiteState(suite.pid, "now", "r", {"relay": ready, "sim": ready}))
        demo.wait_ready(suite, options)
        write_state(tmp_path, SuiteState(suite.pid, "now", "r", {"relay": ready, "sim": failing}))
        (tmp_path / "logs").mkdir()
        (tmp_path / "logs" / "sim.log").write_text("first\nwhy it died\n")
        with pytest.raises(SuiteFailed, match="sim can't run: ended"):
            demo.wait_ready(suite, options)
        assert "why it died" in capsys.readouterr().err
        suite.kill()
        suite.wait()
        with pytest.raises(SuiteFailed, match="ended with exit code -9"):
            demo.wait_ready(suite, options)
