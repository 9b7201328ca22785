"""The relay as a whole: real gRPC, real ZMQ, a real table; ingestor and pipeline are scripted."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog

from dexorder_common.clock import SystemClock
from dexorder_common.model.errors import Unavailable
from dexorder_common.model.times import MAX_TIME_NS
from dexorder_common.rpc.relay_stubs import RelayStubs
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as history_pb
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2 as ipb
from dexorder_protos.dexorder.relay.v1 import rows_service_pb2 as rows_pb
from dexorder_protos.dexorder.relay.v1.realtime_service_pb2 import WatchMarketDataRequest
from dexorder_relay import start
from dexorder_relay.server import relay
from dexorder_spark.records.reporter import named_snapshots
from tests.unit.services.relay.harness import (
    EARLIER,
    ERROR,
    NOT_FOUND,
    OK,
    TICKER,
    TIMEOUT,
    at,
    catalog_settings,
    coverage_row,
    final_of,
    make_tables,
    minute,
    page,
    ranges,
    refused,
    request,
    settings,
    span_of,
    suite,
    write_coverage,
)


async def test_request_ends_ok_with_counted_rows_and_one_notification_a_topic(tmp_path: Path) -> None:
    async with suite(tmp_path, job_periods=10) as s:
        ingestor = await s.offering(2)
        topic = await s.queued("r1", 0, 25, client_id="me")
        assert topic == "RESPONSE:me"
        done = await ingestor.work(s.pipeline, dispatches=3, holes=[7, 21])
        assert [minute(d.historical.start_time) for d in done] == [0, 10, 20]
        assert {(d.request_id, d.ticker, d.client_id, d.type) for d in done} == {("r1", TICKER, "me", 0)}
        assert len({d.job_id for d in done}) == 3
        record = await s.finished("r1")
        assert (record.status, record.row_count, record.empty_periods, list(record.missing)) == (OK, 23, 2, [])
        assert record.HasField("snapshot_id") and not record.HasField("error_message")
        assert (record.progress.expected_periods, record.progress.settled_periods) == (25, 25)
        assert (record.progress.candles, record.progress.jobs, record.progress.finished_jobs) == (23, 3, 3)
        for name in (topic, "HISTORY_READY:r1"):
            reported = (await s.notification(name)).ready
            assert (reported.request_id, reported.status, reported.row_count, reported.end_time) == (
                "r1",
                OK,
                23,
                at(25),
            )
            assert (reported.iceberg_namespace, reported.iceberg_table) == ("trading", "ohlc")


async def test_the_pipeline_learns_which_snapshots_notifications_have_named(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        named, last = {}, 0
        for number, snapshots in enumerate([1, 0, 1]):  # the second request is answered at the snapshot of the first
            for _ in range(snapshots):
                await s.pipeline.report(pages=[page(EARLIER, number, number + 1)])
                snapshot_id = s.pipeline.write([number])
            await s.queued(f"r{number}", 0, 1)
            last = named[snapshot_id] = (await s.finished(f"r{number}")).completed_ns
        assert await asyncio.to_thread(named_snapshots, s.running.address, 0) == named and len(named) == 2
        assert await asyncio.to_thread(named_snapshots, s.running.address, last) == {snapshot_id: last}
        assert await asyncio.to_thread(named_snapshots, s.running.address, 2**64 - 1) == {}


async def test_covered_request_ends_without_a_dispatch(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        await s.pipeline.report(snapshot_id=s.pipeline.write(range(10)), pages=[page(EARLIER, 0, 20, empty=[(10, 20)])])
        await s.queued("full", 0, 15)
        await s.queued("void", 12, 18)
        full, void = await s.finished("full"), await s.finished("void")
        assert (full.status, full.row_count, full.empty_periods, full.progress.jobs) == (OK, 10, 5, 0)
        assert (void.status, void.row_count, void.empty_periods) == (NOT_FOUND, 0, 6)


async def test_overlapping_requests_share_jobs_and_cancel_fences_only_what_nobody_needs(tmp_path: Path) -> None:
    async with suite(tmp_path, job_periods=10) as s:
        ingestor = s.ingestor()
        await s.queued("a", 0, 20)
        await s.queued("b", 10, 30)
        await ingestor.offer(3)
        jobs = {minute(d.historical.start_time): d for d in [await ingestor.take() for _ in range(3)]}
        assert {start: d.request_id for start, d in jobs.items()} == {0: "a", 10: "a", 20: "b"}
        answer = await s.relay.history.CancelRequest(history_pb.CancelRequestRequest(request_id="a"))
        assert (answer.record.status, answer.record.error_message) == (ERROR, "cancelled")
        assert list(answer.record.missing) == ranges([(0, 20)])
        assert [await ingestor.page(jobs[start].job_id, start, start + 10) for start in (0, 10, 20)] == [
            False,
            True,
            True,
        ]
        await s.pipeline.land(jobs[10])
        await s.pipeline.land(jobs[20])
        record = await s.finished("b")
        assert (record.status, record.row_count) == (OK, 20)
        again = await s.relay.history.CancelRequest(history_pb.CancelRequestRequest(request_id="b"))
        assert again.record == record
        assert (await s.record("a")).error_message == "cancelled"


async def test_ingestors_error_and_refused_page_name_what_is_missing(tmp_path: Path) -> None:
    async with suite(tmp_path, job_periods=10) as s:
        ingestor = await s.offering(2)
        await s.queued("r", 0, 20)
        first, second = await ingestor.take(), await ingestor.take()
        await s.pipeline.report(
            snapshot_id=s.pipeline.write(range(4)),
            pages=[page(first.job_id, 0, 4)],
            finals=[final_of(first.job_id, ingest.DataResponse.ERROR, "SIM has no symbol BTC/USDT")],
        )
        refused = [page(second.job_id, 10, 15, refused="bad header"), page(second.job_id, 15, 20, empty=[(15, 20)])]
        await s.pipeline.report(pages=refused, finals=[final_of(second.job_id)])
        record = await s.finished("r")
        assert (record.status, record.row_count, list(record.missing)) == (ERROR, 4, ranges([(4, 15)]))
        assert record.error_message == (
            "SIM has no symbol BTC/USDT; a page was refused: bad header; "
            "missing [2024-01-01T00:04:00Z, 2024-01-01T00:15:00Z)"
        )


async def test_expired_job_goes_to_another_ingestor_and_late_pages_of_the_first_are_waited_for(tmp_path: Path) -> None:
    async with suite(tmp_path, lease_seconds=1) as s:
        one, two = s.ingestor(), s.ingestor()
        await s.queued("r", 0, 30)
        await one.offer()
        first = await one.take()
        assert await one.page(first.job_id, 0, 10)
        await two.offer()
        second = await two.take()  # comes when the first lease has run out
        assert span_of(second) == (10, 30)
        assert second.job_id != first.job_id
        assert not await one.page(first.job_id, 10, 20)
        await one.send(ingest.WorkComplete(job_id=first.job_id, success=True))
        assert await two.page(second.job_id, 10, 30)
        await two.send(ingest.WorkComplete(job_id=second.job_id, success=True))
        await s.pipeline.land(second)
        record = await s.record("r")
        assert not record.HasField("answered_end_ns")
        assert (
            record.state == history_pb.REQUEST_STATE_RUNNING
        )  # the first dispatch's page is in Kafka, not in the table
        assert record.progress.settled_periods == 30
        await s.pipeline.report(
            snapshot_id=s.pipeline.write(range(10)), pages=[page(first.job_id, 0, 10)], finals=[final_of(first.job_id)]
        )
        assert await s.ended("r") == (OK, 30)


async def test_job_whose_pages_are_all_in_kafka_is_not_dispatched_again(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        ingestor = s.ingestor()
        await s.queued("r", 0, 10)
        await ingestor.offer(2)
        first = await ingestor.take()
        assert await ingestor.page(first.job_id, 0, 10)
        await ingestor.send(ingest.WorkComplete(job_id=first.job_id, success=False, error_message="final not acked"))
        await s.queued("other", 100, 110)
        assert minute((await ingestor.take()).historical.start_time) == 100
        await s.pipeline.report(snapshot_id=s.pipeline.write(range(10)), pages=[page(first.job_id, 0, 10)])
        assert await s.ended("r") == (OK, 10)


async def test_attempts_used_up_end_the_request_and_reject_prefers_another_ingestor(tmp_path: Path) -> None:
    async with suite(tmp_path, max_attempts=3) as s:
        one, two = s.ingestor(), s.ingestor()
        await one.offer(4)
        await s.queued("r", 0, 10)
        first = await one.take()
        await two.offer()
        await s.queued("probe", 100, 110)  # taken by a slot of `one`; by then both ingestors' offers are known
        probe = await one.take()
        assert minute(probe.historical.start_time) == 100
        await one.send(ingest.WorkReject(job_id=first.job_id, reason="banned"))
        second = await two.take()
        await two.send(ingest.WorkReject(job_id=second.job_id, reason="banned too"))
        third = await one.take()
        await one.send(ingest.WorkReject(job_id=third.job_id, reason="still banned"))
        record = await s.finished("r")
        assert (record.status, list(record.missing)) == (ERROR, ranges([(0, 10)]))
        assert record.error_message.startswith(
            "given up after 3 attempts in a row without a page, "
            "the last because the ingestor rejected it: still banned; missing ["
        )


async def test_job_for_a_dead_ingestor_goes_to_a_living_one(tmp_path: Path) -> None:
    # the lease is short because the send may still succeed in the instant before ZMQ notices the death
    async with suite(tmp_path, lease_seconds=1) as s:
        given_up, alive = s.ingestor(), s.ingestor()
        await given_up.offer()
        await s.queued("a", 0, 10)
        first = await given_up.take()
        await given_up.offer(3)
        await given_up.send(ingest.WorkComplete(job_id=first.job_id, success=True))
        given_up.socket.close()
        await s.queued("b", 100, 110)
        await alive.offer(1)
        assert minute((await alive.take()).historical.start_time) == 100


async def test_limit_ends_at_the_nth_candle(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        ingestor = await s.offering()
        await s.queued("r", 0, 10_000, limit=10)
        holes = [*range(4, 9), 12]
        done = await ingestor.work(s.pipeline, dispatches=2, holes=holes)
        spans = [span_of(d) for d in done]
        assert spans == [(0, 10), (10, 20)]
        record = await s.finished("r")
        assert (record.status, record.row_count, record.empty_periods) == (OK, 10, 6)
        assert record.answered_end_ns == at(16)
        reported = (await s.notification("HISTORY_READY:r")).ready
        assert (reported.row_count, reported.end_time) == (10, at(16))
        await s.queued("more", 0, 12, limit=4_000_000_000)
        more = await s.finished("more")
        assert (more.status, more.row_count, more.answered_end_ns) == (OK, 7, at(12))


async def test_rows_lost_from_the_table_are_an_error_and_fetched_again(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        ingestor = await s.offering()
        snapshot_id = s.pipeline.write([0, 1, 2, 7, 8, 9])
        await s.pipeline.report(snapshot_id=snapshot_id, pages=[page(EARLIER, 0, 10, empty=[(3, 4)])])
        await s.queued("r", 0, 10)
        record = await s.finished("r")
        assert (record.status, record.row_count, list(record.missing)) == (ERROR, 6, ranges([(4, 7)]))
        assert "lacks rows" in record.error_message
        await s.queued("again", 0, 10)
        done = await ingestor.work(s.pipeline, dispatches=1)
        assert minute(done[0].historical.start_time) == 4
        assert (await s.finished("again")).row_count == 9


@pytest.mark.parametrize("limit", [None, 9])
@pytest.mark.parametrize("surplus", [7, 3], ids=["a double", "one where none should be"])
async def test_rows_too_many_do_not_make_up_for_lost_ones(tmp_path: Path, surplus: int, limit: int | None) -> None:
    async with suite(tmp_path) as s:
        s.pipeline.write([surplus])
        snapshot_id = s.pipeline.write([0, 1, 2, 4, 6, 7, 8, 9])
        await s.pipeline.report(snapshot_id=snapshot_id, pages=[page(EARLIER, 0, 10, empty=[(3, 4)])])
        await s.queued("r", 0, 10, limit=limit)
        record = await s.finished("r")
        assert (record.status, list(record.missing)) == (ERROR, ranges([(5, 6)]))
        assert "lacks rows" in record.error_message


async def test_timeout_without_any_slot_names_what_is_missing(tmp_path: Path) -> None:
    async with suite(tmp_path, request_timeout_seconds=0.3) as s:
        await s.queued("r", 0, 10)
        record = await s.finished("r")
        assert (record.status, list(record.missing)) == (TIMEOUT, ranges([(0, 10)]))
        assert record.error_message.startswith("no progress for 0.3 s; missing [2024-01-01T00:00:00Z")


async def test_restart_goes_on_with_the_same_job_and_keeps_cursors(tmp_path: Path) -> None:
    async with suite(tmp_path, job_periods=10) as s:
        ingestor = await s.offering()
        await s.queued("done", 100, 105)
        await ingestor.work(s.pipeline, dispatches=1)
        await s.finished("done")
        await s.queued("r", 0, 20, client_id="me")
        running = await ingestor.take()
        assert await ingestor.page(running.job_id, 0, 5)
    async with suite(tmp_path, job_periods=10) as s:
        record = await s.record("r")
        assert (record.state, record.progress.settled_periods) == (history_pb.REQUEST_STATE_RUNNING, 5)
        ingestor = s.ingestor()
        assert await ingestor.page(running.job_id, 5, 10)
        await ingestor.send(ingest.WorkComplete(job_id=running.job_id, success=True))
        await s.pipeline.land(running)
        await ingestor.offer()
        done = await ingestor.work(s.pipeline, dispatches=1)
        assert minute(done[0].historical.start_time) == 10
        assert (await s.finished("r")).row_count == 20
        assert (await s.submit("r", 0, 20, client_id="me")).status == ingest.SubmitResponse.DUPLICATE
        first = await s.notification("HISTORY_READY:done")
        assert first.cursor.sequence < (await s.notification("RESPONSE:me")).cursor.sequence


async def test_coverage_table_is_read_at_start(tmp_path: Path) -> None:
    catalog = catalog_settings(tmp_path).load()
    make_tables(catalog)
    write_coverage(catalog, coverage_row(0, 10, fetched_ns=1, empty=[(0, 10)]))
    catalog.close()
    async with suite(tmp_path) as s:
        await s.queued("r", 2, 8)
        record = await s.finished("r")
        assert (record.status, record.empty_periods) == (NOT_FOUND, 6)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"request_id": ""}, "request_id '' has 0 characters"),
    ({"request_id": "x" * 257}, "has 257 characters"),
    ({"request_id": "a\x1b[2J"}, "request_id 'a\\x1b[2J' has a control character"),
    ({"request_id": "a\u202eb"}, "request_id 'a\\u202eb' has a control character"),
    ({"client_id": "a\nb"}, "client_id 'a\\nb' has a control character"),
    ({"client_id": "x" * 257}, "client_id"),
    ({"ticker": "BTCUSDT"}, "ticker 'BTCUSDT' is not SYMBOL.VENUE"),
    ({"ticker": "BTC/USDT.MOON"}, "ticker 'BTC/USDT.MOON': exchange 'MOON' is not known; this relay has SIM"),
    ({"ticker": ""}, "ticker ''"),
    ({"start_time": at(10), "end_time": at(0)}, f"end_time {at(0)} is not after start_time {at(10)}"),
    ({"end_time": at(0)}, "is not after"),
    ({"start_time": at(0) + 1}, f"start_time {at(0) + 1} is not on the 1m grid"),
    ({"end_time": at(10) + 7}, f"end_time {at(10) + 7} is not on the 1m grid"),
    ({"end_time": 2**64 - 1}, f"end_time {2**64 - 1} is outside [0, {MAX_TIME_NS}]"),
    ({"period_seconds": 61}, "period_seconds 61"),
    ({"period_seconds": 0}, "period_seconds 0"),
    ({"period_seconds": 604_800, "end_time": at(0) + 8 * 86_400 * 10**9}, "is not on the 1w grid"),
    ({"limit": 0}, "limit 0"),
    ({"start_time": 0, "end_time": at(0), "period_seconds": 1}, "; at most 200000000 are allowed"),
]


async def test_bad_submissions_name_field_and_value_and_store_nothing(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        for fields, text in BAD:
            message = request("bad", 0, 10)
            message.MergeFrom(ingest.SubmitHistoricalRequest(**fields))
            for name, value in fields.items():
                setattr(message, name, value)
            answer = (await s.relay.history.SubmitHistorical(message)).answer
            assert (answer.status, answer.notification_topic) == (ingest.SubmitResponse.INVALID, ""), fields
            assert text in answer.error_message, fields
        listed = await s.relay.history.ListRequests(history_pb.ListRequestsRequest())
        assert not listed.records


async def test_same_id_is_duplicate_or_invalid(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        topic = await s.queued("r", 0, 10)
        again = await s.submit("r", 0, 10)
        assert (again.status, again.notification_topic) == (ingest.SubmitResponse.DUPLICATE, topic)
        for fields in ({"limit": 5}, {"client_id": "me"}, {"end_time": at(11)}):
            other = await s.submit("r", 0, 10, **fields)
            assert other.status == ingest.SubmitResponse.INVALID
            assert "request_id 'r' was used for another request" in other.error_message
        assert len((await s.relay.history.ListRequests(history_pb.ListRequestsRequest())).records) == 1


async def test_junk_is_refused_and_the_relay_goes_on(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        for size in (64, 4 * 1024 * 1024 - 100, 5 * 1024 * 1024):
            call: Any = s.channel.unary_unary("/dexorder.relay.v1.HistoryService/SubmitHistorical")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(b"\xff" * size)
            assert caught.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED)
        big = await s.submit("r" * 4_000_000, 0, 10)
        assert big.status == ingest.SubmitResponse.INVALID
        await s.queued("r", 0, 10)


async def test_list_pages_and_filters_and_unknown_ids(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        for number in range(5):
            await s.queued(f"r{number}", number * 10, number * 10 + 10, client_id="even" if number % 2 == 0 else None)
        await s.relay.history.CancelRequest(history_pb.CancelRequestRequest(request_id="r2"))

        async def listed(**fields: Any) -> tuple[list[str], str]:
            answer = await s.relay.history.ListRequests(history_pb.ListRequestsRequest(**fields))
            return [record.request.request_id for record in answer.records], answer.next_page_token

        first, token = await listed(page_size=2)
        second, token = await listed(page_size=2, page_token=token)
        third, end = await listed(page_size=2, page_token=token)
        assert [*first, *second, *third] == ["r4", "r3", "r2", "r1", "r0"] and end == ""
        assert (await listed(client_id="even"))[0] == ["r4", "r2", "r0"]
        assert (await listed(state=history_pb.REQUEST_STATE_FINISHED))[0] == ["r2"]
        assert (await listed(state=history_pb.REQUEST_STATE_QUEUED))[0] == ["r4", "r3", "r1", "r0"]
        cases: list[tuple[Any, grpc.StatusCode]] = [
            (s.relay.history.GetRequest(history_pb.GetRequestRequest(request_id="x")), grpc.StatusCode.NOT_FOUND),
            (s.relay.history.CancelRequest(history_pb.CancelRequestRequest(request_id="x")), grpc.StatusCode.NOT_FOUND),
            (
                s.relay.history.WatchProgress(history_pb.WatchProgressRequest(request_id="x")).read(),
                grpc.StatusCode.NOT_FOUND,
            ),
            (
                s.relay.history.ListRequests(history_pb.ListRequestsRequest(page_size=1001)),
                grpc.StatusCode.INVALID_ARGUMENT,
            ),
            (
                s.relay.history.ListRequests(history_pb.ListRequestsRequest(page_token="-1")),
                grpc.StatusCode.INVALID_ARGUMENT,
            ),
            (
                s.relay.history.WatchNotifications(history_pb.WatchNotificationsRequest(topic="x")).read(),
                grpc.StatusCode.INVALID_ARGUMENT,
            ),
        ]
        for call, code in cases:
            with refused(code):
                await call


async def test_page_report_outside_its_dispatch_or_without_job_is_refused(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        ingestor, dispatch = await s.dispatched("r", 0, 10)
        assert not await ingestor.page("unknown", 0, 10)
        for job_id, start, end in ((dispatch.job_id, 5, 11), ("", 0, 1), (dispatch.job_id, 5, 4)):
            with refused(grpc.StatusCode.INVALID_ARGUMENT):
                await ingestor.stub.ReportPage(_page_report(job_id, start, end))
        assert not (await ingestor.stub.ReportDelay(ipb.ReportDelayRequest(job_id="unknown"))).current
        assert (await s.record("r")).progress.settled_periods == 0, "nothing of them counts"
        assert await ingestor.page(dispatch.job_id, 0, 10), "the dispatch goes on"


def _page_report(job_id: str, start: int, end: int) -> Any:
    return ipb.ReportPageRequest(job_id=job_id, start_ns=at(start), end_ns=at(end))


async def test_reports_repeat_without_effect_and_nonsense_in_them_is_left_out(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        _, dispatch = await s.dispatched("r", 0, 10)
        snapshot_id = s.pipeline.write(range(10))
        bad = page(dispatch.job_id, 5, 4)
        with structlog.testing.capture_logs() as logs:
            for _ in range(2):
                await s.pipeline.report(
                    snapshot_id=snapshot_id,
                    pages=[bad, page(dispatch.job_id, 0, 10)],
                    finals=[final_of("unknown"), final_of(""), final_of(dispatch.job_id)],
                )
        ignored = [each["part"] for each in logs if each["event"] == "part of a pipeline report ignored"]
        assert Counter(ignored) == {"page": 2, "final": 2}
        record = await s.finished("r")
        assert (record.status, record.row_count) == (OK, 10)
        await s.pipeline.report(finals=[final_of(dispatch.job_id, ingest.DataResponse.ERROR, "late")])
        assert await s.record("r") == record


async def test_streams_end_when_the_relay_stops(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        relays = await stack.enter_async_context(AsyncExitStack())
        running = await relays.enter_async_context(
            relay(settings(tmp_path, drain_seconds=60), catalog_settings(tmp_path), SystemClock())
        )
        stub: Any = RelayStubs(await stack.enter_async_context(grpc.aio.insecure_channel(running.address)))
        await stub.history.SubmitHistorical(request("r", 0, 10))
        progress = stub.history.WatchProgress(history_pb.WatchProgressRequest(request_id="r"))
        assert (await progress.read()).state == history_pb.REQUEST_STATE_QUEUED
        await stub.history.CancelRequest(history_pb.CancelRequestRequest(request_id="r"))
        events = stub.history.WatchNotifications(history_pb.WatchNotificationsRequest(topic="HISTORY_READY:r"))
        assert (await events.read()).HasField("opened")
        assert (await events.read()).notification.ready.request_id == "r"
        live = stub.realtime.WatchMarketData(WatchMarketDataRequest(tickers=[TICKER], include_trades=True))
        await live.read()
        await relays.aclose()  # would take a minute if the streams stayed
        for stream in (events, live):
            with refused(grpc.StatusCode.UNAVAILABLE):
                await stream.read()


async def test_catalog_is_told_to_readers(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        answer = await s.relay.rows.GetCatalog(rows_pb.GetCatalogRequest())
        assert (answer.name, dict(answer.properties)) == ("dexorder", catalog_settings(tmp_path).properties())


async def test_a_relay_that_cannot_read_its_tables_does_not_start_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "LOAD_ATTEMPTS", 1)
    catalog = catalog_settings(tmp_path).load()
    write_coverage(catalog, coverage_row(0, 10, fetched_ns=1))
    catalog.close()
    for file in (tmp_path / "warehouse").rglob("*.parquet"):
        file.unlink()
    with pytest.raises(Unavailable, match=r"trading\.coverage can't be read: .*parquet.*; check that catalog"):
        async with suite(tmp_path):
            pass
    (tmp_path / "catalog.db").write_text("no database")
    with pytest.raises(Unavailable, match=r"catalog 'dexorder' can't be opened: .*not a database"):
        async with relay(settings(tmp_path), catalog_settings(tmp_path), SystemClock()):
            pass
