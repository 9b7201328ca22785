"""Rules of request fields: protos state them (``dexorder/api/v1/annotations.proto``), and every server checks them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from dexorder_common.model.errors import InvalidRequest
from dexorder_protos.dexorder.api.v1.annotations_pb2 import FieldRules, rules

Check = Callable[[Message, str], None]
OURS = "dexorder."
GIVEN = ("dexorder.ingest.v1.", "dexorder.events.v1.UserEvent", "dexorder.events.v1.DeliverySpec")
"""Messages of given protocols, which have no rules: their services answer an invalid one in their own way."""
_SHOWN = 64


def check_request(message: Message) -> None:
    """Check a request and its inner messages; InvalidRequest names the first field that breaks one, and its value."""
    for check in _checks(message.DESCRIPTOR):
        check(message, "")


def rules_of(field: FieldDescriptor) -> FieldRules:
    """Return the rules of a field; empty ones for a field without."""
    found: FieldRules = field.GetOptions().Extensions[rules]
    return found


@cache
def _checks(descriptor: Descriptor) -> Sequence[Check]:
    """Return the checks of a message's fields; none if neither it nor an inner message has a rule."""
    if not descriptor.full_name.startswith(OURS) or descriptor.full_name.startswith(GIVEN):
        return ()
    return tuple(check for field in descriptor.fields for check in _checks_of(field))


def _checks_of(field: FieldDescriptor) -> list[Check]:
    given, checks = rules_of(field), list[Check]()
    if given.required:
        checks.append(lambda message, path: _require(message, path, field))
    if given.HasField("max_items"):
        checks.append(lambda message, path: _limit_items(message, path, field, given.max_items))
    if given.HasField("min") or given.HasField("max"):
        checks.append(lambda message, path: _limit_number(message, path, field, given))
    if given.HasField("max_length"):
        checks.append(lambda message, path: _limit_text(message, path, field, given.max_length))
    if given.known and (enum := field.enum_type) is not None:
        checks.append(lambda message, path: _know(message, path, field, enum))
    if (inner := field.message_type) is not None and not inner.GetOptions().map_entry and _checks(inner):
        checks.append(lambda message, path: _enter(message, path, field))
    return checks


def _values(message: Message, field: FieldDescriptor) -> Sequence[Any]:
    """Return the values that are set."""
    value = getattr(message, field.name)
    if field.is_repeated:
        return value  # type: ignore[no-any-return]
    return [value] if not field.has_presence or message.HasField(field.name) else []


def _require(message: Message, path: str, field: FieldDescriptor) -> None:
    values = _values(message, field)
    if not values or (field.message_type is None and not values[0] and not field.is_repeated):
        raise InvalidRequest(f"{path}{field.name} is missing")


def _limit_items(message: Message, path: str, field: FieldDescriptor, most: int) -> None:
    if (count := len(getattr(message, field.name))) > most:
        raise InvalidRequest(f"{path}{field.name} has {count} entries; at most {most} are allowed")


def _limit_number(message: Message, path: str, field: FieldDescriptor, given: FieldRules) -> None:
    for value in _values(message, field):
        if given.HasField("min") and value < given.min:
            raise InvalidRequest(f"{path}{field.name} {value} is under {given.min}")
        if given.HasField("max") and value > given.max:
            raise InvalidRequest(f"{path}{field.name} {value} is over {given.max}")


def _limit_text(message: Message, path: str, field: FieldDescriptor, most: int) -> None:
    for value in _values(message, field):
        if len(value) > most:
            shown = f"{path}{field.name} {value[:_SHOWN]!r}..."
            raise InvalidRequest(f"{shown} has {len(value)} characters; at most {most} are allowed")


def _know(message: Message, path: str, field: FieldDescriptor, enum: EnumDescriptor) -> None:
    for value in _values(message, field):
        if value not in enum.values_by_number:
            raise InvalidRequest(f"{path}{field.name} {value} is not a value of {enum.name}")


def _enter(message: Message, path: str, field: FieldDescriptor) -> None:
    for number, inner in enumerate(_values(message, field)):
        place = f"{path}{field.name}[{number}]." if field.is_repeated else f"{path}{field.name}."
        for check in _checks(inner.DESCRIPTOR):
            check(inner, place)
