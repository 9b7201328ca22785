"""Requests and answers of Kafka-Pixy's HTTP API as the messages of its gRPC API.

    method  path                    call              parameters
    POST    /topics/T/messages      Produce           ``sync``, ``key``; headers ``X-Kafka-NAME``, ``Idempotency-Key``
    GET     /topics/T/messages      ConsumeNAck       ``group``; auto ack; ``noAck``, ``ackPartition``, ``ackOffset``
    POST    /topics/T/acks          Ack               ``group``, ``partition``, ``offset``
    GET     /topics/T/offsets       GetOffsets        ``group``; ``time_ms``
    POST    /topics/T/offsets       SetOffsets        ``group``, a JSON list of partitions; or ``time_ms``
    GET     /topics/T/consumers     ListConsumers     ``group``
    GET     /topics                 ListTopics        names; ``withPartitions``, ``withConfig``
    GET     /topics/T               GetTopicMetadata  ``withPartitions``
    GET     /_ping                  -                 ``pong``

A flag counts if it is present, with any value.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from aiohttp import web
from multidict import MultiDict

from dexorder_common.model.errors import InvalidRequest
from dexorder_protos.kafkapixy import kafkapixy_pb2 as pb

Parameters = MultiDict[Any]
_HEADER_PREFIX = "x-kafka-"
_FORM = "application/x-www-form-urlencoded"
_JSON = re.compile(r"application/(.*\+)?json")


class Route(NamedTuple):
    """A call of the API.

    Attributes:
        path: Exists below ``/clusters/{cluster}`` as well.
        name: Method of the service.
        read: Returns the request's message.
        show: Returns the answer as a value for JSON.
    """

    verb: str
    path: str
    name: str
    read: Callable[[web.Request, Parameters], Awaitable[Any]]
    show: Callable[[Any, Parameters], Any]


# ---- parameters of a request


async def parameters_of(request: web.Request) -> Parameters:
    """Return the parameters of the query, and of the form if the body is one."""
    form = await request.post() if request.content_type == _FORM else {}
    return MultiDict([*request.query.items(), *form.items()])


def _place(request: web.Request) -> dict[str, str]:
    return {name: request.match_info[name] for name in ("cluster", "topic") if name in request.match_info}


def _group(parameters: Parameters) -> str:
    groups = parameters.getall("group", [])
    if len(groups) != 1:
        raise InvalidRequest(f"one consumer group is expected, but {len(groups)} provided")
    return str(groups[0])


def _number(parameters: Parameters, name: str, bits: int) -> int | None:
    if (text := parameters.get(name)) is None:
        return None
    if not (str(text).isascii() and str(text).isdigit() and int(text) < 1 << (bits - 1)):
        raise InvalidRequest(f"{name} {str(text)[:80]!r} is not a number of at most {bits} bits without a sign")
    return int(text)


def _acked(parameters: Parameters, partition_name: str, offset_name: str) -> tuple[int, int] | None:
    """Return partition and offset of the record to ack; None if neither is given."""
    partition, offset = _number(parameters, partition_name, 32), _number(parameters, offset_name, 64)
    if partition is None and offset is None:
        return None
    if partition is None or offset is None:
        raise InvalidRequest(f"{partition_name} and {offset_name} either both should be provided or neither")
    return partition, offset


# ---- requests


async def _produce(request: web.Request, parameters: Parameters) -> pb.ProdRq:
    headers = [
        pb.RecordHeader(key=_canonical(name[len(_HEADER_PREFIX) :]), value=_decoded(name, value))
        for name, value in request.headers.items()
        if name.lower().startswith(_HEADER_PREFIX)
    ]
    key = parameters.get("key")
    return pb.ProdRq(
        **_place(request),
        key_value=b"" if key is None else str(key).encode(),
        key_undefined=key is None,
        message=await _message(request),
        async_mode="sync" not in parameters,
        headers=headers,
        idempotency_key=request.headers.get("Idempotency-Key", ""),
    )


async def _message(request: web.Request) -> bytes:
    kind = request.content_type
    if (
        kind == "text/plain"
        or kind == "application/json"
        or (kind.startswith("application/") and kind.endswith("+json"))
    ):
        return await request.read()
    if kind != _FORM:
        raise InvalidRequest(f"unsupported content type {kind}")
    if not (text := (await request.post()).get("msg")):
        raise InvalidRequest("empty message")
    return str(text).encode()


def _canonical(name: str) -> str:
    """Return a header's name as Go's HTTP server has it, and so Kafka-Pixy: ``trace-id`` is ``Trace-Id``."""
    return "-".join(part.capitalize() for part in name.split("-"))


def _decoded(name: str, value: str) -> bytes:
    try:
        return b64decode(value, validate=True)
    except NotBase64 as error:
        raise InvalidRequest(f"Invalid base64 encoding for header: {_canonical(name)}") from error


async def _consume(request: web.Request, parameters: Parameters) -> pb.ConsNAckRq:
    group, no_ack = _group(parameters), "noAck" in parameters
    acked = None if no_ack else _acked(parameters, "ackPartition", "ackOffset")
    partition, offset = acked or (0, 0)
    return pb.ConsNAckRq(
        **_place(request),
        group=group,
        no_ack=no_ack,
        auto_ack=not no_ack and acked is None,
        ack_partition=partition,
        ack_offset=offset,
    )


async def _ack(request: web.Request, parameters: Parameters) -> pb.AckRq:
    group, acked = _group(parameters), _acked(parameters, "partition", "offset")
    if acked is None:
        raise InvalidRequest("partition and offset are missing")
    return pb.AckRq(**_place(request), group=group, partition=acked[0], offset=acked[1])


async def _get_offsets(request: web.Request, parameters: Parameters) -> pb.GetOffsetsRq:
    return pb.GetOffsetsRq(**_place(request), group=_group(parameters), time_ms=_number(parameters, "time_ms", 64))


async def _set_offsets(request: web.Request, parameters: Parameters) -> pb.SetOffsetsRq:
    group, time_ms = _group(parameters), _number(parameters, "time_ms", 64)
    body = await request.read()
    offsets = [] if time_ms is not None and not body else _listed(body)
    return pb.SetOffsetsRq(**_place(request), group=group, offsets=offsets, time_ms=time_ms)


def _listed(body: bytes) -> list[pb.PartitionOffset]:
    try:
        entries = json.loads(body)
        if not isinstance(entries, list):
            raise TypeError("not a list")
        fields = ("partition", "offset", "metadata")
        return [pb.PartitionOffset(**{name: each[name] for name in fields if name in each}) for each in entries]
    except (TypeError, ValueError) as error:  # also from protobuf, for a value of another type or size
        raise InvalidRequest(f"Failed to parse the request: {error}") from error


async def _list_consumers(request: web.Request, parameters: Parameters) -> pb.ListConsumersRq:
    return pb.ListConsumersRq(**_place(request), group=_group(parameters) if "group" in parameters else "")


async def _list_topics(request: web.Request, parameters: Parameters) -> pb.ListTopicRq:
    return pb.ListTopicRq(**_place(request), with_partitions="withPartitions" in parameters)


async def _get_topic(request: web.Request, parameters: Parameters) -> pb.GetTopicMetadataRq:
    return pb.GetTopicMetadataRq(**_place(request), with_partitions="withPartitions" in parameters)


# ---- answers


def _nothing(answer: object, parameters: Parameters) -> dict[str, Any]:
    return {}


def _produced(answer: pb.ProdRs, parameters: Parameters) -> dict[str, Any]:
    return {"partition": answer.partition, "offset": answer.offset} if "sync" in parameters else {}


def _base64(value: bytes) -> str:
    return b64encode(value).decode()


def _consumed(answer: pb.ConsRs, parameters: Parameters) -> dict[str, Any]:
    return {
        "key": None if answer.key_undefined else _base64(answer.key_value),
        "value": _base64(answer.message),
        "partition": answer.partition,
        "offset": answer.offset,
        "headers": [{"key": header.key, "value": _base64(header.value)} for header in answer.headers],
    }


def _offsets(answer: pb.GetOffsetsRs, parameters: Parameters) -> list[dict[str, Any]]:
    return [_offset(each) for each in answer.offsets]


def _offset(view: pb.PartitionOffset) -> dict[str, Any]:
    shown: dict[str, Any] = {
        name: getattr(view, name) for name in ("partition", "begin", "end", "count", "offset", "lag")
    }
    shown |= {name: text for name in ("metadata", "sparse_acks") if (text := getattr(view, name))}
    if view.HasField("offset_at_time"):
        shown["offset_at_time"] = view.offset_at_time
    return shown


def _consumers(answer: pb.ListConsumersRs, parameters: Parameters) -> dict[str, dict[str, list[int]]]:
    return {
        group: {name: list(each.partitions) for name, each in sorted(found.consumers.items())}
        for group, found in sorted(answer.groups.items())
    }


def _topics(answer: pb.ListTopicRs, parameters: Parameters) -> list[str] | dict[str, Any]:
    with_config = "withConfig" in parameters
    if not with_config and "withPartitions" not in parameters:
        return sorted(answer.topics)
    return {name: _topic_shown(topic, with_config=with_config) for name, topic in sorted(answer.topics.items())}


def _topic(answer: pb.GetTopicMetadataRs, parameters: Parameters) -> dict[str, Any]:
    return _topic_shown(answer, with_config=True)


def _topic_shown(topic: pb.GetTopicMetadataRs, *, with_config: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    if with_config:
        shown["config"] = {"version": topic.version, "config": dict(topic.config)}
    if topic.partitions:
        shown["partitions"] = [
            {"partition": p.partition, "leader": p.leader, "replicas": list(p.replicas), "isr": list(p.isr)}
            for p in topic.partitions
        ]
    return shown


ROUTES = (
    Route("POST", "/topics/{topic}/messages", "Produce", _produce, _produced),
    Route("GET", "/topics/{topic}/messages", "ConsumeNAck", _consume, _consumed),
    Route("POST", "/topics/{topic}/acks", "Ack", _ack, _nothing),
    Route("GET", "/topics/{topic}/offsets", "GetOffsets", _get_offsets, _offsets),
    Route("POST", "/topics/{topic}/offsets", "SetOffsets", _set_offsets, _nothing),
    Route("GET", "/topics/{topic}/consumers", "ListConsumers", _list_consumers, _consumers),
    Route("GET", "/topics", "ListTopics", _list_topics, _topics),
    Route("GET", "/topics/{topic}", "GetTopicMetadata", _get_topic, _topic),
)
