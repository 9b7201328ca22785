import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from services.common.model.errors import Conflict
from spark.runtime.checkpoint_lock import CheckpointLock


def test_a_second_driver_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    checkpoint = str(tmp_path / "checkpoint")
    with CheckpointLock(checkpoint), pytest.raises(Conflict, match="another driver"):
        CheckpointLock(checkpoint).__enter__()
    with CheckpointLock(f"file://{checkpoint}"):
        pass


def test_a_living_jvm_of_the_driver_before_is_waited_for(tmp_path: Path) -> None:
    checkpoint = str(tmp_path / "checkpoint")
    fake_java = tmp_path / "java"
    fake_java.symlink_to(Path(sys.executable).resolve())
    with subprocess.Popen([str(fake_java), "-c", "input()"], stdin=subprocess.PIPE) as jvm:
        while "java" not in Path(f"/proc/{jvm.pid}/comm").read_text():  # Popen returns a moment before the name changes
            time.sleep(0.01)
        with CheckpointLock(checkpoint) as guard:
            guard.record_jvm(jvm.pid)
        with pytest.raises(Conflict, match=f"process {jvm.pid}"):
            CheckpointLock(checkpoint, timeout_seconds=0).__enter__()
        jvm.communicate(b"\n")
    with CheckpointLock(checkpoint, timeout_seconds=0) as guard:
        guard.record_jvm(os.getpid())
    with CheckpointLock(checkpoint, timeout_seconds=0):
        assert Path(f"{checkpoint}.lock").read_text() == str(os.getpid()), "not a JVM, so not waited for"


def test_a_checkpoint_elsewhere_is_not_guarded() -> None:
    with CheckpointLock("s3a://bucket/checkpoint") as guard:
        guard.record_jvm(1)
