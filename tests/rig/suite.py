"""A running suite whose parts can be killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa

from dexorder.demo.suite import MARKER, processes_marked
from dexorder.supervisor.plan import Ports
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.model.datasets import CANDLES
from dexorder_common.model.history import RequestRecord, RequestState
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import iso_microseconds
from dexorder_common.rpc.channel import open_sync_channel
from dexorder_common.rpc.client_retry import Failure, is_failure
from dexorder_common.rpc.history_messages import decode_record
from dexorder_common.rpc.relay_stubs import BlockingRelayStubs
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as pb
from tests.paths import ROOT
from tests.rig.processes import free_block, metric_at, until

READY_SECONDS = 300

_READY = re.compile(r"\] (all parts are ready|ready: )")


@dataclass
class Suite:
    """`dexorder up` as a child process."""

    directory: Path
    base_port: int
    process: subprocess.Popen[bytes]
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def relay(self) -> str:
        """Return host:port of the relay."""
        return f"127.0.0.1:{self.base_port}"

    def address(self, part: str) -> str:
        """Return host:port for users of the part."""
        return str(self._part(part)["address"])

    def dexorder(self, *arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Run one command against this suite."""
        return subprocess.run(
            [sys.executable, "-m", "dexorder", *arguments],
            cwd=ROOT,
            env=os.environ | self.environment | {"DEXORDER_RELAY": self.relay, "DEXORDER_DIR": str(self.directory)},
            text=True,
            capture_output=True,
            timeout=timeout,
            check=False,
        )

    def status(self) -> dict[str, Any]:
        """Return the output of `dexorder status --json`."""
        return dict(json.loads(self.dexorder("status", "--json", "--dir", str(self.directory)).stdout or "{}"))

    def pid(self, part: str) -> int:
        """Return the id of the part's process; wait while it is being restarted."""
        until(lambda: self._part(part)["pid"] is not None, 60, self.logs)
        return int(self._part(part)["pid"])

    def kill(self, part: str) -> None:
        """Send SIGKILL to the part; the supervisor restarts it."""
        os.kill(self.pid(part), signal.SIGKILL)

    def kill_and_wait(self, part: str, seconds: float) -> None:
        """Send SIGKILL to the part; return when its next process is ready."""
        old_pid = self.pid(part)
        os.kill(old_pid, signal.SIGKILL)
        until(lambda: self.is_new(part, old_pid), seconds, self.logs)

    @contextmanager
    def frozen(self, part: str) -> Iterator[None]:
        """Stop the part during the block, as its peers see a machine that does not answer."""
        pid = self.pid(part)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def is_new(self, part: str, old_pid: int) -> bool:
        """Return whether the part is ready in a process other than ``old_pid``."""
        state = self._part(part)
        return bool(state["state"] == "ready" and state["pid"] not in (None, old_pid))

    def record(self, request_id: str) -> RequestRecord | None:
        """Return a request's record over a new connection, in one attempt; None if the relay does not answer."""
        try:
            with open_sync_channel(self.relay) as channel:
                answer = BlockingRelayStubs(channel).history.GetRequest(
                    pb.GetRequestRequest(request_id=request_id), timeout=5
                )
        except grpc.RpcError as error:
            if is_failure(error, Failure.UNANSWERED):
                return None
            raise
        return decode_record(answer.record)

    def ended(self, request_id: str, seconds: float = 300) -> RequestRecord:
        """Wait until a request has ended; return its record."""
        found: list[RequestRecord] = []

        def done() -> bool:
            record = self.record(request_id)
            if record is not None and record.state is RequestState.FINISHED:
                found.append(record)
            return bool(found)

        until(done, seconds, self.logs)
        return found[0]

    def exchange(self, path: str, body: Any = None, method: str | None = None) -> Any:
        """Return an answer of the simulated exchange; a call with a body is a POST."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://{self.address('sim')}{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or "null")

    def notifications(self, request_id: str, seconds: float = 3) -> list[str]:
        """Return the distinct statuses that were announced for the request within so many seconds."""
        seen: set[str] = set()
        with open_sync_channel(self.relay) as channel:
            stream = BlockingRelayStubs(channel).history.WatchNotifications(
                pb.WatchNotificationsRequest(topic=f"HISTORY_READY:{request_id}"), timeout=seconds
            )
            try:
                for item in stream:
                    if item.HasField("notification"):
                        status = item.notification.ready.status
                        seen.add(ingest_pb2.HistoryReadyNotification.NotificationStatus.Name(status))
            except grpc.RpcError as error:
                assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        return sorted(seen)

    def _part(self, name: str) -> dict[str, Any]:
        return dict(json.loads((self.directory / "suite.json").read_text())["parts"][name])

    def wait_ready(self, seconds: float = READY_SECONDS) -> None:
        """Wait until every part is ready."""
        status = (
            "status",
            "--dir",
            str(self.directory),
        )  # costs half a second of a core, which the suite needs to start
        until(lambda: self.dexorder(*status).returncode == 0, seconds, self.logs, every_seconds=0.7)

    def logs(self) -> str:
        """Return the last lines of every part's log, for the message of a failure."""
        files = sorted(self.directory.glob("logs/*.log"))
        return "\n".join(f"== {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in files)

    def metric(self, part: str, name: str) -> float:
        """Return a metric of the part; see `metric_at`."""
        port = getattr(Ports.from_base(self.base_port), f"{part}_metrics")
        return metric_at(f"127.0.0.1:{port}", name)

    def rows(self, ticker: str, period_seconds: int, span: TimeRange) -> pa.Table:
        """Return the rows of a range as pyiceberg reads them, in time order."""
        table = CatalogSettings.local(self.directory).load().load_table(CANDLES.table)
        found = table.scan(
            f"ticker = '{ticker}' and period_seconds = {period_seconds}"
            f" and open_time >= '{iso_microseconds(span.start_ns)}' and open_time < '{iso_microseconds(span.end_ns)}'"
        ).to_arrow()
        return found.sort_by("open_time")


@contextmanager
def running_suite(directory: Path, *options: str, **environment: str) -> Iterator[Suite]:
    """Run a suite below ``directory``; at the end stop it and assert that none of its processes is left."""
    with running_suite_at(free_block(20), directory, *options, **environment) as suite:
        yield suite


@contextmanager
def running_suite_at(
    base_port: int, directory: Path, *options: str, command: str = "dexorder up", **environment: str
) -> Iterator[Suite]:
    """Run a suite as ``running_suite`` does, with known ports; ``command`` is a module and its first words."""
    marker = uuid.uuid4().hex
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "up.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command.split(), "--dir", str(directory), "--base-port", str(base_port), *options],
            cwd=ROOT,
            env=os.environ | environment | {MARKER: marker},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        suite = Suite(directory, base_port, process, environment)
        try:
            until(lambda: (directory / "suite.json").exists() or process.poll() is not None, 300, suite.logs)
            assert process.poll() is None, (directory / "up.log").read_text()
            # Not by `dexorder status`, which would take processor time from the start again and again.
            until(lambda: bool(_READY.search((directory / "up.log").read_text())), READY_SECONDS, suite.logs)
            yield suite
            process.send_signal(signal.SIGTERM)
            assert process.wait(90) == 0, (directory / "up.log").read_text()[-3000:]
            assert [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in processes_marked(marker)] == []
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
