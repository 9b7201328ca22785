"""Metrics of a running relay; each has its line in the docs."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from dexorder_common.clock import ManualClock
from dexorder_common.model.times import SECOND_NS
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as rpb
from dexorder_relay import engine
from dexorder_relay.metrics import RelayMetrics
from dexorder_relay.state.leases import Leases, Load
from dexorder_relay.state.realtime_job import Registry
from dexorder_relay.state.workers import Slot, SlotKind
from dexorder_relay.store.database import FORGET_REQUESTS, Store
from tests.paths import ROOT
from tests.unit.services.relay.harness import SERIES, history_state, span, suite, until

SIM = {"exchange": "SIM"}


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> CollectorRegistry:
    """Return the registry of the next relay, whose gauges are sampled at once."""
    made = CollectorRegistry()
    monkeypatch.setattr("dexorder_relay.server.CollectorRegistry", lambda: made)
    monkeypatch.setattr(engine, "MEASURE_SECONDS", 0.01)
    return made


async def test_queue_slots_leases_and_attempts_are_counted_by_exchange(
    tmp_path: Path, registry: CollectorRegistry
) -> None:
    clock = ManualClock()

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"dexorder_relay_{name}", {**SIM, **labels})

    async with suite(tmp_path, clock, job_periods=10, max_attempts=2, request_timeout_seconds=1e9) as s:
        ingestor = s.ingestor()
        await s.queued("r", 0, 30)
        await ingestor.offer()
        first = await ingestor.take()
        clock.advance(40 * SECOND_NS)  # the relay was asleep: no lease ends
        await until(lambda: value("oldest_queued_seconds") == 40)
        assert (value("jobs_queued"), value("jobs_running")) == (2, 1)
        assert registry.get_sample_value("dexorder_relay_requests", {"state": "RUNNING"}) == 1
        assert registry.get_sample_value("dexorder_relay_requests", {"state": "QUEUED"}) == 0
        await ingestor.send(ingest.WorkReject(job_id=first.job_id, reason="no"))
        await until(lambda: value("requeues_total", reason="rejected") == 1)
        clock.advance(2 * SECOND_NS)  # the ingestor has waited after its rejection
        await ingestor.offer(job_type=ingest.REALTIME)
        await until(lambda: value("slots_free", kind="REALTIME") == 1)
        assert (value("slots_free", kind="HISTORICAL"), value("slots_free", kind="ANY")) == (0, 0)
        assert (value("requeues_total", reason="rejected"), value("dispatches_without_progress_total")) == (1, 1)
        assert value("jobs_given_up_total") == 0
        await ingestor.offer()
        second = await ingestor.take()
        assert second.historical.start_time == first.historical.start_time
        await ingestor.send(ingest.WorkReject(job_id=second.job_id, reason="no"))
        await until(lambda: value("jobs_given_up_total") == 1)
        assert (value("dispatches_total"), value("dispatches_without_progress_total")) == (2, 2)

        await s.relay.history.CancelRequest(rpb.CancelRequestRequest(request_id="r"))
        await until(lambda: value("jobs_queued") == 0)
        assert (value("oldest_queued_seconds"), value("jobs_running")) == (0, 0)


async def test_leases_that_run_out_are_requeues_of_their_own(tmp_path: Path, registry: CollectorRegistry) -> None:
    lease = {**SIM, "reason": "lease"}
    async with suite(tmp_path, lease_seconds=1) as s:
        ingestor, dispatch = await s.dispatched("r", 0, 10)
        await ingestor.page(dispatch.job_id, 0, 5)
        await until(lambda: registry.get_sample_value("dexorder_relay_requeues_total", lease) == 1)
        assert registry.get_sample_value("dexorder_relay_dispatches_without_progress_total", SIM) == 0


async def test_streams_reports_and_commits_are_seen(tmp_path: Path, registry: CollectorRegistry) -> None:
    clock = ManualClock()

    def value(name: str) -> float:
        return registry.get_sample_value(f"dexorder_relay_{name}") or 0.0

    async with suite(tmp_path, clock) as s:
        clock.advance(7 * SECOND_NS)
        await until(lambda: value("pipeline_report_age_seconds") == 7)
        await s.pipeline.report()
        await until(lambda: value("pipeline_report_age_seconds") == 0)
        before = value("store_commit_seconds_count")
        await s.queued("r", 0, 10)
        await until(lambda: value("store_commit_seconds_count") == value("store_group_size_count") > before)
        events = s.relay.history.WatchNotifications(rpb.WatchNotificationsRequest(topic="RESPONSE:me"))
        progress = s.relay.history.WatchProgress(rpb.WatchProgressRequest(request_id="r"))
        await progress.read()
        await until(lambda: (value("notification_streams"), value("progress_streams")) == (1, 1))
        for call in (events, progress):
            call.cancel()
        await until(lambda: (value("notification_streams"), value("progress_streams")) == (0, 0))


async def test_reads_are_no_commits(tmp_path: Path) -> None:
    commits: list[int] = []
    store = Store(tmp_path / "relay.db", lambda batches, seconds: commits.append(batches))
    await store.page("", None, None, 10)
    await store.coverage_read_ns()
    assert commits == []
    await store.forget(FORGET_REQUESTS, 0)
    await store.close()
    assert commits == [1]


async def test_batches_that_share_a_commit_are_one_group(tmp_path: Path) -> None:
    groups: list[int] = []
    store = Store(tmp_path / "relay.db", lambda batches, seconds: groups.append(batches))
    gate = threading.Event()
    held = store.read(lambda connection: gate.wait())
    written = [store.forget(FORGET_REQUESTS, 0) for _ in range(30)]
    gate.set()
    await asyncio.gather(held, *written)
    await store.close()
    assert sum(groups) == 30 and len(groups) < 30


def test_load_is_counted_by_exchange() -> None:
    d = Leases(lease_ns=1, new_id=lambda: "id")
    for job, exchange in enumerate(("X", "X", "Y")):
        d.queue(job, exchange)
    d.offer(Slot(b"i", "X", SlotKind.ANY))
    d.assign(now_ns=0)
    d.offer(Slot(b"i", "Z", SlotKind.REALTIME))
    assert d.load() == {
        "X": Load(queued=1, running=1, free={}),
        "Y": Load(queued=1, running=0, free={}),
        "Z": Load(queued=0, running=0, free={SlotKind.REALTIME: 1}),
    }


def test_every_metric_has_a_line_in_the_docs() -> None:
    registry = CollectorRegistry()
    RelayMetrics(registry)
    lines = re.findall(r"^\| `([a-z_]+)", (ROOT / "docs" / "relay.md").read_text(), re.M)
    names = {
        family.name.removeprefix("dexorder_relay_") + ("_total" if family.type == "counter" else "")
        for family in registry.collect()
    }
    assert names - {*lines} == set()


def test_provisional_ranges_are_counted_by_exchange_and_are_0_when_none_is_left() -> None:
    registry = CollectorRegistry()
    metrics = RelayMetrics(registry)
    state, spans = history_state(recheck_after_ns=(1,)), [span(0, 1), span(5, 9)]
    state.provisional.add(SERIES, spans, now_ns=0)
    metrics.sample(state, Registry(state.leases, str), wall_ns=0, report_age_ns=0)
    assert registry.get_sample_value("dexorder_relay_provisional_ranges", SIM) == 2
    state.provisional.remove(SERIES, spans)
    metrics.sample(state, Registry(state.leases, str), wall_ns=0, report_age_ns=0)
    assert registry.get_sample_value("dexorder_relay_provisional_ranges", SIM) == 0
