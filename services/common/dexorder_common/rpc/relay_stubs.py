"""Stubs of the relay's services for clients, one for each service, on one channel."""

from __future__ import annotations

import grpc

from dexorder_protos.dexorder.relay.v1.coverage_service_pb2_grpc import CoverageServiceStub
from dexorder_protos.dexorder.relay.v1.history_service_pb2_grpc import HistoryServiceStub
from dexorder_protos.dexorder.relay.v1.operator_service_pb2_grpc import OperatorServiceStub
from dexorder_protos.dexorder.relay.v1.realtime_service_pb2_grpc import RealtimeServiceStub
from dexorder_protos.dexorder.relay.v1.rows_service_pb2_grpc import RowsServiceStub
from dexorder_protos.dexorder.relay.v1.trigger_service_pb2_grpc import TriggerServiceStub


class RelayStubs:
    """Stubs of an asyncio channel."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.history = HistoryServiceStub(channel)
        self.coverage = CoverageServiceStub(channel)
        self.realtime = RealtimeServiceStub(channel)
        self.trigger = TriggerServiceStub(channel)
        self.rows = RowsServiceStub(channel)
        self.operator = OperatorServiceStub(channel)


class BlockingRelayStubs:
    """Stubs of a blocking channel."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.history = HistoryServiceStub(channel)
        self.coverage = CoverageServiceStub(channel)
        self.realtime = RealtimeServiceStub(channel)
        self.trigger = TriggerServiceStub(channel)
        self.rows = RowsServiceStub(channel)
        self.operator = OperatorServiceStub(channel)
