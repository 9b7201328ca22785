"""A sound call of each RPC of the suite, for tests that change its bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf import empty_pb2
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from dexorder_common.model.datasets import CANDLES
from dexorder_protos.dexorder.events.v1 import event_service_pb2 as event_pb
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as user_pb
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.kafka.v1 import record_service_pb2 as record_pb
from dexorder_protos.dexorder.market.v1 import market_pb2 as market
from dexorder_protos.dexorder.market.v1 import ohlcv_pb2
from dexorder_protos.dexorder.pipeline.v1 import maintenance_service_pb2 as maintenance_pb
from dexorder_protos.dexorder.relay.v1 import common_pb2 as common
from dexorder_protos.dexorder.relay.v1 import coverage_service_pb2 as coverage_pb
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as history_pb
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2 as ingestor_pb
from dexorder_protos.dexorder.relay.v1 import operator_service_pb2 as operator_pb
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as pipeline_pb
from dexorder_protos.dexorder.relay.v1 import realtime_service_pb2 as realtime_pb
from dexorder_protos.dexorder.relay.v1 import rows_service_pb2 as rows_pb
from dexorder_protos.dexorder.relay.v1 import trigger_service_pb2 as trigger_pb
from dexorder_protos.dexorder.server.v1 import server_info_service_pb2 as info_pb
from dexorder_protos.dexorder.udf.v1 import udf_registry_service_pb2 as udfs_pb
from dexorder_protos.dexorder.udf.v1 import udf_service_pb2 as run_pb
from dexorder_protos.kafkapixy import kafkapixy_pb2 as pixy
from dexorder_protos.source.v1 import source_pb2 as source
from dexorder_protos.udf import udf_pb2 as udf
from tests.rig.oracle import minutes
from tests.series_messages import series
from write_limits import services


@dataclass(frozen=True)
class Sample:
    """Sound messages of a call.

    Attributes:
        part: Part that serves it: relay, gateway, udsource, spark, or udf, an agent.
        messages: Messages of the call; more than one where the client streams.
        waits: Whether sound calls may wait for something to happen, or for another server.
    """

    part: str
    messages: Sequence[Message]
    waits: bool = False


TICKER, JOB, USER = "BTC/USDT.SIM", "0" * 32, "ann"
SPAN = minutes(0, 10)
NS: dict[str, Any] = {"start_ns": SPAN.start_ns, "end_ns": SPAN.end_ns}
RANGE, SERIES = common.TimeRange(**NS), series(TICKER, 60)
CURSOR = common.Cursor(epoch="e", sequence=3)
LISTING: dict[str, Any] = {"page_size": 5, "page_token": "9"}
GROUP: dict[str, Any] = {"topic": CANDLES.topic, "group": "g"}
OHLCV = ohlcv_pb2.OHLCV(open=1.0, high=2.0, low=0.5, close=1.5, volume=3.0)
TRADE = market.Trade(
    trade_id="t1", time_ns=SPAN.start_ns, price=1.5, amount=2.0, side=market.Trade.SIDE_BUY, ticker=TICKER
)
CANDLE = market.Candle(ticker=TICKER, period_seconds=60, ohlcv=OHLCV, closed=True)
REQUEST = ingest.SubmitHistoricalRequest(
    request_id="r",
    ticker=TICKER,
    period_seconds=60,
    limit=5,
    client_id="c",
    start_time=SPAN.start_ns,
    end_time=SPAN.end_ns,
)
TRIGGER = ingest.CEPTriggerRequest(
    trigger_id="t", sql_pattern="SELECT * FROM ohlc WHERE close > :level", tickers=[TICKER], parameters={"level": "5"}
)
DELIVERY = user_pb.DeliverySpec(
    priority=user_pb.NORMAL, channels=[user_pb.ChannelPreference(channel=user_pb.TELEGRAM, only_if_active=True)]
)
EVENT = user_pb.UserEvent(user_id=USER, event_id="e", timestamp=1, payload=b'{"a": 1}', delivery=DELIVERY)
CONTACTS = event_pb.Contacts(telegram_chat_id="1", email="ann@example.com")
UDF = udfs_pb.Udf(
    name="u",
    program="ema",
    options=[udfs_pb.UdfOption(name="size", values=["3"])],
    input=udfs_pb.UdfInput(table="ohlc", tickers=[TICKER], period_seconds=[60]),
    output=udfs_pb.UdfOutput(topic="out", user_id=USER, title="title"),
)
CONTROL = ingest.IngestorControl(
    action=ingest.IngestorControl.CONFIG_UPDATE, config=ingest.IngestorConfig(max_concurrent=2, timeout_seconds=5)
)
OFFSET = source.Offset(offset=b"1", partition_id=1)
FIRED = pipeline_pb.ReportedTriggerEvent(
    event_id="e",
    registration=1,
    ticker=TICKER,
    event=ingest.CEPTriggerEvent(
        trigger_id="t", timestamp=SPAN.start_ns, rows=[ingest.ResultRow(values=[b"\x12\x01a"])]
    ),
)


def relay(message: Message, *, waits: bool = False) -> Sample:
    return Sample("relay", [message], waits)


def gateway(message: Message, *, waits: bool = False) -> Sample:
    return Sample("gateway", [message], waits)


HISTORY = {
    "SubmitHistorical": relay(REQUEST),
    "SubmitHistoricalBatch": relay(
        history_pb.SubmitHistoricalBatchRequest(requests=[REQUEST, REQUEST], with_progress=True)
    ),
    "GetRequest": relay(history_pb.GetRequestRequest(request_id="r")),
    "ListRequests": relay(
        history_pb.ListRequestsRequest(client_id="c", state=history_pb.REQUEST_STATE_QUEUED, **LISTING)
    ),
    "CancelRequest": relay(history_pb.CancelRequestRequest(request_id="x")),
    "WatchProgress": relay(history_pb.WatchProgressRequest(request_id="r")),
    "WatchNotifications": relay(history_pb.WatchNotificationsRequest(topic="HISTORY_READY:r", after=CURSOR)),
    "SnapshotTickers": relay(history_pb.SnapshotTickersRequest(request_id="s", exchange="SIM", client_id="c")),
    "StreamOhlc": relay(
        history_pb.StreamOhlcRequest(
            request=ingest.OHLCRequest(
                request_id="f",
                ticker=TICKER,
                period_seconds=60,
                limit=5,
                start_time=SPAN.start_ns,
                end_time=SPAN.end_ns,
            )
        )
    ),
    "ListInstruments": relay(history_pb.ListInstrumentsRequest(exchange="SIM")),
}
ROWS = {
    "StreamRows": relay(rows_pb.StreamRowsRequest(series=SERIES, snapshot_id=7, **NS)),
    "GetCatalog": relay(rows_pb.GetCatalogRequest()),
    "CreateReceipt": relay(
        rows_pb.CreateReceiptRequest(
            receipt=rows_pb.Receipt(receipt_id="a" * 32, series=SERIES, snapshot_id=7, document_sha256="b" * 64, **NS)
        )
    ),
    "GetReceipt": relay(rows_pb.GetReceiptRequest(receipt_id="a" * 32)),
    "ListReceipts": relay(rows_pb.ListReceiptsRequest(**LISTING)),
    "DeleteReceipt": relay(rows_pb.DeleteReceiptRequest(receipt_id="a" * 32)),
}
COVERAGE = {
    "StreamCoverage": relay(coverage_pb.StreamCoverageRequest(series=SERIES, detail=True, **NS)),
    "VerifyCoverage": relay(coverage_pb.VerifyCoverageRequest(series=SERIES, values=True, **NS)),
}
REALTIME = {
    "StartRealtime": relay(
        realtime_pb.StartRealtimeRequest(
            subscription=realtime_pb.RealtimeSubscription(
                subscription_id="s",
                ticker=TICKER,
                params=ingest.RealtimeParams(include_ticks=True, include_ohlc=True, ohlc_period_seconds=[60]),
                client_id="c",
            )
        )
    ),
    "StopRealtime": relay(realtime_pb.StopRealtimeRequest(subscription_id="other")),
    "ListRealtime": relay(realtime_pb.ListRealtimeRequest(client_id="c", ticker=TICKER, **LISTING)),
    "WatchMarketData": relay(
        realtime_pb.WatchMarketDataRequest(
            tickers=[TICKER], include_trades=True, period_seconds=[60], include_running=True, live_only=True
        )
    ),
}
OPERATOR = {
    "RefreshHistorical": relay(operator_pb.RefreshHistoricalRequest(request=REQUEST)),
    "RepairCoverage": relay(operator_pb.RepairCoverageRequest(series=SERIES, values=True, **NS)),
    "ControlIngestors": relay(operator_pb.ControlIngestorsRequest(control=CONTROL, ingestor_id="i"), waits=True),
}
TRIGGERS = {
    "RegisterTrigger": relay(
        trigger_pb.RegisterTriggerRequest(
            trigger=TRIGGER, client_id="c", alert=trigger_pb.TriggerAlert(user_id=USER, delivery=DELIVERY)
        )
    ),
    "RegisterTriggers": relay(
        trigger_pb.RegisterTriggersRequest(triggers=[trigger_pb.RegisterTriggerRequest(trigger=TRIGGER)] * 2)
    ),
    "PauseTrigger": relay(trigger_pb.PauseTriggerRequest(trigger_id="t")),
    "ResumeTrigger": relay(trigger_pb.ResumeTriggerRequest(trigger_id="t")),
    "EditTrigger": relay(
        trigger_pb.EditTriggerRequest(
            trigger_id="t",
            sql_pattern=TRIGGER.sql_pattern,
            parameters={"level": "6"},
            removed_parameters=["x"],
            reset=True,
        ),
        waits=True,
    ),
    "DeleteTrigger": relay(trigger_pb.DeleteTriggerRequest(trigger_id="t")),
    "ListTriggers": relay(trigger_pb.ListTriggersRequest(client_id="c", ticker=TICKER, **LISTING)),
    "WatchTriggerEvents": relay(trigger_pb.WatchTriggerEventsRequest(trigger_id="t", after=CURSOR)),
    "BacktestTrigger": relay(trigger_pb.BacktestTriggerRequest(trigger=TRIGGER, **NS)),
}
INGESTOR = {
    "ReportPage": relay(ingestor_pb.ReportPageRequest(job_id="j", candles=10, empty=[RANGE], calls=2, **NS)),
    "ReportDelay": relay(
        ingestor_pb.ReportDelayRequest(
            job_id="j", delay=history_pb.Delay(reason="no answer", retries=2, next_attempt_ns=1, banned_until_ns=2)
        )
    ),
    "ReportInstruments": relay(
        ingestor_pb.ReportInstrumentsRequest(
            exchange="SIM",
            fetched_ns=1,
            instruments=[history_pb.Instrument(ticker=TICKER, active=True)],
            candles=history_pb.CandleOffer(period_seconds=[60], call_candles=1_000),
        )
    ),
    "ResumeRealtime": relay(ingestor_pb.ResumeRealtimeRequest(job_id=JOB, ingestor_id="i", exchange_time_ns=5)),
    "ReportRealtime": relay(
        ingestor_pb.ReportRealtimeRequest(
            reports=[
                ingestor_pb.RealtimeReport(job_id=JOB, series=SERIES, count=3, last_trade_id="t1", lag_ns=4, **NS)
            ],
            statuses=[ingestor_pb.RealtimeStatus(job_id=JOB, corrected_trades=1, waiting="why", number=2)],
        )
    ),
    "PushMarketData": relay(
        ingestor_pb.PushMarketDataRequest(
            jobs=[ingestor_pb.JobMarketData(job_id=JOB, trades=[TRADE], candles=[CANDLE])]
        )
    ),
    "WatchControl": relay(ingestor_pb.WatchControlRequest(ingestor_id="i", exchanges=["SIM"], topics=[CANDLES.topic])),
    "ReportControl": relay(
        ingestor_pb.ReportControlRequest(control_id=1, result=operator_pb.ControlResult(ingestor_id="i", reason="why"))
    ),
}
PIPELINE = {
    "ReportJobs": relay(
        pipeline_pb.ReportJobsRequest(
            snapshot_id=1,
            finals=[pipeline_pb.FinalResult(job_id="j")],
            pages=[pipeline_pb.PageResult(job_id="j", series=SERIES, rows=3, empty=[RANGE], **NS)],
        )
    ),
    "DescribeDispatches": relay(pipeline_pb.DescribeDispatchesRequest(job_ids=[JOB, "j"])),
    "ListNamedSnapshots": relay(pipeline_pb.ListNamedSnapshotsRequest(since_ns=1, **LISTING)),
    "WatchTriggers": relay(pipeline_pb.WatchTriggersRequest(after=CURSOR)),
    "ReportTriggerEvents": relay(pipeline_pb.ReportTriggerEventsRequest(events=[FIRED], applied=CURSOR)),
    "SyncUdfs": relay(
        pipeline_pb.SyncUdfsRequest(
            declared=[UDF],
            statuses=[udfs_pb.UdfStatus(name="u", message="why", rows=1)],
            logs=[pipeline_pb.UdfLogLines(name="u", lines=[udfs_pb.UdfLogLine(text="line")])],
            page_token="9",
        )
    ),
}
UDFS = {
    "StartUdf": relay(udfs_pb.StartUdfRequest(udf=UDF, reset_state=True)),
    "StopUdf": relay(udfs_pb.StopUdfRequest(name="u")),
    "ListUdfs": relay(udfs_pb.ListUdfsRequest(**LISTING)),
    "ListUdfLogs": relay(udfs_pb.ListUdfLogsRequest(name="u", after_number=1, **LISTING)),
}
USERS = {
    "WatchEvents": gateway(event_pb.WatchEventsRequest(cursor=event_pb.Cursor(epoch="e", sequence=1), max_events=5)),
    "AckEvent": gateway(
        event_pb.AckEventRequest(cursor=event_pb.Cursor(epoch="e", sequence=1), kind=event_pb.ACK_KIND_RECEIVED)
    ),
}
PUBLISHER = {
    "Publish": gateway(event_pb.PublishRequest(event=EVENT)),
    "PublishMany": Sample("gateway", [event_pb.PublishManyRequest(event=EVENT)] * 2),
}
LOG = {
    "GetEvent": gateway(event_pb.GetEventRequest(container="c", event_id="e")),
    "ListEvents": gateway(event_pb.ListEventsRequest(user_id=USER, container="c", status=user_pb.QUEUED, **LISTING)),
}
CONTACT = {
    "GetContacts": gateway(event_pb.GetContactsRequest(user_id=USER)),
    "SetContacts": gateway(event_pb.SetContactsRequest(user_id=USER, contacts=CONTACTS)),
    "ReportPresence": gateway(event_pb.ReportPresenceRequest(user_id=USER, channel=user_pb.TELEGRAM, active_seconds=5)),
}
PIXY = {
    "Produce": gateway(
        pixy.ProdRq(
            topic=CANDLES.topic,
            key_value=b"k",
            message=b"m",
            async_mode=True,
            headers=[pixy.RecordHeader(key="h", value=b"v")],
        )
    ),
    "ConsumeNAck": gateway(pixy.ConsNAckRq(ack_partition=1, ack_offset=2, **GROUP), waits=True),
    "Ack": gateway(pixy.AckRq(partition=1, offset=2, **GROUP)),
    "GetOffsets": gateway(pixy.GetOffsetsRq(**GROUP), waits=True),
    "SetOffsets": gateway(
        pixy.SetOffsetsRq(
            offsets=[pixy.PartitionOffset(partition=p, offset=0, metadata="BB") for p in range(2)], **GROUP
        ),
        waits=True,
    ),
    "ListTopics": gateway(pixy.ListTopicRq(with_partitions=True), waits=True),
    "ListConsumers": gateway(pixy.ListConsumersRq(**GROUP), waits=True),
    "GetTopicMetadata": gateway(pixy.GetTopicMetadataRq(topic=CANDLES.topic, with_partitions=True), waits=True),
}
RECORDS = {
    "ProduceMany": gateway(
        record_pb.ProduceManyRequest(
            topic=CANDLES.topic,
            records=[
                record_pb.NewRecord(key=b"k", value=b"v", headers=[record_pb.NewRecordHeader(name="h", value=b"v")])
            ],
        ),
        waits=True,
    )
}
SOURCE = {
    "ReadFn": Sample(
        "udsource",
        [
            source.ReadRequest(handshake=source.Handshake(sot=True)),
            source.ReadRequest(request=source.ReadRequest.Request(num_records=5, timeout_in_ms=10)),
        ],
    ),
    "AckFn": Sample(
        "udsource",
        [
            source.AckRequest(handshake=source.Handshake(sot=True)),
            source.AckRequest(request=source.AckRequest.Request(offsets=[OFFSET])),
        ],
    ),
    "NackFn": Sample("udsource", [source.NackRequest(request=source.NackRequest.Request(offsets=[OFFSET]))]),
    "PendingFn": Sample("udsource", [empty_pb2.Empty()], waits=True),
    "PartitionsFn": Sample("udsource", [empty_pb2.Empty()]),
    "IsReady": Sample("udsource", [empty_pb2.Empty()]),
}
SAMPLES: dict[str, Sample] = {
    f"/{service}/{name}": sample
    for service, samples in {
        "dexorder.relay.v1.HistoryService": HISTORY,
        "dexorder.relay.v1.RowsService": ROWS,
        "dexorder.relay.v1.CoverageService": COVERAGE,
        "dexorder.relay.v1.RealtimeService": REALTIME,
        "dexorder.relay.v1.OperatorService": OPERATOR,
        "dexorder.relay.v1.TriggerService": TRIGGERS,
        "dexorder.relay.v1.IngestorService": INGESTOR,
        "dexorder.relay.v1.PipelineService": PIPELINE,
        "dexorder.udf.v1.UdfRegistryService": UDFS,
        "dexorder.udf.v1.UdfService": {
            "Run": Sample(
                "udf",
                [
                    run_pb.RunRequest(requests=[udf.Request(info=udf.InfoRequest())]),
                    run_pb.RunRequest(
                        requests=[
                            udf.Request(init=udf.InitRequest(taskID="t", nodeID="n")),
                            udf.Request(point=udf.Point(time=1, group="g", fieldsDouble={"close": 1.5})),
                        ]
                    ),
                ],
            )
        },
        "dexorder.events.v1.EventService": USERS,
        "dexorder.events.v1.EventPublisherService": PUBLISHER,
        "dexorder.events.v1.EventLogService": LOG,
        "dexorder.events.v1.ContactService": CONTACT,
        "dexorder.kafka.v1.RecordService": RECORDS,
        "dexorder.pipeline.v1.MaintenanceService": {
            "Maintain": Sample("spark", [maintenance_pb.MaintainRequest(tables=["ohlc"], dry_run=True)])
        },
        "dexorder.server.v1.ServerInfoService": {"GetServerInfo": gateway(info_pb.GetServerInfoRequest())},
        "KafkaPixy": PIXY,
        "source.v1.Source": SOURCE,
    }.items()
    for name, sample in samples.items()
}
"""By the path of the RPC."""


def rpcs() -> dict[str, MethodDescriptor]:
    """Return every RPC of the suite by its path."""
    return {f"/{service.full_name}/{each.name}": each for service in services() for each in service.methods}
