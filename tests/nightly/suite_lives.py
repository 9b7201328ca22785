"""A whole suite on the simulated exchange, for clients of other languages: its relay is restored from an older copy and
killed, while all other parts keep what they have.
"""

from __future__ import annotations

import itertools
import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Self

from dexorder_common.rpc.channel import open_sync_channel
from dexorder_common.rpc.relay_stubs import BlockingRelayStubs
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2
from tests.nightly.backfills import historical
from tests.rig.oracle import minutes
from tests.rig.processes import free_block
from tests.rig.suite import Suite, running_suite_at

CALL_SECONDS, READY_SECONDS = 60.0, 60.0
CANDLES = 60
"""Of a request; each has another range, so that it is fetched from the exchange."""


class SuiteLives:
    """Successive lives of a suite with a fixed address, in one folder; a context manager that ends it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._base_port = free_block(20)
        self._numbers = itertools.count()
        self._life = ExitStack()
        self._suite: Suite

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._life.close()

    @property
    def address(self) -> str:
        """Return host:port of the relay."""
        return f"127.0.0.1:{self._base_port}"

    def submit(self, client_id: str) -> str:
        """Submit a request, whose end is announced on RESPONSE:{client_id}, and return its id."""
        number = next(self._numbers)
        request = historical(f"request-{number}", "BTC/USDT", minutes(number * CANDLES, CANDLES))
        request.client_id = client_id
        with open_sync_channel(self.address) as channel:
            answer = BlockingRelayStubs(channel).history.SubmitHistorical(request, timeout=CALL_SECONDS).answer
        assert answer.status == ingest_pb2.SubmitResponse.QUEUED, answer
        return request.request_id

    def backup(self) -> Path:
        """Copy the relay's database while it runs, and return the copy; then restart the suite."""
        copy = self._folder / f"backup-{next(self._numbers)}.db"
        with closing(sqlite3.connect(self._database)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        self._life.close()
        self._start()
        return copy

    def restore(self, copy: Path) -> None:
        """Stop the suite, put a copy in the place of the relay's database, and start it."""
        self._life.close()
        for file in self._folder.glob(f"{self._database.name}*"):
            file.unlink()
        self._database.write_bytes(copy.read_bytes())
        self._start()

    def kill(self) -> None:
        """Send SIGKILL to the relay; return when its next process is ready."""
        self._suite.kill_and_wait("relay", READY_SECONDS)

    def wait_ended(self, request_id: str) -> None:
        """Wait until a request has ended."""
        self._suite.ended(request_id)

    @property
    def _database(self) -> Path:
        return self._folder / "relay.db"

    def _start(self) -> None:
        self._suite = self._life.enter_context(running_suite_at(self._base_port, self._folder))
