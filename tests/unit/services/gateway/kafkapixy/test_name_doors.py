"""Names and parameters beyond their limits at each door, before Kafka is asked: none answers here."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import aiohttp
import grpc
import pytest
from yarl import URL

from dexorder_common.rpc.channel import ChannelSettings, open_channel
from dexorder_gateway.config import GatewaySettings
from dexorder_gateway.kafkapixy import cluster
from dexorder_gateway.kafkapixy.http_messages import ROUTES
from dexorder_gateway.kafkapixy.http_parameters import MAX_PARAMETERS
from dexorder_gateway.kafkapixy.service import MAX_GROUP_CHARACTERS
from dexorder_gateway.server import gateway
from dexorder_protos.dexorder.kafka.v1 import record_service_pb2 as record_pb
from dexorder_protos.dexorder.kafka.v1 import record_service_pb2_grpc as record_rpc
from dexorder_protos.kafkapixy import kafkapixy_pb2 as pb
from dexorder_protos.kafkapixy import kafkapixy_pb2_grpc as rpc
from tests.rig.processes import free_ports
from write_limits import limits

GROUP, TOPIC = "characters of a group's name", "characters of a topic's name, 249 as in Kafka"
PARAMETERS = "parameters of an HTTP request, in query and form"
DOORS = {row.resource: row.doors for row in limits() if row.resource in (GROUP, TOPIC, PARAMETERS)}
NAMES: dict[str, list[tuple[dict[str, str], str]]] = {
    TOPIC: [({"topic": "t" * 250, "group": "g"}, r"topic 't.* (is not a topic's name|at most 249 are allowed)")],
    GROUP: [
        ({"topic": "t", "group": "g" * (MAX_GROUP_CHARACTERS + 1)}, f"longer than {MAX_GROUP_CHARACTERS}"),
        ({"topic": "t", "group": " "}, "begins with white space"),
        ({"topic": "t", "group": "\tg"}, "begins with white space"),
    ],
}
"""By row of docs/limits.toml: names that it does not allow, each with the refusal."""
FITTING = {"topic": "t" * 249, "group": "g" * MAX_GROUP_CHARACTERS}
INVALID = grpc.StatusCode.INVALID_ARGUMENT
FORM = "application/x-www-form-urlencoded"


@asynccontextmanager
async def served(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[grpc.aio.Channel, str]]:
    """Run a gateway of a Kafka that does not answer; give a channel, and the address of its HTTP API."""
    monkeypatch.setattr(cluster, "FIRST_ANSWER_SECONDS", 0.05)
    kafka, http = free_ports(2)
    settings = GatewaySettings(
        kafka=f"127.0.0.1:{kafka}",
        listen="127.0.0.1:0",
        http_listen=f"127.0.0.1:{http}",
        metrics_listen="",
        topics="",
        drain_seconds=0.1,
    )
    async with gateway(settings) as running, open_channel(running.address, ChannelSettings()) as channel:
        yield channel, f"http://127.0.0.1:{http}"


async def by_grpc(channel: grpc.aio.Channel, door: str, names: dict[str, str]) -> tuple[grpc.StatusCode, str]:
    """Return how a call by gRPC is refused."""
    service, _, method = door.partition(".")
    if service == "RecordService":
        stub: Any = record_rpc.RecordServiceStub(channel)
        message: Any = record_pb.ProduceManyRequest(topic=names["topic"], records=[record_pb.NewRecord(value=b"x")])
    else:
        stub = rpc.KafkaPixyStub(channel)
        kind = getattr(pb, pb.DESCRIPTOR.services_by_name[service].methods_by_name[method].input_type.name)
        message = kind(**{name: value for name, value in names.items() if name in kind.DESCRIPTOR.fields_by_name})
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await getattr(stub, method)(message, timeout=60)
    return caught.value.code(), caught.value.details() or ""


async def by_http(client: aiohttp.ClientSession, method: str, names: dict[str, str], more: str = "") -> tuple[int, str]:
    """Return how a call by HTTP is refused."""
    (route,) = [each for each in ROUTES if each.name == method]
    path = route.path.replace("{topic}", names["topic"])
    in_form = method in ("Produce", "Ack")  # the body of SetOffsets is JSON
    own = {"Ack": "&partition=0&offset=0", "Produce": "&msg=x&sync"}.get(method, "")
    given = f"group={quote(names['group'])}{own}{more}"
    body = given if in_form else "[]"
    target = path if in_form else f"{path}?{given}"
    headers = {"content-type": FORM if in_form else "application/json"}
    url = URL(target, encoded=True)
    async with client.request(route.verb, url, data=body if route.verb == "POST" else None, headers=headers) as got:
        return got.status, await got.text()


@pytest.mark.parametrize("resource", NAMES)
async def test_a_name_beyond_its_limit_is_refused_at_each_door(resource: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(monkeypatch) as (channel, http), aiohttp.ClientSession(http) as client:
        for door in DOORS[resource]:
            for names, words in NAMES[resource]:
                code, text = await by_grpc(channel, door, names)
                assert (code, bool(re.search(words, text))) == (INVALID, True), (door, code, text)
                if door.startswith("KafkaPixy."):
                    status, text = await by_http(client, door.partition(".")[2], names)
                    assert (status, bool(re.search(words, text))) == (400, True), (door, status, text)
            code, text = await by_grpc(channel, door, FITTING)
            assert code is not INVALID, (door, code, text)


async def test_more_parameters_than_the_limit_are_refused_at_each_door(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(monkeypatch) as (_, http), aiohttp.ClientSession(http) as client:
        for door in DOORS[PARAMETERS]:
            status, text = await by_http(client, door.partition(".")[2], FITTING, "&x" * (MAX_PARAMETERS + 1))
            assert (status, f"at most {MAX_PARAMETERS} are accepted" in text) == (400, True), (door, status, text)
            status, text = await by_http(client, door.partition(".")[2], FITTING, "&x" * (MAX_PARAMETERS - 20))
            assert status != 400, (door, status, text)
