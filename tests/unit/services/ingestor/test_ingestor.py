"""The whole ingestor: real sockets, unmodified ccxt, a simulated exchange with faults."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from dexorder_common.model.page import Kind
from dexorder_common.model.time_range import TimeRange
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb
from tests.examples import first_in_gate
from tests.unit.services.ingestor.conftest import MINUTE_NS, NOW_NS, Sim, StartWorld, World, minutes
from tests.unit.services.ingestor.fakes import Record, dispatch

OK, NOT_FOUND, ERROR = pb.DataResponse.OK, pb.DataResponse.NOT_FOUND, pb.DataResponse.ERROR


async def run_job(world: World, request: pb.DataRequest) -> pb.WorkComplete:
    identity, _ = await world.broker.wait_for(pb.WorkerReady)
    await world.broker.send(identity, request)
    _, complete = await world.broker.wait_for(pb.WorkComplete, request.job_id)
    return complete


def rows(records: list[Record]) -> dict[int, list[float]]:
    return {c.open_time_ns: [c.open, c.high, c.low, c.close, c.volume] for r in records for c in r.candles}


def check_dispatch(world: World, job_id: str, span: TimeRange) -> None:
    """The contract of docs/protocol.md for one dispatch that settled its whole span."""
    records = world.gateway.of(job_id)
    assert {r.key for r in records} == {job_id.encode()}
    assert [r.control.kind for r in records] == [Kind.PAGE] * (len(records) - 1) + [Kind.FINAL]
    assert [r.control.page for r in records] == list(range(len(records)))
    pages, final = records[:-1], records[-1]
    assert final.control.span == span
    assert [r.control.span.start_ns for r in pages] == [span.start_ns, *(r.control.span.end_ns for r in pages[:-1])]
    assert pages[-1].control.span.end_ns == span.end_ns
    assert final.value.total_records == sum(r.value.total_records for r in pages)
    for page in pages:
        inside = page.control.span
        assert page.value.status == OK
        assert page.value.total_records == len(page.candles) <= 1000
        empty = [t for r in page.control.empty for t in range(r.start_ns, r.end_ns, MINUTE_NS)]
        opens = [c.open_time_ns for c in page.candles]
        assert sorted(opens + empty) == list(range(inside.start_ns, inside.end_ns, MINUTE_NS))
    assert [(r.start_ns, r.end_ns, r.candles) for r in world.relay.reports if r.job_id == job_id] == [
        (p.control.span.start_ns, p.control.span.end_ns, len(p.candles)) for p in pages
    ]


async def test_job_becomes_pages_reports_a_final_and_a_new_offer(sim: Sim, world_of: StartWorld) -> None:
    span = minutes(0, 2500)
    async with world_of() as world:
        complete = await run_job(world, dispatch("j1", span))
        assert complete.success
        check_dispatch(world, "j1", span)
        assert world.gateway.final("j1").value.status == OK
        assert rows(world.gateway.pages("j1")) == await sim.truth(span)
        _, offer = await world.broker.wait_for(pb.WorkerReady)
        assert (list(offer.exchanges), offer.job_type) == (["SIM"], pb.HISTORICAL)


async def test_the_next_job_is_fetched_while_kafka_has_not_acknowledged_the_one_before(
    sim: Sim, world_of: StartWorld
) -> None:
    spans = [minutes(0, 60), minutes(60, 120), minutes(120, 180)]
    async with world_of(slots=1) as world:
        world.gateway.gate.clear()
        for number, span in enumerate(spans):
            identity, _ = await world.broker.wait_for(pb.WorkerReady)
            await world.broker.send(identity, dispatch(f"j{number}", span))
        await world.broker.wait_for(pb.WorkerReady)
        assert not world.gateway.records and not world.relay.reports
        world.gateway.gate.set()
        ended = [(await world.broker.wait_for(pb.WorkComplete))[1].job_id for _ in spans]
        assert sorted(ended) == ["j0", "j1", "j2"]
        for number, span in enumerate(spans):
            check_dispatch(world, f"j{number}", span)
            assert rows(world.gateway.pages(f"j{number}")) == await sim.truth(span)


async def test_page_is_reported_after_kafka_has_acknowledged_it(world_of: StartWorld) -> None:
    """The acknowledgement is held back, and nothing is reported meanwhile."""
    async with world_of() as world:
        world.gateway.gate.clear()
        running = asyncio.ensure_future(run_job(world, dispatch("j1", minutes(0, 60))))
        try:
            await world.gateway.waiting.wait()
            ended, _ = await asyncio.wait({running}, timeout=0.3)
            assert not ended and not world.relay.early
        finally:
            world.gateway.gate.set()
        assert (await running).success
        check_dispatch(world, "j1", minutes(0, 60))


async def test_job_of_one_call_is_one_page_since_each_page_may_cost_a_batch_of_spark(
    sim: Sim, world_of: StartWorld
) -> None:
    async with world_of() as world:
        await run_job(world, dispatch("j1", minutes(0, 1000)))
        check_dispatch(world, "j1", minutes(0, 1000))
        (page,) = world.gateway.pages("j1")
        assert rows([page]) == await sim.truth(minutes(0, 1000))


EVERY_THIRD = (
    *(
        "hole",
        "drop_first",
        "empty",
        "unfinished",
        "cut_json",
        "http_500",
        "http_502",
        "http_503",
        "html",
        "text",
        "null",
    ),
    *("drop_last", "duplicate_tail", "reversed", "null_fields", "off_grid", "low_above_high"),
)
EVERY_FIFTH = ("short", "outside", "other_symbol", "running", "unavailable", "reset", "http_504")
FAULTS: list[list[dict[str, Any]]] = [
    [{"kind": kind, "probability": 0.15} for kind in ("empty", "hole", "drop_last", "html")],
    [{"kind": "http_429", "count": 2, "retry_after_s": 0}],
    [{"kind": "http_418", "after": 1, "count": 1, "retry_after_s": 0}],
    *([{"kind": kind, "every": 5}] for kind in EVERY_FIFTH),
    *([{"kind": kind, "every": 3}] for kind in EVERY_THIRD),
]


@pytest.mark.parametrize(
    "faults", first_in_gate(FAULTS, 15), ids=lambda rules: "+".join(rule["kind"] for rule in rules)
)
async def test_no_candle_is_lost_or_invented_by_a_faulty_exchange(
    sim: Sim, world_of: StartWorld, faults: list[dict[str, Any]]
) -> None:
    span = minutes(0, 1300)
    truth = await sim.truth(span)
    await sim.faults(*faults)
    async with world_of(attempts=20, page_candles=200) as world:
        assert (await run_job(world, dispatch("j1", span))).success
        check_dispatch(world, "j1", span)
        assert world.gateway.final("j1").value.status == OK
        assert rows(world.gateway.pages("j1")) == truth


async def test_span_before_the_listing_is_not_found_with_every_page_verified_empty(world_of: StartWorld) -> None:
    span = TimeRange(1_483_228_800_000_000_000, 1_483_228_800_000_000_000 + 3000 * MINUTE_NS)
    async with world_of() as world:
        assert (await run_job(world, dispatch("j1", span))).success
        check_dispatch(world, "j1", span)
        assert world.gateway.final("j1").value.status == NOT_FOUND
        assert [r.control.empty for r in world.gateway.pages("j1")] == [
            (r.control.span,) for r in world.gateway.pages("j1")
        ]


async def test_open_candle_is_missing_after_the_closed_ones(sim: Sim, world_of: StartWorld) -> None:
    now_minute = NOW_NS // MINUTE_NS * MINUTE_NS
    span = TimeRange(now_minute - 10 * MINUTE_NS, now_minute + 5 * MINUTE_NS)
    async with world_of() as world:
        assert (await run_job(world, dispatch("j1", span))).success
        (page,) = world.gateway.pages("j1")
        assert page.control.span == TimeRange(span.start_ns, now_minute)
        assert len(page.candles) == 10
        final = world.gateway.final("j1").value
        assert (final.status, final.total_records) == (ERROR, 10)
        assert "missing [2023-11-14T22:15:00Z, 2023-11-14T22:20:00Z): not closed yet" in final.error_message


async def test_symbol_the_exchange_does_not_have_ends_in_error(world_of: StartWorld) -> None:
    async with world_of() as world:
        assert (await run_job(world, dispatch("j1", minutes(0, 60), ticker="NOPE/USDT.SIM"))).success
        final = world.gateway.final("j1")
        assert final.value.status == ERROR
        assert final.value.error_message == (
            "missing [2023-11-01T00:00:00Z, 2023-11-01T01:00:00Z): symbol 'NOPE/USDT' is unknown to SIM"
        )
        assert world.gateway.pages("j1") == []


GOOD = 9_960
"""Whole cells of ten answers, of which each but the first repeats a candle."""


@pytest.mark.parametrize("kind", first_in_gate(["http_503", "empty", "html", "http_403"], 2))
async def test_exchange_that_stays_bad_ends_in_error_after_the_good_pages(
    sim: Sim, world_of: StartWorld, kind: str
) -> None:
    span = minutes(0, 12_000)
    truth = await sim.truth(minutes(0, GOOD))
    await sim.faults({"kind": kind, "after": 12})  # with the hours and a sample of smaller cells
    async with world_of(attempts=3, evidence_queries=12) as world:
        assert (await run_job(world, dispatch("j1", span))).success
        assert rows(world.gateway.pages("j1")) == truth
        final = world.gateway.final("j1").value
        assert (final.status, final.total_records) == (ERROR, GOOD)
        assert "missing [2023-11-07T22:00:00Z, 2023-11-09T08:00:00Z)" in final.error_message


async def test_fenced_job_is_dropped_without_a_final_and_its_slot_offered_again(world_of: StartWorld) -> None:
    async with world_of(slots=1) as world:
        world.relay.fenced.add("j1")
        ((identity, _),) = await world.broker.offers(1)
        await world.broker.send(identity, dispatch("j1", minutes(0, 3000)))
        await world.broker.wait_for(pb.WorkerReady)
        assert [r.control.kind for r in world.gateway.of("j1")] == [Kind.PAGE]
        await world.broker.send(identity, dispatch("j2", minutes(0, 10)))
        await world.broker.wait_for(pb.WorkComplete, "j2")
        assert not [m for _, m in world.broker.heard if isinstance(m, pb.WorkComplete) and m.job_id == "j1"]


async def test_gateway_trouble_repeats_a_record_and_never_reorders(sim: Sim, world_of: StartWorld) -> None:
    span = minutes(0, 300)
    async with world_of(page_candles=100) as world:
        world.gateway.trouble = [
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            grpc.StatusCode.INTERNAL,
        ]
        world.gateway.lost_acks = 2
        world.relay.trouble = [grpc.StatusCode.UNAVAILABLE]
        assert (await run_job(world, dispatch("j1", span))).success
        records = world.gateway.of("j1")
        assert [r.control.page for r in records] == [0, 0, 0, 1, 2, 3]
        assert records[0] == records[1] == records[2]
        assert world.gateway.final("j1").value.total_records == 300


async def test_dispatch_is_handed_back_when_the_gateway_stays_unavailable(world_of: StartWorld) -> None:
    async with world_of(publish_timeout_seconds=0.05) as world:
        world.gateway.trouble = [grpc.StatusCode.UNAVAILABLE] * 100
        complete = await run_job(world, dispatch("j1", minutes(0, 10)))
        assert not complete.success
        assert "Produce failed: UNAVAILABLE" in complete.error_message
        assert world.gateway.records == []


async def test_stop_hands_unfinished_jobs_back_and_offers_nothing(world_of: StartWorld) -> None:
    async with world_of(slots=1, drain_seconds=0.1) as world:
        world.gateway.gate.clear()
        ((identity, _),) = await world.broker.offers(1)
        await world.broker.send(identity, dispatch("j1", minutes(0, 10)))
        await world.gateway.waiting.wait()
        world.stop.set()
        _, complete = await world.broker.wait_for(pb.WorkComplete, "j1")
        assert not complete.success
        assert "shutting down" in complete.error_message
        await world.ingestor
        assert not isinstance(world.broker.heard[-1][1], pb.WorkerReady)


async def test_stop_lets_a_running_job_finish(world_of: StartWorld) -> None:
    async with world_of(slots=1, drain_seconds=30) as world:
        world.gateway.gate.clear()
        ((identity, _),) = await world.broker.offers(1)
        await world.broker.send(identity, dispatch("j1", minutes(0, 10)))
        await world.gateway.waiting.wait()
        world.stop.set()
        await world.broker.send(identity, dispatch("j2", minutes(0, 10)))
        _, reject = await world.broker.wait_for(pb.WorkReject)
        assert (reject.job_id, reject.reason) == ("j2", "this ingestor is shutting down")
        world.gateway.gate.set()
        _, complete = await world.broker.wait_for(pb.WorkComplete, "j1")
        assert complete.success
        await world.ingestor


async def test_limit_ends_with_the_nth_candle(sim: Sim, world_of: StartWorld) -> None:
    async with world_of() as world:
        assert (await run_job(world, dispatch("j1", minutes(0, 3000), limit=1100))).success
        assert rows(world.gateway.pages("j1")) == await sim.truth(minutes(0, 1100))
        assert world.gateway.pages("j1")[-1].control.span.end_ns == minutes(0, 1100).end_ns
        assert world.gateway.final("j1").value.status == OK


async def test_jobs_run_side_by_side_each_in_order(sim: Sim, world_of: StartWorld) -> None:
    async with world_of(slots=4) as world:
        offers = await world.broker.offers(4)
        spans = {f"j{n}": minutes(n * 2000, 1500) for n in range(4)}
        for (identity, _), (job_id, span) in zip(offers, spans.items(), strict=True):
            await world.broker.send(identity, dispatch(job_id, span))
        done = {(await world.broker.wait_for(pb.WorkComplete))[1].job_id for _ in spans}
        assert done == spans.keys()
        for job_id, span in spans.items():
            check_dispatch(world, job_id, span)
            assert rows(world.gateway.pages(job_id)) == await sim.truth(span)


async def test_heartbeats_of_a_running_job(world_of: StartWorld) -> None:
    async with world_of(slots=1) as world:
        world.gateway.gate.clear()
        ((identity, _),) = await world.broker.offers(1)
        await world.broker.send(identity, dispatch("j1", minutes(0, 10)))
        for _ in range(3):
            await world.broker.wait_for(pb.WorkHeartbeat, "j1")
        world.gateway.gate.set()
        async with asyncio.timeout(30):
            await world.broker.wait_for(pb.WorkComplete, "j1")
