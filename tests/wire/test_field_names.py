"""Names of fields in our messages: a number that is a time carries its unit, and one name has one unit everywhere."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator

from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor

from dexorder_common.rpc.server_info import stability_of
from tests.paths import ROOT

PROTOS = ROOT / "protos" / "dexorder"
GIVEN = {"ingest/v1/ingest.proto", "events/v1/user_events.proto"}
UNITS = ("_ns", "_ms", "_seconds", "_minute")
INTEGERS = {
    FieldDescriptor.TYPE_INT32,
    FieldDescriptor.TYPE_INT64,
    FieldDescriptor.TYPE_UINT32,
    FieldDescriptor.TYPE_UINT64,
}
TIME_WORDS = re.compile(
    r"(^|_)(time|times|at|since|until|start|end|begin|timestamp|lag|timeout|interval|period|duration|age|expiry|delay"
    r"|nanoseconds|milliseconds|seconds|minutes|took)(_|$)"
)
HABITS = {"again", "anew", "place", "most", "told", "thereof"}


def files() -> Iterator[FileDescriptor]:
    for path in sorted(PROTOS.rglob("*.proto")):
        name = path.relative_to(PROTOS)
        if str(name) not in GIVEN:
            module = importlib.import_module(f"dexorder_protos.dexorder.{str(name)[:-6].replace('/', '.')}_pb2")
            yield module.DESCRIPTOR


def messages(descriptors: list[Descriptor]) -> Iterator[Descriptor]:
    for each in descriptors:
        yield each
        yield from messages(list(each.nested_types))


FIELDS = [
    field
    for file in files()
    for message in messages(list(file.message_types_by_name.values()))
    if not message.GetOptions().map_entry
    for field in message.fields
]


def test_a_time_carries_its_unit() -> None:
    assert len(FIELDS) > 400
    times = [each for each in FIELDS if each.type in INTEGERS and TIME_WORDS.search(each.name)]
    assert len(times) > 50
    assert [each.full_name for each in times if not each.name.endswith((*UNITS, "_periods"))] == []
    assert [each.full_name for each in FIELDS if each.name.endswith(UNITS) and each.type not in INTEGERS] == []


def test_one_name_has_one_type() -> None:
    types: dict[str, set[int]] = {}
    for field in FIELDS:
        if field.name.endswith(UNITS):
            types.setdefault(field.name, set()).add(field.type)
    assert {name: found for name, found in types.items() if len(found) > 1} == {}


def test_no_name_is_by_our_habit() -> None:
    names = {field.name for field in FIELDS}
    names |= {
        method.name for file in files() for service in file.services_by_name.values() for method in service.methods
    }
    words = {word.lower() for name in names for word in re.findall(r"[A-Za-z][a-z]*", name)}
    assert not words & HABITS


def test_verbs_tell_what_kind_of_call_it_is() -> None:
    """Get and List answer once, Watch follows and Stream ends; a list has pages."""
    for file in files():
        for service in file.services_by_name.values():
            for method in service.methods:
                verb = re.match(r"[A-Z][a-z]*", method.name)
                assert verb
                if verb[0] in ("Get", "List"):
                    assert not method.server_streaming, method.full_name
                if verb[0] in ("Watch", "Stream"):
                    assert method.server_streaming, method.full_name
                if verb[0] == "List":
                    assert {"page_size", "page_token"} <= set(method.input_type.fields_by_name), method.full_name
                    assert "next_page_token" in method.output_type.fields_by_name, method.full_name


def test_each_method_states_its_idempotency_and_each_service_its_stability() -> None:

    for file in files():
        for service in file.services_by_name.values():
            assert service.GetOptions().ListFields() and stability_of(service.full_name), service.full_name
            for method in service.methods:
                assert method.GetOptions().HasField("idempotency_level"), method.full_name
