"""Processes of ``bench.events``: a gateway, the raw references, the peers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.parts.events_load import Measured
from bench.parts.pixy_processes import Server
from tests.rig.events_gateway import EventsGateway, Keys
from tests.rig.processes import Worker

MUCH = {"soft_events_per_second": 1e9, "hard_events_per_second": 1e9, "queued_events": 1_000_000_000}


def gateway(folder: Path, quotas: Mapping[str, float] = MUCH) -> EventsGateway:
    """Return a gateway without CURVE, not started, that tolerates slow sessions; without quotas unless given."""
    keys = Keys(folder / "keys")
    keys.local(quota=dict(quotas))
    keys.write()
    return EventsGateway(
        folder,
        keys,
        curve=False,
        log_level="info",
        session_queue=10_000_000,
        sessions_per_user=1_000,
        jwt_max_seconds=100_000,
    )


class Raw(Worker):
    """Process of a raw reference, and its address, which is its first line."""

    def __init__(self, kind: str, folder: Path) -> None:
        super().__init__(sys.executable, "-m", "bench.parts.events_raw", kind, str(folder))
        self.address = self.line()
        self.server = Server(self.address, self.process.pid)


class Load(Worker):
    """Peers that wait for jobs."""

    def __init__(self) -> None:
        super().__init__(sys.executable, "-m", "bench.parts.events_load")

    def begin(self, job: str, **order: Any) -> None:
        """Begin a job; `end` waits for it."""
        self.send({"job": job, **order})

    def end(self) -> Measured:
        """Return the result of the job."""
        return Measured(**self.answer())

    def measure(self, job: str, **order: Any) -> Measured:
        """Begin a job and wait for its result."""
        self.begin(job, **order)
        return self.end()
