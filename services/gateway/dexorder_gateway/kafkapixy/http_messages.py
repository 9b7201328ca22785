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
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

from dexorder_common.model.errors import InvalidRequest
from dexorder_gateway.http1.messages import HttpRequest
from dexorder_gateway.http1.remembered import remembered
from dexorder_gateway.kafkapixy.http_parameters import Parameters, query_of
from dexorder_gateway.kafkapixy.service import KafkaPixy
from dexorder_protos.kafkapixy import kafkapixy_pb2 as pb

_HEADER_PREFIX = "x-kafka-"
_NOT_PARSED = "Failed to parse the request:"
_FORM = "application/x-www-form-urlencoded"


class Place(NamedTuple):
    """Cluster and topic of a path; empty where it has none."""

    cluster: str = ""
    topic: str = ""


class Route(NamedTuple):
    """A call of the API.

    Attributes:
        path: Exists below ``/clusters/{cluster}`` as well.
        name: Method of the service.
        read: Returns the request's message.
        show: Returns the answer as a value for JSON.
        call: Calls the service, where the message lacks a parameter; by default the method ``name``.
    """

    verb: str
    path: str
    name: str
    read: Callable[[HttpRequest, Place, Parameters], Any]
    show: Callable[[Any, Parameters], Any]
    call: Callable[[KafkaPixy, Any, Parameters], Awaitable[Any]] | None = None


# ---- parameters of a request


def parameters_of(request: HttpRequest) -> Parameters:
    """Return the parameters of the query, and of the form if the body is one."""
    has_form = request.method == "POST" and request.content_type == _FORM
    return Parameters(request.query, request.body) if has_form else query_of(request.query)


def _text(name: str, part: str) -> str:
    """Return a part of a path without its escapes."""
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise InvalidRequest(f"{name} {part[:80]!r} is not UTF-8") from None


# ---- requests


def _produce(request: HttpRequest, place: Place, parameters: Parameters) -> pb.ProdRq:
    headers = [
        pb.RecordHeader(key=_canonical(name[len(_HEADER_PREFIX) :]), value=_decoded(name, value))
        for name, value in request.headers
        if name.startswith(_HEADER_PREFIX)
    ]
    key = parameters.value("key")
    return pb.ProdRq(
        cluster=place.cluster,
        topic=place.topic,
        key_value=key or b"",
        key_undefined=key is None,
        message=_message(request, parameters),
        async_mode="sync" not in parameters,
        headers=headers,
        idempotency_key=_idempotency_key(request),
    )


def _message(request: HttpRequest, parameters: Parameters) -> bytes:
    kind = request.content_type
    if (
        kind == "text/plain"
        or kind == "application/json"
        or (kind.startswith("application/") and kind.endswith("+json"))
    ):
        return request.body
    if kind != _FORM:
        raise InvalidRequest(f"unsupported content type {kind}")
    if not (message := parameters.value("msg")):
        raise InvalidRequest("empty message")
    return message


def _idempotency_key(request: HttpRequest) -> str:
    key = request.first.get("idempotency-key", "")
    try:
        key.encode()
    except UnicodeEncodeError:  # a lone surrogate, which stands for such a byte
        raise InvalidRequest("Idempotency-Key is not UTF-8") from None
    return key


def _canonical(name: str) -> str:
    """Return a header's name as Go's HTTP server has it, and so Kafka-Pixy: ``trace-id`` is ``Trace-Id``."""
    return "-".join(part.capitalize() for part in name.split("-"))


def _decoded(name: str, value: str) -> bytes:
    try:
        return b64decode(value, validate=True)
    except ValueError as error:
        raise InvalidRequest(f"Invalid base64 encoding for header: {_canonical(name)}") from error


def _consume(request: HttpRequest, place: Place, parameters: Parameters) -> pb.ConsNAckRq:
    group, no_ack = parameters.group(), "noAck" in parameters
    acked = None if no_ack else parameters.acked("ackPartition", "ackOffset")
    partition, offset = acked or (0, 0)
    return pb.ConsNAckRq(
        cluster=place.cluster,
        topic=place.topic,
        group=group,
        no_ack=no_ack,
        auto_ack=not no_ack and acked is None,
        ack_partition=partition,
        ack_offset=offset,
    )


def _ack(request: HttpRequest, place: Place, parameters: Parameters) -> pb.AckRq:
    group, acked = parameters.group(), parameters.acked("partition", "offset")
    if acked is None:
        raise InvalidRequest("partition and offset are missing")
    return pb.AckRq(cluster=place.cluster, topic=place.topic, group=group, partition=acked[0], offset=acked[1])


