"""Real peer as a reader: ``numaflow/reader.py`` as a separate process, one call at a time."""

from __future__ import annotations

import base64
import json
import subprocess
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from dexorder.supervisor.orphan_guard import guarded
from tests.peers.environment import peer_python

PROGRAM = Path(__file__).with_name("numaflow") / "reader.py"
ANSWER_SECONDS = 300.0
"""Timeout of one answer."""
Place = tuple[int, int]
"""Partition and offset."""


class Refused(Exception):
    """Failed call.

    Attributes:
        code: Name of its gRPC status.
    """

    def __init__(self, code: str, details: str) -> None:
        super().__init__(f"{code}: {details}")
        self.code = code
        self.details = details


class StreamEnded(Exception):
    """The source has ended the stream."""


@dataclass(frozen=True)
class Record:
    partition: int
    offset: int
    payload: bytes
    keys: list[str]
    headers: dict[str, str]
    event_time_ms: int

    @property
    def place(self) -> Place:
        return self.partition, self.offset


@dataclass(frozen=True)
class Batch:
    """Result of one read. ``code``, ``error`` (None if unset) and ``msg`` are those of its eot."""

    records: list[Record]
    code: str
    error: str | None
    msg: str

    @property
    def places(self) -> list[Place]:
        return [record.place for record in self.records]


class NumaflowReader:
    """Dataplane that has found the source and completed both handshakes; it dies with this process.

    Attributes:
        info: What the server-info file said.
        listened: Whether the socket took a connection as soon as that file was there.
    """

    def __init__(self, socket: Path, log_file: Path) -> None:
        self._log_file = log_file
        with log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [*guarded(), str(peer_python("numaflow")), "-I", str(PROGRAM), "--socket", str(socket)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        try:
            hello = self._answer()
        except BaseException:
            self.kill()
            raise
        self.info: dict[str, Any] = hello["hello"]
        self.listened: bool = hello["listened"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    # ---- calls of a dataplane

    def read(self, most: int, timeout_ms: int = 1_000) -> Batch:
        """Send one request and return its records up to the eot."""
        answer = self._ask("read", most=most, timeout_ms=timeout_ms)
        records = [
            Record(partition, int(offset), base64.b64decode(payload), keys, headers, event_time_ms)
            for partition, offset, payload, keys, headers, event_time_ms in answer["records"]
        ]
        return Batch(records, **answer["status"])

    def collect(self, count: int, most: int = 500) -> list[Record]:
        """Read a number of records without acking them."""
        records: list[Record] = []
        while len(records) < count:
            records += self.read(min(most, count - len(records))).records
        return records

    def ack(self, places: Iterable[Place], *, pad_bytes: int = 0) -> None:
        """Send one AckRequest, however large, and wait for its answer."""
        self._ask("ack", places=_as_text(places), pad_bytes=pad_bytes)

    def nack(self, places: Iterable[Place], *, each: bool = False) -> None:
        """Nack the offsets; ``each`` sends one request per offset."""
        self._ask("nack", places=_as_text(places), each=each)

    def pending(self) -> int:
        return int(self._ask("pending")["pending"])

    def partitions(self) -> tuple[list[int], int]:
        """Return the source's partitions and their total number."""
        answer = self._ask("partitions")
        return answer["partitions"], answer["total"]

    def ready(self) -> bool:
        return bool(self._ask("ready")["ready"])

    def open(self, *, read: bool = True, ack: bool = True) -> None:
        """Open new streams with handshakes."""
        self._ask("open", read=read, ack=ack)

    def drain(self, most: int = 500) -> list[Record]:
        """Read and ack batches until nothing is pending."""
        records: list[Record] = []
        while self.pending() != 0:
            batch = self.read(most, 200)
            if batch.records:
                self.ack(batch.places)
                records += batch.records
        return records

    # ---- ends

    def close(self) -> dict[str, str]:
        """Close both streams from this side; return the status of each by its name, ``read`` and ``ack``."""
        statuses: dict[str, str] = self._ask("close")["closed"]
        self.process.wait(ANSWER_SECONDS)
        return statuses

    def vanish(self) -> None:
        """Send SIGKILL between two calls."""
        self._send("vanish")
        self.process.wait(ANSWER_SECONDS)

    def vanish_in_read(self, most: int, after: int) -> None:
        """Send SIGKILL after ``after`` of the requested records have arrived."""
        self._send("read", most=most, timeout_ms=60_000, vanish_after=after)
        self.process.wait(ANSWER_SECONDS)

    def vanish_in_ack(self, places: Iterable[Place]) -> None:
        """Send SIGKILL after an AckRequest, without waiting for its answer."""
        self._ask("ack", places=_as_text(places), wait=False)
        self.vanish()

    def kill(self) -> None:
        """End the process if it still runs."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):  # a line that was never read
                    pipe.close()

    # ---- lines of JSON

    def _ask(self, do: str, **fields: Any) -> dict[str, Any]:
        self._send(do, **fields)
        return self._answer()

    def _send(self, do: str, **fields: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **fields}) + "\n")
        self.process.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        patience = threading.Timer(ANSWER_SECONDS, self.process.kill)
        patience.start()
        try:
            line = self.process.stdout.readline()
        finally:
            patience.cancel()
        assert line, f"the reader has ended or said nothing in {ANSWER_SECONDS} s\n{self._log_file.read_text()[-3000:]}"
        answer: dict[str, Any] = json.loads(line)
        assert "violation" not in answer, answer["violation"]
        if "error" in answer:
            raise Refused(answer["error"]["code"], answer["error"]["details"])
        if "ended" in answer:
            raise StreamEnded(answer["ended"])
        return answer


def _as_text(places: Iterable[Place]) -> list[tuple[int, str]]:
    return [(partition, str(offset)) for partition, offset in places]
