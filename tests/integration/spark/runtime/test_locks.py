import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from services.common.clock import ManualClock
from services.common.model.errors import Conflict
from spark.runtime.locks import WriterLock, checkpoint_lock


def test_a_waiting_batch_precedes_the_next_step_and_both_never_run_together() -> None:
    writer_lock, order, first_step, go = WriterLock(), list[str](), threading.Event(), threading.Event()
    inside = threading.Semaphore(1)

    def work(name: str) -> None:
        assert inside.acquire(blocking=False), "two at once"
        order.append(name)
        if name == "step 1":
            first_step.set()
            assert go.wait(60)
        inside.release()

    def steps() -> None:
        for n in (1, 2):
            with writer_lock.step():
                work(f"step {n}")

    def batch() -> None:
        with writer_lock.batch():
            work("batch")

    maintaining = threading.Thread(target=steps)
    maintaining.start()
    assert first_step.wait(60)
    batching = threading.Thread(target=batch)
    batching.start()
    while writer_lock.idle_ns():  # until the batch waits
        threading.Event().wait(0.001)
    go.set()
    for thread in (maintaining, batching):
        thread.join(60)
    assert order == ["step 1", "batch", "step 2"]


def test_a_failed_batch_and_a_failed_step_give_their_turn_back() -> None:
    writer_lock = WriterLock()
    for turn in (writer_lock.batch, writer_lock.step) * 2:
        with pytest.raises(ZeroDivisionError), turn():
            raise ZeroDivisionError


def test_it_is_quiet_from_the_end_of_the_last_batch() -> None:
    clock = ManualClock()
    writer_lock = WriterLock(clock)
    clock.advance(5)
    assert writer_lock.idle_ns() == 5
    with writer_lock.batch():
        clock.advance(5)
        assert writer_lock.idle_ns() == 0
    clock.advance(3)
    assert writer_lock.idle_ns() == 3
    with writer_lock.step():
        assert writer_lock.idle_ns() == 3


def test_a_second_driver_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    checkpoint = str(tmp_path / "checkpoint")
    with checkpoint_lock(checkpoint), pytest.raises(Conflict, match="another driver"):
        checkpoint_lock(checkpoint).__enter__()
    with checkpoint_lock(f"file://{checkpoint}"):
        pass


def test_a_driver_waits_for_the_end_of_the_previous_jvm(tmp_path: Path) -> None:
    checkpoint = str(tmp_path / "checkpoint")
    fake_java = tmp_path / "java"
    fake_java.symlink_to(Path(sys.executable).resolve())
    with subprocess.Popen([str(fake_java), "-c", "input()"], stdin=subprocess.PIPE) as jvm:
        while "java" not in Path(f"/proc/{jvm.pid}/comm").read_text():  # Popen returns a moment before the name changes
            time.sleep(0.01)
        with checkpoint_lock(checkpoint) as record_jvm:
            record_jvm(jvm.pid)
        with pytest.raises(Conflict, match=f"process {jvm.pid}"):
            checkpoint_lock(checkpoint, timeout_seconds=0).__enter__()
        jvm.communicate(b"\n")
    with checkpoint_lock(checkpoint, timeout_seconds=0) as record_jvm:
        record_jvm(os.getpid())
    with checkpoint_lock(checkpoint, timeout_seconds=0):
        assert Path(f"{checkpoint}.lock").read_text() == str(os.getpid()), "not a JVM, so not waited for"


def test_a_checkpoint_outside_local_files_is_not_locked() -> None:
    with checkpoint_lock("s3a://bucket/checkpoint") as record_jvm:
        record_jvm(1)
