"""The gRPC services of the relay. Each is composed of parts, and each of its RPCs is a method of one of them.

``dexorder_common/rpc/server_interceptor.py`` turns errors into statuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2 as ingestor_pb
from dexorder_protos.dexorder.relay.v1 import (
    ingestor_service_pb2_grpc,
    pipeline_service_pb2_grpc,
    relay_service_pb2_grpc,
)
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as pipeline_pb
from dexorder_protos.dexorder.relay.v1 import relay_service_pb2 as relay_pb
from dexorder_protos.dexorder.udf.v1 import udf_registry_service_pb2 as udf_pb
from dexorder_protos.dexorder.udf.v1 import udf_registry_service_pb2_grpc
from dexorder_relay.engine import RelayEngine
from dexorder_relay.service.realtime import RealtimeReports, RealtimeRpcs
from dexorder_relay.service.reports import JobReports, PipelineReports
from dexorder_relay.service.requests import RequestRpcs
from dexorder_relay.service.tables import TableRpcs
from dexorder_relay.service.triggers import TriggerReports, TriggerRpcs
from dexorder_relay.service.udfs import UdfReports, UdfRpcs

RELAY = relay_pb.DESCRIPTOR.services_by_name["RelayService"]
INGESTOR = ingestor_pb.DESCRIPTOR.services_by_name["IngestorService"]
PIPELINE = pipeline_pb.DESCRIPTOR.services_by_name["PipelineService"]
UDFS = udf_pb.DESCRIPTOR.services_by_name["UdfRegistryService"]


def compose(service: ServiceDescriptor, *parts: object) -> Any:  # an untyped servicer
    """Return the servicer whose RPCs are methods of the parts; TypeError unless each RPC is in exactly one of them."""
    methods = {}
    for name in service.methods_by_name:
        found = [getattr(part, name) for part in parts if hasattr(part, name)]
        if len(found) != 1:
            raise TypeError(f"{service.name}.{name} is a method of {len(found)} parts instead of one")
        methods[name] = found[0]
    return SimpleNamespace(**methods)


def register(server: grpc.aio.Server, engine: RelayEngine) -> Sequence[str]:
    """Add the services for clients, ingestors and Spark; return their names."""
    clients = RequestRpcs(engine), TableRpcs(engine), RealtimeRpcs(engine), TriggerRpcs(engine)
    relay_service_pb2_grpc.add_RelayServiceServicer_to_server(compose(RELAY, *clients), server)
    ingestors = JobReports(engine), RealtimeReports(engine)
    ingestor_service_pb2_grpc.add_IngestorServiceServicer_to_server(compose(INGESTOR, *ingestors), server)
    pipeline = PipelineReports(engine), TriggerReports(engine), UdfReports(engine)
    pipeline_service_pb2_grpc.add_PipelineServiceServicer_to_server(compose(PIPELINE, *pipeline), server)
    udf_registry_service_pb2_grpc.add_UdfRegistryServiceServicer_to_server(compose(UDFS, UdfRpcs(engine)), server)
    return [each.full_name for each in (UDFS, RELAY, INGESTOR, PIPELINE)]