def _get_offsets(request: HttpRequest, place: Place, parameters: Parameters) -> pb.GetOffsetsRq:
    return pb.GetOffsetsRq(
        cluster=place.cluster, topic=place.topic, group=parameters.group(), time_ms=parameters.number("time_ms", 64)
    )


def _set_offsets(request: HttpRequest, place: Place, parameters: Parameters) -> pb.SetOffsetsRq:
    group, time_ms = parameters.group(), parameters.number("time_ms", 64)
    body = request.body
    offsets = [] if time_ms is not None and not body else _listed(body)
    return pb.SetOffsetsRq(cluster=place.cluster, topic=place.topic, group=group, offsets=offsets, time_ms=time_ms)


def _listed(body: bytes) -> list[pb.PartitionOffset]:
    """Return the offsets of a JSON list; their fields may have any case, as Go's JSON takes them."""
    try:
        entries = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{_NOT_PARSED} {error}") from error
    if not isinstance(entries, list):
        raise InvalidRequest(f"{_NOT_PARSED} it is not a list")
    return [_listed_offset(f"offsets[{index}]", each) for index, each in enumerate(entries)]


def _listed_offset(place: str, entry: object) -> pb.PartitionOffset:
    if not isinstance(entry, dict):
        raise InvalidRequest(f"{_NOT_PARSED} {place} is not an object")
    fields = {name.lower(): value for name, value in entry.items()}
    partition, offset = (
        _listed_number(place, fields, name, bits) for name, bits in (("partition", 32), ("offset", 64))
    )
    metadata = fields.get("metadata") or ""
    try:
        return pb.PartitionOffset(partition=partition, offset=offset, metadata=metadata)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{_NOT_PARSED} {place}.metadata {str(metadata)[:80]!r} is not a text") from error


def _listed_number(place: str, fields: Mapping[str, object], name: str, bits: int) -> int:
    """Return a number of an entry. A missing one is refused: as 0 it would set the group back to the log's start."""
    value = fields.get(name)
    if value is None:
        raise InvalidRequest(f"{_NOT_PARSED} {place}.{name} is missing")
    if type(value) is not int or not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise InvalidRequest(f"{_NOT_PARSED} {place}.{name} {str(value)[:80]!r} is not a number of at most {bits} bits")
    return value


def _list_consumers(request: HttpRequest, place: Place, parameters: Parameters) -> pb.ListConsumersRq:
    return pb.ListConsumersRq(
        cluster=place.cluster, topic=place.topic, group=parameters.group() if "group" in parameters else ""
    )


def _list_topics(request: HttpRequest, place: Place, parameters: Parameters) -> pb.ListTopicRq:
    return pb.ListTopicRq(cluster=place.cluster, with_partitions="withPartitions" in parameters)


async def _call_list_topics(pixy: KafkaPixy, message: pb.ListTopicRq, parameters: Parameters) -> pb.ListTopicRs:
    return await pixy.list_topics(message, with_config="withConfig" in parameters)


def _get_topic(request: HttpRequest, place: Place, parameters: Parameters) -> pb.GetTopicMetadataRq:
    return pb.GetTopicMetadataRq(
        cluster=place.cluster, topic=place.topic, with_partitions="withPartitions" in parameters
    )


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
    if with_config and topic.version:  # 0: the configuration could not be read
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
    Route("GET", "/topics", "ListTopics", _list_topics, _topics, _call_list_topics),
    Route("GET", "/topics/{topic}", "GetTopicMetadata", _get_topic, _topic),
)


def _found(path: str) -> tuple[Mapping[str, Route], Place]:
    """Return the calls of a path by verb, none for an unknown path, and its cluster and topic.

    Raises:
        InvalidRequest: A name is not UTF-8.
    """
    parts, cluster = path.split("/"), ""
    if parts[1] == "clusters" and len(parts) > 3:
        cluster, parts = _text("cluster", parts[2]), parts[:1] + parts[3:]
    found = {route.verb: route for route in ROUTES if _has_form(parts, route.path.split("/"))}
    return found, Place(cluster, _text("topic", parts[2]) if found and len(parts) > 2 else "")


def _has_form(parts: list[str], form: list[str]) -> bool:
    return len(parts) == len(form) and all(
        part == wanted or (wanted == "{topic}" and part != "") for part, wanted in zip(parts, form, strict=True)
    )


routes_of = remembered(_found, 1_024)
