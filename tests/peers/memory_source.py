"""pynumaflow's in-memory source, ``numaflow/memory_source.py``, as a separate process."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dexorder.supervisor.orphan_guard import guarded
from tests.peers.environment import peer_python

PROGRAM = Path(__file__).with_name("numaflow") / "memory_source.py"
START_SECONDS = 120.0


@dataclass(frozen=True)
class MemorySource:
    """Running source.

    Attributes:
        target: Its address for a gRPC client.
    """

    target: str
    process: subprocess.Popen[bytes]
    _report: Path

    def counts(self) -> dict[str, int]:
        """Return the counts ``acked``, ``acks``, ``nacked``, ``unknown``; see the program."""
        counted: dict[str, int] = json.loads(self._report.read_text()) if self._report.exists() else {}
        return {"acked": 0, "acks": 0, "nacked": 0, "unknown": 0} | counted


@contextmanager
def memory_source(
    folder: Path,
    *,
    records: int,
    payload_bytes: int = 0,
    partitions: int = 1,
    redeliver: bool = False,
    tcp: str = "",
    report: bool = True,
) -> Iterator[MemorySource]:
    """Run it for the block.

    Args:
        folder: Gets its socket, server-info file, report and log; it exists.
        tcp: host:port to listen on in place of the socket.
        report: Whether acks are counted in a file; costs a little with each ack.
    """
    socket, info, counts = (folder / name for name in ("source.sock", "sourcer-server-info", "counts.json"))
    info.unlink(missing_ok=True)
    command = [*guarded(), str(peer_python("numaflow")), "-I"]
    command += [str(PROGRAM), "--socket", str(socket.absolute()), "--records", str(records)]
    command += ["--payload-bytes", str(payload_bytes), "--partitions", str(partitions)]
    command += ["--tcp", tcp] if tcp else []
    command += ["--redeliver"] if redeliver else []
    command += ["--report", str(counts)] if report else []
    log_file = folder / "memory-source.log"
    with log_file.open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        until = time.monotonic() + START_SECONDS
        while not info.exists():  # written once it listens
            assert process.poll() is None and time.monotonic() < until, log_file.read_text()[-3000:]
            time.sleep(0.02)
        yield MemorySource(tcp or f"unix:{socket.absolute()}", process, counts)
    finally:
        process.kill()
        process.wait()
