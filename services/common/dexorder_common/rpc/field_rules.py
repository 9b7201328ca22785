"""Rules of request fields: protos state them (``dexorder/api/v1/annotations.proto``), and every server checks them.

A rule is tested for all messages of one type at once, a column of values at a time: a report of 1,000 entries costs a
few calls instead of thousands. Only a request that fails such a test is checked field by field, to name the field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from operator import attrgetter, methodcaller
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from dexorder_common.model.errors import InvalidRequest
from dexorder_protos.dexorder.api.v1.annotations_pb2 import FieldRules, rules

Check = Callable[[Message, str], None]
Column = Callable[[Sequence[Message]], Iterable[Any]]
"""Returns the values of a field in messages of one type."""
Test = Callable[[Sequence[Message]], bool]
"""Returns False if messages of one type may break a rule."""
OURS = "dexorder."
GIVEN = ("dexorder.ingest.v1.", "dexorder.events.v1.UserEvent", "dexorder.events.v1.DeliverySpec")
"""Messages of given protocols, which are without rules: their services answer an invalid one in their own way."""
LEFT_TO_HANDLERS = ("dexorder.relay.v1.PageResult",)
"""Messages of which a handler skips an invalid one, and takes the rest of the request."""
_SHOWN = 64


def check_request(message: Message) -> None:
    """Check a request and its inner messages; InvalidRequest names the first field that breaks one, and its value."""
    if _pass(_tests(message.DESCRIPTOR), (message,)):
        return
    for check in _checks(message.DESCRIPTOR):
        check(message, "")


def has_checks(descriptor: Descriptor) -> bool:
    """Return whether a field of a message, or of an inner one, has a rule."""
    return bool(_tests(descriptor))


def rules_of(field: FieldDescriptor) -> FieldRules:
    """Return the rules of a field; empty ones for a field without."""
    found: FieldRules = field.GetOptions().Extensions[rules]
    return found


def _pass(tests: Sequence[Test], messages: Sequence[Message]) -> bool:
    return all(test(messages) for test in tests)


def _has_rules(descriptor: Descriptor) -> bool:
    name = descriptor.full_name
    is_checked = name.startswith(OURS) and not name.startswith((*GIVEN, *LEFT_TO_HANDLERS))
    return is_checked and not descriptor.GetOptions().map_entry


# ---- tests of many messages ----------------------------------------------------------------------------------------


@cache
def _tests(descriptor: Descriptor) -> Sequence[Test]:
    """Return the tests of a message's fields; none if neither it nor an inner message has a rule."""
    fields = descriptor.fields if _has_rules(descriptor) else ()
    return tuple(test for field in fields for test in _tests_of(field))


def _tests_of(field: FieldDescriptor) -> Iterator[Test]:
    given, get, column = rules_of(field), attrgetter(field.name), _column(field)
    inner = () if (kind := field.message_type) is None else _tests(kind)
    if given.required and given.HasField("max_length") and not field.is_repeated:  # one pass for both
        yield lambda messages: _are_within(1, given.max_length, {*map(len, map(get, messages))})
    elif given.required and (kind is None or field.is_repeated):
        yield lambda messages: all(map(get, messages))
    elif given.required and kind is not None and not _refuses_absent(kind, inner):
        yield lambda messages: all(map(methodcaller("HasField", field.name), messages))
    if given.HasField("max_items"):
        yield lambda messages: _are_within(0, given.max_items, {*map(len, map(get, messages))})
    if given.HasField("min"):
        yield lambda messages: min(column(messages), default=given.min) >= given.min
    if given.HasField("max"):
        yield lambda messages: max(column(messages), default=0) <= given.max
    if given.HasField("max_length") and (field.is_repeated or not given.required):
        yield lambda messages: _are_within(0, given.max_length, {*map(len, column(messages))})
    if given.known and field.enum_type is not None:
        numbers = frozenset(field.enum_type.values_by_number)
        yield lambda messages: numbers.issuperset(column(messages))
    if inner:
        yield lambda messages: _pass(inner, tuple(column(messages)))


def _are_within(least: int, most: int, lengths: set[int]) -> bool:
    return all(least <= each <= most for each in lengths)


def _column(field: FieldDescriptor) -> Column:
    """Return the function of a field's values.

    Absent values are left out only where their default would break a rule: 0 is under a smallest number, and an absent
    message reads as an empty one.
    """
    given, get = rules_of(field), attrgetter(field.name)
    if field.is_repeated:
        return lambda messages: chain.from_iterable(map(get, messages))
    has_bad_default = given.HasField("min") or field.message_type is not None
    if field.has_presence and has_bad_default and not given.required:
        return lambda messages: [get(each) for each in messages if each.HasField(field.name)]
    return lambda messages: map(get, messages)


def _refuses_absent(descriptor: Descriptor, tests: Sequence[Test]) -> bool:
    """Return whether an absent message, which reads as an empty one, fails the tests of its fields."""
    return not _pass(tests, (GetMessageClass(descriptor)(),))


# ---- checks of one message, which name the field -------------------------------------------------------------------


@cache
def _checks(descriptor: Descriptor) -> Sequence[Check]:
    """Return the checks of a message's fields; none if neither it nor an inner message has a rule."""
    if not _has_rules(descriptor):
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
    if (inner := field.message_type) is not None and _checks(inner):
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
