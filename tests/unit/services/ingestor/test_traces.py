"""One request through client, relay, ingestor and gateway: its spans are one tree."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from opentelemetry.trace import SpanKind, StatusCode

from dexorder.errors import HistoryError
from dexorder_common.model.dispatch_id import trace_of
from dexorder_ingestor import traces
from tests.fakes.spans import exporting
from tests.unit.services.ingestor.whole import whole
from tests.unit.services.relay.harness import at

RELAY = "dexorder.relay.v1.HistoryService"
SUBMIT, NOTIFY = f"{RELAY}/SubmitHistorical", f"{RELAY}/WatchNotifications"
HISTORY, REQUEST, JOB = "dexorder.history", "history request", "process job"
NOW_NS = at(1_000_000)


async def test_a_history_is_one_trace_from_the_client_to_kafka_and_back(tmp_path: Path) -> None:
    with exporting() as exported:
        async with whole(tmp_path, sim={"now_ns": NOW_NS}) as running:
            rows = await running.client.history("BTC/USDT.SIM", "1m", at(0) // 10**9, at(250) // 10**9, request_id="r")
            sent = running.gateway.traceparents
            records = running.gateway.records
    assert rows.num_rows == 250
    root = exported.one(HISTORY)
    assert {span.context.trace_id for span in exported.spans if span.context} == {root.context.trace_id}
    paths = Counter(tuple(exported.path(span)) for span in exported.spans)
    assert paths[(HISTORY,)] == 1 and not any(path[0] == "?" for path in paths)
    once = [
        (HISTORY, SUBMIT),
        (HISTORY, SUBMIT, SUBMIT),
        (HISTORY, SUBMIT, REQUEST),
        (HISTORY, SUBMIT, REQUEST, "send job"),
        (HISTORY, SUBMIT, REQUEST, JOB),
        (HISTORY, SUBMIT, REQUEST, "decide outcome"),
        (HISTORY, NOTIFY),
        (HISTORY, NOTIFY, NOTIFY),
        (HISTORY, "read trading.ohlc"),
    ]
    assert {path: paths[path] for path in once} == dict.fromkeys(once, 1)
    produce = (HISTORY, SUBMIT, REQUEST, JOB, "send dexorder.ohlc")
    assert paths[produce] == len(records) == len(sent)
    assert paths[(HISTORY, SUBMIT, REQUEST, JOB, "exchange call")] >= 3
    # each record names the span that sent it, in Kafka and in the call of the gateway
    spans = [span.context for span in exported.named("send dexorder.ohlc") if span.context]
    names = [f"00-{each.trace_id:032x}-{each.span_id:016x}-01" for each in spans]
    assert sent == [(name, name) for name in names]
    assert {record.control.trace for record in records} == {f"{root.context.trace_id:032x}"}
    # the notification is an event on both sides
    (served,) = [span for span in exported.named(NOTIFY) if span.kind is SpanKind.SERVER]
    assert [event.name for event in served.events] == ["notification sent"]
    assert [event.name for event in root.events] == ["notification received"]
    request = exported.one(REQUEST)
    assert request.attributes is not None and request.status.status_code is StatusCode.UNSET
    assert request.attributes["dexorder.status"] == "OK" and request.attributes["dexorder.rows"] == 250


async def test_spans_of_a_dispatch_are_bounded_and_the_rest_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "MAX_SPANS", 5)
    with exporting() as exported:
        async with whole(tmp_path, sim={"now_ns": NOW_NS}) as running:
            await running.client.history("BTC/USDT.SIM", "1m", at(0) // 10**9, at(500) // 10**9)
            records, headers = len(running.gateway.records), {header for _, header in running.gateway.traceparents}
            assert all(trace_of(record.control.dispatch_id) for record in running.gateway.records)
    job = exported.one(JOB)
    inside = exported.named("exchange call") + exported.named("send dexorder.ohlc")
    assert len(inside) == 5 and records > 5
    assert job.context and f"00-{job.context.trace_id:032x}-{job.context.span_id:016x}-01" in headers, "those left out"
    assert job.attributes is not None and int(str(job.attributes["dexorder.spans_left_out"])) >= records - 5


async def test_a_request_without_rows_is_a_failed_span_without_texts(tmp_path: Path) -> None:
    with exporting() as exported:
        async with whole(tmp_path, sim={"now_ns": NOW_NS}) as running:
            with pytest.raises(HistoryError, match="NOSUCH/USDT"):
                await running.client.history("NOSUCH/USDT.SIM", "1m", at(0) // 10**9, at(5) // 10**9)
    for name, error_type in ((REQUEST, "ERROR"), (HISTORY, "HistoryFailed")):
        span = exported.one(name)
        assert span.status.status_code is StatusCode.ERROR and not span.status.description
        assert span.attributes is not None and span.attributes["error.type"] == error_type
        assert {event.name for event in span.events} <= {"notification received"}, "no text of an exception"


async def test_without_a_tracer_nothing_is_carried(tmp_path: Path) -> None:
    async with whole(tmp_path, sim={"now_ns": NOW_NS}) as running:
        await running.client.history("BTC/USDT.SIM", "1m", at(0) // 10**9, at(5) // 10**9)
        assert set(running.gateway.traceparents) == {(None, None)}
        assert {trace_of(record.control.dispatch_id) for record in running.gateway.records} == {None}
