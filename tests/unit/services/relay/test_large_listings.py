"""Listings whose entries are large: each page fits, none of them is lost, and a page has one entry at least."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as history_pb
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2 as ipb
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as ppb
from dexorder_protos.dexorder.relay.v1 import realtime_service_pb2 as realtime_pb
from dexorder_protos.dexorder.relay.v1 import rows_service_pb2 as rows_pb
from dexorder_protos.dexorder.relay.v1 import trigger_service_pb2 as trigger_pb
from dexorder_protos.dexorder.udf.v1 import udf_registry_service_pb2 as udf_pb
from dexorder_protos.dexorder.udf.v1 import udf_registry_service_pb2_grpc as udf_rpc
from dexorder_relay.requests import queries
from tests.series_messages import series
from tests.unit.services.relay.harness import TICKER, Suite, at, request, suite

TICKERS = TICKER, f"B{TICKER}"
COUNT, LIMIT = 6, 1_000
"""Each entry has about a third of the limit, so two or three fit."""
LONG = "x" * 300


async def fill(s: Suite, udfs: Any) -> None:
    """Make COUNT entries of each listing."""
    snapshot_id = s.pipeline.write(range(10))
    markets = [history_pb.Instrument(ticker=f"A{n}/{LONG[:200]}.SIM", active=True) for n in range(COUNT)]
    await s.ingestors.ReportInstruments(ipb.ReportInstrumentsRequest(exchange="SIM", instruments=markets, fetched_ns=1))
    status = udf_pb.UdfStatus(name="u0", state=udf_pb.UDF_STATE_RUNNING)
    for n in range(COUNT):
        await s.relay.history.SubmitHistorical(request(f"r{n}{LONG[:100]}", 0, 10))
        sql = f"SELECT `close` FROM ohlc WHERE `close` > {n}{' ' * 300}"
        trigger = ingest.CEPTriggerRequest(trigger_id=f"t{n}", sql_pattern=sql, tickers=[TICKER], callback_id="c")
        await s.relay.trigger.RegisterTrigger(trigger_pb.RegisterTriggerRequest(trigger=trigger))
        option = udf_pb.UdfOption(name="o", values=[LONG])
        await udfs.StartUdf(udf_pb.StartUdfRequest(udf=udf_pb.Udf(name=f"u{n}", program="average", options=[option])))
        params = ingest.RealtimeParams(include_ticks=True, include_ohlc=True, ohlc_period_seconds=[60])
        wanted = realtime_pb.RealtimeSubscription(
            subscription_id=f"s{n}{LONG[:200]}", client_id="c", ticker=TICKERS[n % 2], params=params
        )
        await s.relay.realtime.StartRealtime(realtime_pb.StartRealtimeRequest(subscription=wanted))
        receipt = rows_pb.Receipt(
            receipt_id=f"r{n}{'x' * 50}",
            series=series(ticker=TICKER, period_seconds=60),
            start_ns=at(0),
            end_ns=at(10),
            snapshot_id=snapshot_id,
            document_sha256="a" * 64,
        )
        await s.relay.rows.CreateReceipt(rows_pb.CreateReceiptRequest(receipt=receipt))
    lines = [udf_pb.UdfLogLine(time_ns=n, text=f"{n} {LONG}") for n in range(COUNT)]
    logs = [ppb.UdfLogLines(name="u0", lines=lines)]
    await s.pipeline.stub.SyncUdfs(ppb.SyncUdfsRequest(statuses=[status], logs=logs))


async def test_a_listing_of_large_entries_comes_in_pages_that_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "MAX_PAGE_BYTES", LIMIT)
    async with suite(tmp_path) as s:
        udfs = udf_rpc.UdfRegistryServiceStub(s.channel)
        await fill(s, udfs)
        listings: list[tuple[Any, Any, str]] = [
            (s.relay.history.ListRequests, history_pb.ListRequestsRequest(), "records"),
            (s.relay.history.ListInstruments, history_pb.ListInstrumentsRequest(exchange="SIM"), "instruments"),
            (s.relay.realtime.ListRealtime, realtime_pb.ListRealtimeRequest(client_id="c"), "subscriptions"),
            (s.relay.trigger.ListTriggers, trigger_pb.ListTriggersRequest(), "triggers"),
            (udfs.ListUdfs, udf_pb.ListUdfsRequest(), "udfs"),
            (udfs.ListUdfLogs, udf_pb.ListUdfLogsRequest(name="u0"), "lines"),
            (s.relay.rows.ListReceipts, rows_pb.ListReceiptsRequest(), "receipts"),
        ]
        for call, wanted, field in listings:
            pages, entries = 0, list[str]()
            while True:
                answer = await call(wanted)
                found = getattr(answer, field)
                assert len(found) >= 1 and sum(each.ByteSize() for each in found) <= LIMIT, field
                if field == "subscriptions":  # with the job of each
                    assert {job.ticker for job in answer.jobs} == {each.subscription.ticker for each in found}
                pages, entries = pages + 1, [*entries, *map(str, found)]
                if not answer.next_page_token:
                    break
                wanted.page_token = answer.next_page_token
            assert (len(entries), len({*entries})) == (COUNT, COUNT) and pages >= 2, field
