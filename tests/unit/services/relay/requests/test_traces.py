"""Requests of traced callers at a relay that restarts, and of callers that are not traced."""

from __future__ import annotations

from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan

from dexorder_common.model.dispatch_id import TraceContext, trace_of
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from tests.fakes.spans import Exported, exporting
from tests.unit.services.relay.harness import Suite, minute, request, suite

CALLER = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
REQUEST = "history request"


async def submit(s: Suite, request_id: str, start: int, end: int, traceparent: str | None = CALLER.traceparent) -> None:
    metadata = [("traceparent", traceparent)] if traceparent is not None else None
    answer = (await s.relay.history.SubmitHistorical(request(request_id, start, end), metadata=metadata)).answer
    assert answer.status == ingest.SubmitResponse.QUEUED


async def taken(s: Suite) -> ingest.DataRequest:
    """Return the next dispatch, of a new ingestor."""
    return await (await s.offering()).take()


async def fetch(s: Suite, traceparent: str | None) -> ingest.DataRequest:
    """Have a request end OK; return its dispatch."""
    await submit(s, "r", 0, 10, traceparent)
    dispatch = await taken(s)
    await s.pipeline.land(dispatch)
    await s.finished("r")
    return dispatch


def own(span: ReadableSpan) -> TraceContext:
    return TraceContext(f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}")


def parent(span: ReadableSpan) -> str | None:
    return f"{span.parent.span_id:016x}" if span.parent else None


def of_request(exported: Exported, request_id: str) -> ReadableSpan:
    (span,) = [s for s in exported.named(REQUEST) if s.attributes and s.attributes["dexorder.request_id"] == request_id]
    return span


async def test_trace_survives_the_relay(tmp_path: Path) -> None:
    """The dispatches of each process are below the span that the last one records, and that below the caller's."""
    with exporting() as exported:
        async with suite(tmp_path, max_attempts=10) as s:
            await submit(s, "r", 0, 10)
            first = await taken(s)
        async with suite(tmp_path, max_attempts=10) as s:  # it gives up the lease, and issues another dispatch
            ingestor = s.ingestor()
            await ingestor.send(ingest.WorkComplete(job_id=first.job_id, success=False, error_message="gone"))
            await ingestor.offer()
            second = await ingestor.take()
        assert exported.named(REQUEST) == []
        async with suite(tmp_path) as s:
            await s.pipeline.land(second)
            await s.finished("r")
    contexts = {trace_of(each.job_id) for each in (first, second)}
    assert first.job_id != second.job_id and contexts == {CALLER.derived("r")}
    span = of_request(exported, "r")
    assert own(span) == CALLER.derived("r") and parent(span) == CALLER.span_id
    assert {parent(each) for each in exported.named("send job")} == {own(span).span_id}
    assert span.start_time is not None and span.end_time is not None
    assert span.start_time < min(each.start_time or 0 for each in exported.named("send job")) < span.end_time


async def test_request_that_waits_for_the_job_of_another_links_to_its_trace(tmp_path: Path) -> None:
    other = TraceContext("a" * 32, "b" * 16)
    with exporting() as exported:
        async with suite(tmp_path) as s:
            await submit(s, "first", 0, 10)
            await submit(s, "second", 5, 10, other.traceparent)
            dispatch = await taken(s)
            assert minute(dispatch.historical.end_time) == 10
            await s.pipeline.land(dispatch)
            await s.finished("first")
            await s.finished("second")
    second = of_request(exported, "second")
    assert own(second) == other.derived("second")
    (link,) = second.links
    assert f"{link.context.span_id:016x}" == CALLER.derived("first").span_id
    assert of_request(exported, "first").links == ()


async def test_request_of_a_caller_without_a_trace_begins_one(tmp_path: Path) -> None:
    with exporting() as exported:
        async with suite(tmp_path) as s:
            await fetch(s, None)
    assert exported.path(of_request(exported, "r")) == ["dexorder.relay.v1.HistoryService/SubmitHistorical", REQUEST]


async def test_caller_that_samples_nothing_is_not_traced(tmp_path: Path) -> None:
    with exporting() as exported:
        async with suite(tmp_path) as s:
            dispatch = await fetch(s, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00")
    assert trace_of(dispatch.job_id) is None and exported.spans == ()


async def test_the_sampler_of_the_environment_decides_about_new_traces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    with exporting() as exported:
        async with suite(tmp_path) as s:
            await submit(s, "untraced", 0, 10, None)
            await submit(s, "traced", 20, 30)
            dispatches = [await taken(s), await taken(s)]
    found = {each.request_id: trace_of(each.job_id) for each in dispatches}
    assert found == {"untraced": None, "traced": CALLER.derived("traced")}
    assert {f"{each.context.trace_id:032x}" for each in exported.spans} == {CALLER.trace_id}
