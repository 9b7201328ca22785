"""Ingestor's worker that blocks for S seconds at its first job: ``python -m tests.smoke.stalled_worker BROKER S``."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry

from dexorder_common.clock import SystemClock
from dexorder_ingestor.broker.connection import BrokerConnection
from dexorder_ingestor.broker.dispatches import AnyDispatch, StopSignal
from dexorder_ingestor.broker.slots import DispatchEnd
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.metrics import IngestorMetrics
from tests.unit.services.ingestor.fakes import history_slots


async def main(broker: str, stalled_s: float) -> None:
    stop = asyncio.Event()

    async def run_job(job: AnyDispatch, order: StopSignal, fetched: Callable[[], None]) -> DispatchEnd | None:
        if not stop.is_set():
            stop.set()
            print("stalled", flush=True)
            time.sleep(stalled_s)  # noqa: ASYNC251 - it blocks on purpose
        return None

    async def on_connected(there: bool) -> None:
        pass

    settings, slots = IngestorSettings(broker=broker, drain_seconds=0), history_slots(1)
    metrics = IngestorMetrics(CollectorRegistry())
    await BrokerConnection(settings, slots, run_job, metrics, SystemClock(), on_connected=on_connected).run(stop)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
