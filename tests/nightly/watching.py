"""Observers of a campaign while parts are down: the relay's file, notifications, memory, health."""

from __future__ import annotations

import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dexorder.supervisor.orphan_guard import session_members
from dexorder_common.rpc.channel import open_sync_channel
from dexorder_common.rpc.relay_stubs import BlockingRelayStubs
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2
from dexorder_protos.dexorder.relay.v1 import common_pb2
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as pb
from tests.nightly.runner import Loop, resident_bytes
from tests.rig.suite import Suite


@dataclass(frozen=True)
class Unacked:
    """A job that an ingestor works on; ``settled_ns`` of its range is in Kafka."""

    job: int
    job_id: str
    request_id: str
    ticker: str
    start_ns: int
    end_ns: int
    settled_ns: float

    @property
    def in_the_middle(self) -> bool:
        """True if some of its pages are in Kafka and some are not."""
        return 0 < self.settled_ns < self.end_ns - self.start_ns


class RelayFile:
    """Reader of the relay's database, which also works while the relay is down."""

    def __init__(self, suite: Suite) -> None:
        self._path = suite.directory / "relay.db"

    def held(self) -> dict[int, Unacked]:
        """Return the jobs that ingestors hold."""
        rows = self.query(
            "SELECT id, dispatch_id, request_id, ticker, start_ns, end_ns, (SELECT total(r.end_ns - r.start_ns)"
            " FROM ranges r WHERE r.owner = 'job:' || id AND r.kind = 'acked')"
            " FROM jobs WHERE dispatch_id IS NOT NULL AND NOT produced"
        )
        return {row[0]: Unacked(*row) for row in rows}

    def ran_on(self, before: Unacked, settled_ns: float) -> bool:
        """Return whether a job has settled more than ``settled_ns``, or is over."""
        now = self.query(
            "SELECT produced, phase, (SELECT total(r.end_ns - r.start_ns) FROM ranges r"
            " WHERE r.owner = 'job:' || id AND r.kind = 'acked') FROM jobs WHERE id = ?",
            before.job,
        )
        return not now or bool(now[0][0]) or now[0][1] != 1 or now[0][2] > settled_ns

    def covered_ns(self) -> float:
        """Return the total range that Spark has reported as committed, which grows with every batch."""
        return float(self.query("SELECT total(end_ns - start_ns) FROM ranges WHERE kind = 'covered'")[0][0])

    def jobs_of(self, request_id: str) -> int:
        """Return the jobs of a request so far; they are forgotten some time after its end."""
        return int(self.query("SELECT count(*) FROM jobs WHERE request_id = ?", request_id)[0][0])

    def query(self, sql: str, *values: Any) -> list[Any]:
        """Run one query."""
        with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, timeout=30)) as connection:
            return connection.execute(sql, values).fetchall()


class Listener(Loop):
    """Follows a client's notifications by cursor across restarts of the relay; none may reset the stream."""

    PAUSE_S = 0.1

    def __init__(self, suite: Suite, client_id: str) -> None:
        super().__init__()
        self.statuses: defaultdict[str, set[str]] = defaultdict(set)
        """Request -> the statuses announced for it."""
        self._suite = suite
        self._topic = f"RESPONSE:{client_id}"
        self._cursor: common_pb2.Cursor | None = None

    def step(self) -> None:
        self.pause()
        request = pb.WatchNotificationsRequest(topic=self._topic, after=self._cursor)
        with suppress(grpc.RpcError), open_sync_channel(self._suite.relay) as channel:
            # cut every few seconds, so that the end of the campaign and each resume are both met
            for item in BlockingRelayStubs(channel).history.WatchNotifications(request, timeout=5):
                assert not item.HasField("reset"), item
                if not item.HasField("notification"):
                    continue
                note = item.notification.ready
                status = ingest_pb2.HistoryReadyNotification.NotificationStatus.Name(note.status)
                self.statuses[note.request_id].add(status)
                self._cursor = item.notification.cursor


class Addresses(Protocol):
    """Addresses of parts."""

    def address(self, part: str) -> str:
        """Return host:port of a part."""


class HealthPoll(Loop):
    """Polls the health of a part's service, or of the whole part; ``changes`` has (monotonic seconds, SERVING)."""

    PAUSE_S = 0.1

    def __init__(self, address: str, service: str) -> None:
        super().__init__()
        self.changes: list[tuple[float, bool]] = []
        self._address, self._service = address, service

    def step(self) -> None:
        self.pause()
        with open_sync_channel(self._address) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)  # its stubs leave the methods out
            try:
                answer = stub.Check(health_pb2.HealthCheckRequest(service=self._service), timeout=2)
                serving = answer.status == health_pb2.HealthCheckResponse.SERVING
            except grpc.RpcError:
                serving = False
        if not self.changes or self.changes[-1][1] is not serving:
            self.changes.append((time.monotonic(), serving))


class HealthLog(ExitStack):
    """Polls the health of parts, each with the service that is asked for or ""; a context manager."""

    def __init__(self, suite: Addresses, parts: Mapping[str, str]) -> None:
        super().__init__()
        polls = {part: self.enter_context(HealthPoll(suite.address(part), name)) for part, name in parts.items()}
        self.changes = {part: poll.changes for part, poll in polls.items()}

    def serving(self, part: str) -> bool:
        """Return the last health of a part."""
        return bool(self.changes.get(part)) and self.changes[part][-1][1]

    def first(self, part: str, serving: bool, after_s: float) -> float:
        """Return the seconds from a time until the part reported this health for good, 0 if it did so already."""
        if serving and self.changes[part][-1] < (after_s, True) and self.serving(part):
            return 0.0
        at = [when for when, now in self.changes[part] if now is serving and when >= after_s]
        assert at, f"{part} never became {'SERVING' if serving else 'NOT_SERVING'}: {self.changes[part]}"
        return (at[-1] if serving else at[0]) - after_s


class Memory(Loop):
    """Peaks of the resident memory of parts and their children, in MiB.

    Of processes with the same command the largest counts. These are workers, whose number has a limit of its own: Spark
    starts as many as a batch has work for, and ends those that were idle for a minute, as in an outage.
    """

    PAUSE_S = 0.5

    def __init__(self, suite: Suite, parts: tuple[str, ...]) -> None:
        super().__init__()
        self.pids = {part: suite.pid(part) for part in parts}
        self.before = self.now()
        self.peak = dict(self.before)
        self._rose_s = dict.fromkeys(parts, time.monotonic())

    def growth(self, floor: Mapping[str, float]) -> dict[str, float]:
        """Return by part the growth of its peak since the start, or above what it had earlier."""
        return {part: self.peak[part] - max(self.before[part], floor.get(part, 0.0)) for part in self.pids}

    def steady(self, part: str, seconds: float) -> bool:
        """Return whether the part's peak has risen by less than a twentieth at a time for a number of seconds."""
        return time.monotonic() - self._rose_s[part] >= seconds

    def now(self) -> dict[str, float]:
        """Return the memory in MiB by part."""
        return {part: _largest_bytes(session_members(pid)) / (1 << 20) for part, pid in self.pids.items()}

    def step(self) -> None:
        self.pause()
        for part, size in self.now().items():
            if size > self.peak[part] * 1.05:
                self._rose_s[part] = time.monotonic()
            self.peak[part] = max(self.peak[part], size)


def _largest_bytes(pids: Iterable[int]) -> int:
    """Return the resident memory of processes, of those with the same command only the largest one's."""
    largest: dict[bytes, int] = {}
    for pid in pids:
        with suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            largest[command] = max(largest.get(command, 0), resident_bytes(pid))
    return sum(largest.values())
