"""GetServerInfo, which every server of the suite serves: version, services, datasets and limits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.descriptor_pool import Default

from dexorder_common.model.datasets import DATASETS
from dexorder_common.packages import version
from dexorder_common.rpc.identity import SERVER_INFO
from dexorder_common.rpc.settings import ServiceSettings
from dexorder_protos.dexorder.api.v1 import annotations_pb2
from dexorder_protos.dexorder.server.v1 import server_info_service_pb2 as pb
from dexorder_protos.dexorder.server.v1 import server_info_service_pb2_grpc as rpc

CAPABILITIES = ("cursor-epochs", "funding", "repair-values")
"""Abilities that a client can't see from the services, ascending; docs/api.md says what each means."""
_LIMITS = ("max_", "quota_", "parallel_")


@dataclass(frozen=True)
class ServerInfo(rpc.ServerInfoServiceServicer):
    """Answers with facts that do not change."""

    answer: pb.GetServerInfoResponse

    async def GetServerInfo(self, request: pb.GetServerInfoRequest, context: Any) -> pb.GetServerInfoResponse:  # noqa: N802
        """Return the facts."""
        return self.answer


def add_server_info(server: grpc.aio.Server, settings: ServiceSettings, services: Iterable[str]) -> None:
    """Add the service to a server with these other services."""
    part = str(settings.model_config.get("env_prefix", "")).removeprefix("DEXORDER_").strip("_").lower()
    limits = {
        name: value
        for name, value in sorted(settings)
        if name.startswith(_LIMITS) and isinstance(value, int) and not isinstance(value, bool)
    }
    answer = pb.GetServerInfoResponse(
        part=part,
        version=version(),
        services=[
            pb.ServedService(name=name, stability=stability_of(name)) for name in sorted({*services, SERVER_INFO})
        ],
        datasets=[each.name for each in DATASETS],
        capabilities=CAPABILITIES,
        limits=[pb.ServerLimit(name=name, value=value) for name, value in limits.items()],
    )
    rpc.add_ServerInfoServiceServicer_to_server(ServerInfo(answer), server)


def stability_of(service: str) -> annotations_pb2.Stability.ValueType:
    """Return the stability that the proto of a service states; a given protocol is stable."""
    options = Default().FindServiceByName(service).GetOptions()
    stated: annotations_pb2.Stability.ValueType = options.Extensions[annotations_pb2.stability]
    return stated or annotations_pb2.STABILITY_STABLE
