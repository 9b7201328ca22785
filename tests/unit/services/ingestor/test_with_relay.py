"""A real relay and real ingestors: jobs when an exchange hangs or an ingestor is stopped."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from dexorder_common.model.time_range import TimeRange
from dexorder_ingestor.config import IngestorSettings
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb
from dexorder_relay.config import RelaySettings
from tests.unit.services.ingestor.conftest import ingestor_process, until
from tests.unit.services.ingestor.whole import chain
from tests.unit.services.relay.harness import at

SIM = {"now_ns": at(1_000_000)}


def test_attempts_of_a_job_outlast_the_time_that_its_request_waits() -> None:
    """An outage of Kafka of ten minutes ended requests as ERROR, given up after five attempts of one minute each."""
    relay, ingestor = RelaySettings(), IngestorSettings()
    assert relay.max_attempts * ingestor.publish_timeout_seconds >= relay.request_timeout_seconds


@pytest.mark.parametrize("kind", ["hang", "drip"])
async def test_hanging_exchange_ends_the_request_with_its_ranges_and_leaves_the_slot_free(
    tmp_path: Path, kind: str
) -> None:
    async with chain(tmp_path, sim=SIM, relay={"max_attempts": 2}) as c:
        await c.sim.faults({"kind": kind, "drip_s": 0.1})
        async with c.ingestor(dispatch_deadline_seconds=0.5, call_timeout_seconds=600):
            await c.suite.queued("r1", 0, 300)
            record = await c.suite.finished("r1")
            assert record.status == pb.HistoryReadyNotification.ERROR
            assert "took longer than 0.5 s" in record.error_message
            assert [(m.start_ns, m.end_ns) for m in record.missing] == [(at(0), at(300))]
            assert c.gateway.records == []
        await c.sim.faults()
        async with c.ingestor():
            await c.suite.queued("r2", 0, 300)
            await until(lambda: bool(c.gateway.finals))
            assert c.gateway.finals[0].value.status == pb.DataResponse.OK


async def test_stopped_ingestor_loses_and_doubles_nothing(tmp_path: Path) -> None:
    async with chain(tmp_path, sim=SIM, relay={"job_periods": 1000}) as c:
        c.gateway.free = 5
        c.gateway.gate.clear()
        async with ingestor_process({**c.settings, "drain_seconds": 0.5}) as first:
            await c.suite.queued("r1", 0, 2000)
            await c.gateway.waiting.wait()
            first.send_signal(signal.SIGTERM)
            await c.suite.queued("r2", 5000, 6000)  # goes to an offer the relay still holds, and comes back
            assert await first.wait() == 0
        assert len(c.gateway.records) == 5
        async with c.ingestor():
            c.gateway.gate.set()
            await until(lambda: len(c.gateway.finals) == 3)
        assert c.gateway.finals and all(r.value.status == pb.DataResponse.OK for r in c.gateway.finals)
        assert c.pages() == [
            TimeRange(at(m), at(m + 100)) for m in (*range(0, 2000, 100), *range(5000, 6000, 100))
        ]  # each once: what the first one settled was not fetched again


async def test_second_sigterm_ends_at_once(tmp_path: Path) -> None:
    async with chain(tmp_path, sim=SIM) as c:
        c.gateway.gate.clear()
        async with ingestor_process({**c.settings, "drain_seconds": 3600}) as process:
            await c.suite.queued("r1", 0, 100)
            await c.gateway.waiting.wait()
            process.send_signal(signal.SIGTERM)
            while process.returncode is None:  # the first may not have been taken yet: signals do not queue
                await asyncio.sleep(0.1)
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)
            assert process.returncode == -signal.SIGTERM
