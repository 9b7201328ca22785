"""GetServerInfo, which every server of the suite serves: version, services, datasets and limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.descriptor_pool import Default
from pydantic_settings import BaseSettings

from dexorder_common.model.datasets import DATASETS
from dexorder_common.model.server_info import CAPABILITIES, ServerInfo, Stability
from dexorder_common.packages import version
from dexorder_common.rpc.identity import SERVER_INFO
from dexorder_common.rpc.settings import ServiceSettings
from dexorder_protos.dexorder.api.v1 import annotations_pb2
from dexorder_protos.dexorder.server.v1 import server_info_service_pb2 as pb
from dexorder_protos.dexorder.server.v1 import server_info_service_pb2_grpc as rpc

_STABILITIES = {
    annotations_pb2.STABILITY_ALPHA: Stability.ALPHA,
    annotations_pb2.STABILITY_BETA: Stability.BETA,
    annotations_pb2.STABILITY_STABLE: Stability.STABLE,
}
_LIMITS = ("max_", "quota_", "parallel_")


@dataclass(frozen=True)
class ServerInfoRpcs(rpc.ServerInfoServiceServicer):
    """Answers with facts that do not change."""

    answer: pb.GetServerInfoResponse

    async def GetServerInfo(self, request: pb.GetServerInfoRequest, context: Any) -> pb.GetServerInfoResponse:  # noqa: N802
        """Return the facts."""
        return self.answer


def add_server_info(
    server: grpc.aio.Server, settings: ServiceSettings, services: Iterable[str], limits_of: Iterable[BaseSettings] = ()
) -> None:
    """Add the service to a server with these other services; ``limits_of`` are settings beyond the server's."""
    part = str(settings.model_config.get("env_prefix", "")).removeprefix("DEXORDER_").strip("_").lower()
    limits = {name: value for each in (settings, *limits_of) for name, value in _limits(each)}
    answer = pb.GetServerInfoResponse(
        part=part,
        version=version(),
        services=[
            pb.ServedService(name=name, stability=stability_of(name)) for name in sorted({*services, SERVER_INFO})
        ],
        datasets=[each.name for each in DATASETS],
        capabilities=sorted(CAPABILITIES),
        limits=[pb.ServerLimit(name=name, value=value) for name, value in sorted(limits.items())],
    )
    rpc.add_ServerInfoServiceServicer_to_server(ServerInfoRpcs(answer), server)


def _limits(settings: BaseSettings) -> Iterator[tuple[str, int]]:
    """Yield the limits that settings give, by name; a negative number means unlimited."""
    for name, value in settings:
        if name.startswith(_LIMITS) and isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            yield name, value


def stability_of(service: str) -> annotations_pb2.Stability.ValueType:
    """Return the stability that the proto of a service states; a given protocol is stable."""
    options = Default().FindServiceByName(service).GetOptions()
    stated: annotations_pb2.Stability.ValueType = options.Extensions[annotations_pb2.stability]
    return stated or annotations_pb2.STABILITY_STABLE


def decode_server_info(message: pb.GetServerInfoResponse) -> ServerInfo:
    """Return the facts about a server."""
    return ServerInfo(
        part=message.part,
        version=message.version,
        services={each.name: _STABILITIES.get(each.stability, Stability.UNKNOWN) for each in message.services},
        datasets=tuple(message.datasets),
        capabilities=tuple(message.capabilities),
        limits={each.name: each.value for each in message.limits},
    )
