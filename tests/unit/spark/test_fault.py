import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from spark.config import SparkSettings
from spark.fault import Fault, Moment


def test_the_nth_batch_with_rows_dies_at_its_moment_and_at_no_other() -> None:
    kills: list[int] = []
    fault = Fault.parse("die_after_report:2", lambda: kills.append(1))
    assert fault
    for batch in range(4):
        fault.passed(Moment.ROWS_COMMITTED)
        assert len(kills) == (batch >= 2)
        fault.passed(Moment.REPORTED)
        assert len(kills) == (batch >= 1)


def test_with_a_fuse_only_batches_while_it_is_there_count(tmp_path: Path) -> None:
    kills: list[bool] = []
    fuse = tmp_path / "fuse:1"
    fault = Fault.parse(
        SparkSettings(fault=f"die_before_checkpoint:1:{fuse}").fault, lambda: kills.append(fuse.exists())
    )
    assert fault
    fault.passed(Moment.ROWS_COMMITTED)
    assert kills == []
    fuse.touch()
    fault.passed(Moment.REPORTED)
    fault.passed(Moment.ROWS_COMMITTED)
    assert kills == [False], "removed before the kill, so the next driver lives"


def test_no_fault_is_the_default() -> None:
    assert Fault.parse(SparkSettings().fault, lambda: None) is None


@pytest.mark.parametrize(
    "text", ["die", "die_before_checkpoint", "die_before_checkpoint:0", "die_after_report:-1", "x:1"]
)
def test_a_misspelt_fault_is_refused_at_start(text: str) -> None:
    with pytest.raises(ValidationError, match="fault"):
        SparkSettings(fault=text)


def test_only_the_jvm_and_the_driver_get_sigkill() -> None:
    jvm, bystander = (subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(2))
    driver = subprocess.run(
        [sys.executable, "-c", f"from spark.fault import kill_driver; kill_driver({jvm.pid}); print('alive')"],
        capture_output=True,
    )
    assert (driver.returncode, driver.stdout) == (-signal.SIGKILL, b"")
    assert jvm.wait() == -signal.SIGKILL
    assert bystander.poll() is None
    bystander.communicate(b"\n")
    assert jvm.stdin
    jvm.stdin.close()
