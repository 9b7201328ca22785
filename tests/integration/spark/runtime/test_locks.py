import threading

import pytest

from dexorder_common.clock import ManualClock
from dexorder_spark.runtime.locks import WriterLock


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
