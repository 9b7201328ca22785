"""The rules that the protos state against a real relay: each field beyond each of its limits, in every RPC of ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from dexorder_common.rpc.field_rules import LEFT_TO_HANDLERS, rules_of
from dexorder_relay.service.services import SERVICES
from tests.unit.services.relay.harness import suite

GIVEN = "dexorder.ingest.v1."
METHODS = [
    method
    for messages, _ in SERVICES.values()
    for service in messages.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if not method.client_streaming
]


def valid(descriptor: Descriptor) -> Message:
    """Return a message in which every required field has a value that no rule refuses."""
    message = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if rules_of(field).required:
            put(message, field, sample(field))
    return message


def sample(field: FieldDescriptor) -> Any:
    if field.message_type is not None:
        return valid(field.message_type)
    return "x" if field.type == FieldDescriptor.TYPE_STRING else 1


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def put(message: Message, field: FieldDescriptor, value: Any) -> None:
    if is_map(field):
        getattr(message, field.name).update({str(number): "x" for number in range(len(value))})
    elif field.is_repeated:
        getattr(message, field.name).extend(value if isinstance(value, list) else [value])
    elif field.message_type is not None:
        getattr(message, field.name).CopyFrom(value)
        getattr(message, field.name).SetInParent()
    else:
        setattr(message, field.name, value)


def broken(descriptor: Descriptor, path: str = "") -> Iterator[tuple[str, Message]]:
    """Yield messages that break one rule each, with the path of the field."""
    if descriptor.full_name.startswith((GIVEN, *LEFT_TO_HANDLERS)):
        return
    for field in descriptor.fields:
        given, name = rules_of(field), f"{path}{field.name}"
        is_text, values = field.type == FieldDescriptor.TYPE_STRING, list[Any]()
        if given.required:
            message = valid(descriptor)
            message.ClearField(field.name)
            yield name, message
        if given.HasField("max") and given.max < 2**32 - 1:
            values.append(given.max + 1)
        if given.HasField("max") and field.type == FieldDescriptor.TYPE_UINT64:
            values.append(2**64 - 1)
        if given.HasField("min"):
            values.append(given.min - 1)
        if given.HasField("max_length") and is_text:
            values.append("x" * (given.max_length + 1))
        if given.HasField("max_items"):
            values.append([sample(field)] * (given.max_items + 1))
        if given.known:
            values.append(99)
        for value in values:
            message = valid(descriptor)
            message.ClearField(field.name)
            put(message, field, value)
            yield name, message
        if field.message_type is not None and not is_map(field):
            inner = f"{name}[0]." if field.is_repeated else f"{name}."
            for place, wrong in broken(field.message_type, inner):
                message = valid(descriptor)
                message.ClearField(field.name)
                put(message, field, wrong)
                yield place, message


async def refusal(channel: grpc.aio.Channel, method: MethodDescriptor, request: Message) -> tuple[grpc.StatusCode, str]:
    path = f"/{method.containing_service.full_name}/{method.name}"
    call: Any = channel.unary_stream(path) if method.server_streaming else channel.unary_unary(path)
    try:
        answer = call(request.SerializeToString(), timeout=30)
        await (answer.read() if method.server_streaming else answer)
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


async def test_the_relay_refuses_what_breaks_a_rule_and_names_the_field(tmp_path: Path) -> None:
    cases = [(method, place, message) for method in METHODS for place, message in broken(method.input_type)]
    assert len(cases) > 100
    async with suite(tmp_path) as s, grpc.aio.insecure_channel(s.running.address) as channel:
        for method, place, message in cases:
            code, text = await refusal(channel, method, message)
            assert code is grpc.StatusCode.INVALID_ARGUMENT, (method.full_name, place, text)
            assert text.startswith(f"{place} "), (method.full_name, place, text)


def test_texts_and_lists_of_clients_requests_have_a_limit() -> None:
    """Parts of the suite are trusted; given messages answer in their own way."""
    unlimited = set[str]()
    for method in METHODS:
        trusted = method.containing_service.name in ("PipelineService", "IngestorService")
        if trusted or method.input_type.full_name.startswith(GIVEN):
            continue
        for field in method.input_type.fields:
            given = rules_of(field)
            is_open = field.type == FieldDescriptor.TYPE_STRING and not given.HasField("max_length")
            if is_open or (field.is_repeated and not given.HasField("max_items")):
                unlimited.add(field.full_name)
    assert unlimited == set()
