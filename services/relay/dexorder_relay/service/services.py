"""The gRPC services of the relay. Each is composed of parts, and each of its RPCs is a method of one of them.

``dexorder_common/rpc/server_interceptor.py`` turns errors into statuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from dexorder_common.rpc.identity import Role
from dexorder_protos.dexorder.relay.v1 import (
    coverage_service_pb2,
    coverage_service_pb2_grpc,
    history_service_pb2,
    history_service_pb2_grpc,
    ingestor_service_pb2,
    ingestor_service_pb2_grpc,
    operator_service_pb2,
    operator_service_pb2_grpc,
    pipeline_service_pb2,
    pipeline_service_pb2_grpc,
    realtime_service_pb2,
    realtime_service_pb2_grpc,
    rows_service_pb2,
    rows_service_pb2_grpc,
    trigger_service_pb2,
    trigger_service_pb2_grpc,
)
from dexorder_protos.dexorder.udf.v1 import udf_registry_service_pb2, udf_registry_service_pb2_grpc
from dexorder_relay.access import ROLES
from dexorder_relay.engine import RelayEngine
from dexorder_relay.service.batches import BatchRpcs
from dexorder_relay.service.realtime import RealtimeReports, RealtimeRpcs
from dexorder_relay.service.receipts import ReceiptRpcs
from dexorder_relay.service.reports import JobReports, PipelineReports
from dexorder_relay.service.requests import RequestRpcs
from dexorder_relay.service.tables import TableRpcs
from dexorder_relay.service.triggers import TriggerReports, TriggerRpcs
from dexorder_relay.service.turns import Handler, ReadTurns, only_reads
from dexorder_relay.service.udfs import UdfReports, UdfRpcs
from dexorder_relay.store.database import Store

SERVICES = {
    "History": (history_service_pb2, history_service_pb2_grpc),
    "Coverage": (coverage_service_pb2, coverage_service_pb2_grpc),
    "Realtime": (realtime_service_pb2, realtime_service_pb2_grpc),
    "Trigger": (trigger_service_pb2, trigger_service_pb2_grpc),
    "Rows": (rows_service_pb2, rows_service_pb2_grpc),
    "Operator": (operator_service_pb2, operator_service_pb2_grpc),
    "Ingestor": (ingestor_service_pb2, ingestor_service_pb2_grpc),
    "Pipeline": (pipeline_service_pb2, pipeline_service_pb2_grpc),
    "UdfRegistry": (udf_registry_service_pb2, udf_registry_service_pb2_grpc),
}
"""Modules of each service, by its name without ``Service``."""


def compose(
    service: ServiceDescriptor, *parts: object, turns: ReadTurns | None = None, store: Store | None = None
) -> Any:  # an untyped servicer
    """Return a servicer with the methods of the parts as RPCs; TypeError unless each RPC is in exactly one part.

    Args:
        turns: Turns at those unary calls of the service that only read, unless a part has its own.
        store: What unary calls of the service may wait for; they end as Exhausted while its disk is full.
    """
    methods = {}
    for name, method in service.methods_by_name.items():
        found = [part for part in parts if hasattr(part, name)]
        if len(found) != 1:
            raise TypeError(f"{service.name}.{name} is a method of {len(found)} parts instead of one")
        (part,) = found
        handler = getattr(part, name)
        if turns and only_reads(method) and not isinstance(part, ReceiptRpcs):
            handler = turns.around(handler)
        if store and not method.server_streaming:
            handler = _in_time(handler, store)
        methods[name] = handler
    return SimpleNamespace(**methods)


def _in_time(handler: Handler, store: Store) -> Handler:
    async def answered(request: Any, context: Any) -> Any:
        async with store.in_time():
            return await handler(request, context)

    return answered


def register(server: grpc.aio.Server, engine: RelayEngine) -> Sequence[str]:
    """Add the services for clients, ingestors and Spark; return their names."""
    requests, tables, realtime = RequestRpcs(engine), TableRpcs(engine), RealtimeRpcs(engine)
    parts: dict[str, tuple[object, ...]] = {
        "History": (requests, BatchRpcs(engine), tables),
        "Coverage": (tables,),
        "Realtime": (realtime,),
        "Trigger": (TriggerRpcs(engine),),
        "Rows": (tables, ReceiptRpcs(engine)),
        "Operator": (requests, tables, realtime),
        "Ingestor": (JobReports(engine), RealtimeReports(engine)),
        "Pipeline": (PipelineReports(engine), TriggerReports(engine), UdfReports(engine)),
        "UdfRegistry": (UdfRpcs(engine),),
    }
    names, turns = [], ReadTurns()
    for name, (messages, stubs) in SERVICES.items():
        service: ServiceDescriptor = messages.DESCRIPTOR.services_by_name[f"{name}Service"]
        roles = ROLES[service.full_name]
        is_of_parts = not {Role.CLIENT, Role.ADMIN}.intersection(roles)  # which repeat a call until it succeeds
        servicer = compose(
            service,
            *parts[name],
            turns=turns if Role.CLIENT in roles else None,
            store=None if is_of_parts else engine.context.store,
        )
        getattr(stubs, f"add_{name}ServiceServicer_to_server")(servicer, server)
        names.append(service.full_name)
    return names
