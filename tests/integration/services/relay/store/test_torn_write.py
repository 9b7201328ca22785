"""Torn write after a power cut: the relay starts again with everything it had answered."""

from __future__ import annotations

import random
import signal
from pathlib import Path
from typing import Any

import pytest

from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from tests.unit.services.relay.harness import free_port, relay_process, request

ANSWERED = 30
FRAME = 24 + 4096
"""Bytes of a frame in SQLite's WAL."""


def torn(wal: Path, how: str) -> None:
    """Return log content after the last complete transaction."""
    sound = wal.read_bytes()
    whole = sound[: len(sound) - (len(sound) - 32) % FRAME]
    last = bytearray(whole[-FRAME:])
    match how:
        case "half a frame":
            tail = bytes(last[: FRAME // 2])
        case "a frame of noise":
            tail = random.Random(1).randbytes(FRAME)
        case _:  # a page of zeros with the header of a frame
            tail = bytes(last[:24]) + bytes(4096)
    wal.write_bytes(whole + tail)


def submit(stub: Any, numbers: range) -> set[Any]:
    return {
        stub.history.SubmitHistorical(
            request(f"r{n}", n * 10, n * 10 + 10), timeout=60, wait_for_ready=True
        ).answer.status
        for n in numbers
    }


@pytest.mark.parametrize(
    "how",
    [
        "half a frame",
        pytest.param("a frame of noise", marks=pytest.mark.nightly),
        pytest.param("zeros", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.smoke
def test_torn_end_of_the_log_loses_nothing_that_was_answered(tmp_path: Path, how: str) -> None:
    port = free_port()
    with relay_process(tmp_path, port) as (first, stub):
        assert submit(stub, range(ANSWERED)) == {ingest.SubmitResponse.QUEUED}
        first.send_signal(signal.SIGKILL)
    (wal,) = (path for path in tmp_path.rglob("*-wal") if path.name.startswith("relay"))
    assert wal.stat().st_size > FRAME
    torn(wal, how)
    with relay_process(tmp_path, port) as (_, stub):
        assert submit(stub, range(ANSWERED)) == {ingest.SubmitResponse.DUPLICATE}
        assert submit(stub, range(ANSWERED, ANSWERED + 5)) == {ingest.SubmitResponse.QUEUED}
