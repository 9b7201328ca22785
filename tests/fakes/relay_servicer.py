"""Base of fake relays: all services for clients in one class."""

from __future__ import annotations

import grpc

from dexorder_protos.dexorder.relay.v1 import coverage_service_pb2_grpc as coverage
from dexorder_protos.dexorder.relay.v1 import history_service_pb2_grpc as history
from dexorder_protos.dexorder.relay.v1 import operator_service_pb2_grpc as operator
from dexorder_protos.dexorder.relay.v1 import realtime_service_pb2_grpc as realtime
from dexorder_protos.dexorder.relay.v1 import rows_service_pb2_grpc as rows
from dexorder_protos.dexorder.relay.v1 import trigger_service_pb2_grpc as trigger


class RelayServicer(
    history.HistoryServiceServicer,
    coverage.CoverageServiceServicer,
    realtime.RealtimeServiceServicer,
    trigger.TriggerServiceServicer,
    rows.RowsServiceServicer,
    operator.OperatorServiceServicer,
):
    """Answers every RPC with UNIMPLEMENTED."""


def add_relay_services(server: grpc.aio.Server, servicer: RelayServicer) -> None:
    """Add all services for clients to a server."""
    history.add_HistoryServiceServicer_to_server(servicer, server)
    coverage.add_CoverageServiceServicer_to_server(servicer, server)
    realtime.add_RealtimeServiceServicer_to_server(servicer, server)
    trigger.add_TriggerServiceServicer_to_server(servicer, server)
    rows.add_RowsServiceServicer_to_server(servicer, server)
    operator.add_OperatorServiceServicer_to_server(servicer, server)
