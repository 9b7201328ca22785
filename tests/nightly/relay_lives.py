"""Successive relay processes on one database, for clients of other languages: restarted, restored, killed.

Requests need no ingestor: cancelled, they end and are announced.
"""

from __future__ import annotations

import itertools
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Self

from dexorder_common.rpc.channel import open_sync_channel
from dexorder_common.rpc.relay_stubs import BlockingRelayStubs
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as pb
from tests.nightly.backfills import historical
from tests.rig.oracle import minutes
from tests.rig.processes import ForkedService, free_ports
from tests.unit.services.relay.harness import environment

CLIENT_ID = "languages"
TOPIC = f"RESPONSE:{CLIENT_ID}"
"""Where all requests of the rig are announced."""
CALL_SECONDS = 60.0


class RelayLives:
    """A relay with a fixed address; a context manager that ends it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._port, broker_port = free_ports(2)
        self._environment = environment(folder, self._port, broker_port) | {"DEXORDER_RELAY_DRAIN_SECONDS": "1"}
        self._numbers = itertools.count()
        self._relay = self._started()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._relay.kill()

    @property
    def address(self) -> str:
        """Return its host:port."""
        return f"127.0.0.1:{self._port}"

    def submit(self) -> str:
        """Submit a request of CLIENT_ID and return its id."""
        request = historical(f"request-{next(self._numbers)}", "BTC/USDT", minutes(0, 60))
        request.client_id = CLIENT_ID
        with open_sync_channel(self.address) as channel:
            answer = BlockingRelayStubs(channel).history.SubmitHistorical(request, timeout=CALL_SECONDS).answer
        assert answer.status == ingest_pb2.SubmitResponse.QUEUED, answer
        return request.request_id

    def announce(self, count: int) -> set[str]:
        """Submit requests and cancel them; return their ids, which are announced on TOPIC."""
        ids = {self.submit() for _ in range(count)}
        with open_sync_channel(self.address) as channel:
            for each in ids:
                cancelled = pb.CancelRequestRequest(request_id=each)
                BlockingRelayStubs(channel).history.CancelRequest(cancelled, timeout=CALL_SECONDS)
        return ids

    def backup(self) -> Path:
        """Copy the database, restart the relay, and return the copy."""
        copy = self._folder / "backup.db"
        self._stop()
        with closing(sqlite3.connect(self._database)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        self._relay = self._started()
        return copy

    def restore(self, copy: Path) -> None:
        """Stop the relay, put a copy in the place of its database, and start it."""
        self._stop()
        for file in self._folder.glob(f"{self._database.name}*"):
            file.unlink()
        self._database.write_bytes(copy.read_bytes())
        self._relay = self._started()

    def kill(self) -> None:
        """Send SIGKILL to the relay and start the next one."""
        self._relay.kill()
        self._relay = self._started()

    @property
    def _database(self) -> Path:
        return self._folder / "relay.db"

    def _started(self) -> ForkedService:
        return ForkedService("dexorder_relay", self._folder, self._environment).listening(self.address)

    def _stop(self) -> None:
        assert self._relay.stop() == 0, self._relay.tail()
