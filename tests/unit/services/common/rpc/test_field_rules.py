"""Each rule in each kind of field of a proto made here; the path of the refused field; and streams of requests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.model.errors import InvalidRequest
from dexorder_common.rpc.field_rules import check_request
from dexorder_common.rpc.lifecycle import grpc_server
from dexorder_common.rpc.settings import ServiceSettings
from dexorder_protos.dexorder.events.v1 import event_service_pb2 as events_pb
from dexorder_protos.dexorder.events.v1 import event_service_pb2_grpc as events_rpc
from dexorder_protos.dexorder.events.v1 import user_events_pb2
from dexorder_protos.dexorder.relay.v1 import common_pb2, pipeline_service_pb2
from tests.paths import ROOT

PROTO = """
syntax = "proto3";
package %s;
import "dexorder/api/v1/annotations.proto";
enum Colour { COLOUR_UNSPECIFIED = 0; COLOUR_RED = 1; }
message Leaf {
  string id = 1 [(dexorder.api.v1.rules) = {required: true, max_length: 3}];
  uint32 count = 2 [(dexorder.api.v1.rules).max = 9];
}
message Lax { uint32 count = 1 [(dexorder.api.v1.rules).max = 9]; }
message Root {
  string name = 1 [(dexorder.api.v1.rules).required = true];
  string short = 2 [(dexorder.api.v1.rules).max_length = 3];
  uint32 low = 3 [(dexorder.api.v1.rules) = {min: 2, max: 9}];
  optional uint32 maybe = 4 [(dexorder.api.v1.rules) = {min: 2, max: 9}];
  optional int64 signed = 5 [(dexorder.api.v1.rules).max = 9];
  optional double real = 6 [(dexorder.api.v1.rules) = {min: 2, max: 9}];
  repeated string words = 7 [(dexorder.api.v1.rules) = {required: true, max_items: 2, max_length: 3}];
  repeated uint32 numbers = 8 [(dexorder.api.v1.rules) = {min: 2, max: 9}];
  Colour colour = 9 [(dexorder.api.v1.rules).known = true];
  repeated Colour colours = 10 [(dexorder.api.v1.rules).known = true];
  Colour painted = 11 [(dexorder.api.v1.rules) = {required: true, known: true}];
  oneof subject {
    string ticker = 12 [(dexorder.api.v1.rules).max_length = 3];
    Leaf other = 13;
  }
  Leaf leaf = 14 [(dexorder.api.v1.rules).required = true];
  Lax lax = 15 [(dexorder.api.v1.rules).required = true];
  repeated Leaf leaves = 16 [(dexorder.api.v1.rules).max_items = 2];
  map<string, string> labels = 17 [(dexorder.api.v1.rules).max_items = 1];
  map<string, Leaf> named = 18;
}
"""


def compiled(package: str) -> Callable[[str], Any]:
    """Return a function of the classes of PROTO in a package."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / f"{package}.proto").write_text(PROTO % package)
        out = folder / "set"
        paths = [f"-I{folder}", f"-I{ROOT / 'protos'}"]
        protoc = [sys.executable, "-m", "grpc_tools.protoc", *paths, f"--descriptor_set_out={out}", f"{package}.proto"]
        subprocess.run(protoc, check=True)
        (file,) = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    return lambda message: GetMessageClass(pool.FindMessageTypeByName(f"{package}.{message}"))


OURS, GIVEN, OTHERS = map(compiled, ("dexorder.rulestest.v1", "dexorder.ingest.v1.rulestest", "rulestest"))
Root, Leaf, Lax = map(OURS, ("Root", "Leaf", "Lax"))


def root(**fields: Any) -> Any:
    """Return a valid message with other fields; None clears one."""
    valid = {"name": "n", "low": 2, "words": ["w"], "painted": 1, "leaf": Leaf(id="a"), "lax": Lax()}
    return Root(**{name: value for name, value in {**valid, **fields}.items() if value is not None})


ACCEPTED: list[dict[str, Any]] = [
    {},
    {"short": "abc", "low": 9, "maybe": 2, "signed": -5, "real": 2.0, "words": ["abc", ""]},
    {"short": "äöü"},  # characters, not bytes
    {"numbers": [2, 9], "colour": 1, "colours": [0, 1], "ticker": "abc"},
    {"other": Leaf(id="abc", count=9), "leaves": [Leaf(id="a")] * 2, "labels": {"long key": "long value"}},
    {"named": {"k": Leaf()}},  # rules do not reach into maps
    {"real": float("nan")},
]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"name": None}, "name is missing"),
    ({"short": "abcd"}, "short 'abcd'... has 4 characters; at most 3 are allowed"),
    ({"low": None}, "low 0 is under 2"),
    ({"low": 10}, "low 10 is over 9"),
    ({"maybe": 0}, "maybe 0 is under 2"),
    ({"maybe": 10}, "maybe 10 is over 9"),
    ({"signed": 10}, "signed 10 is over 9"),
    ({"real": 1.5}, "real 1.5 is under 2"),
    ({"real": 9.5}, "real 9.5 is over 9"),
    ({"words": None}, "words is missing"),
    ({"words": ["a", "b", "c"]}, "words has 3 entries; at most 2 are allowed"),
    ({"words": ["a", "abcd"]}, "words 'abcd'... has 4 characters; at most 3 are allowed"),
    ({"numbers": [2, 1]}, "numbers 1 is under 2"),
    ({"numbers": [2, 10]}, "numbers 10 is over 9"),
    ({"colour": 7}, "colour 7 is not a value of Colour"),
    ({"colours": [1, 7]}, "colours 7 is not a value of Colour"),
    ({"painted": None}, "painted is missing"),
    ({"painted": 7}, "painted 7 is not a value of Colour"),
    ({"ticker": "abcd"}, "ticker 'abcd'... has 4 characters; at most 3 are allowed"),
    ({"other": Leaf()}, "other.id is missing"),
    ({"other": Leaf(id="a", count=10)}, "other.count 10 is over 9"),
    ({"leaf": None}, "leaf is missing"),
    ({"leaf": Leaf()}, "leaf.id is missing"),
    ({"leaf": Leaf(id="abcd")}, "leaf.id 'abcd'... has 4 characters; at most 3 are allowed"),
    ({"lax": None}, "lax is missing"),
    ({"lax": Lax(count=10)}, "lax.count 10 is over 9"),
    ({"leaves": [Leaf(id="a")] * 3}, "leaves has 3 entries; at most 2 are allowed"),
    ({"leaves": [Leaf(id="a"), Leaf(id="b", count=10)]}, "leaves[1].count 10 is over 9"),
    ({"labels": {"a": "", "b": ""}}, "labels has 2 entries; at most 1 are allowed"),
]


@pytest.mark.parametrize("fields", ACCEPTED, ids=str)
def test_what_no_rule_refuses_is_accepted(fields: dict[str, Any]) -> None:
    check_request(root(**fields))


@pytest.mark.parametrize(("fields", "text"), REFUSED, ids=[text for _, text in REFUSED])
def test_refusal_names_field_value_and_rule(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_request(root(**fields))
    assert str(refused.value) == text


VALID, BAD = st.sampled_from(ACCEPTED), st.sampled_from([fields for fields, _ in REFUSED])


@given(st.lists(VALID, max_size=3), BAD)
def test_a_broken_rule_is_found_beside_any_valid_fields(valid: list[dict[str, Any]], bad: dict[str, Any]) -> None:
    fields = {name: value for each in valid for name, value in each.items() if name not in ("ticker", "other")}
    check_request(root(**fields))
    with pytest.raises(InvalidRequest):
        check_request(root(**{**fields, **bad}))


def test_messages_of_given_and_other_protocols_have_no_rules() -> None:
    """Their package decides: the same proto, with the same rules, in a given package and in one of somebody else."""
    check_request(GIVEN("Root")())
    check_request(OTHERS("Root")())
    event = user_events_pb2.UserEvent(user_id="u" * 100_000)
    check_request(events_pb.PublishRequest(event=event))


def test_page_of_a_pipelines_report_is_left_to_its_handler() -> None:
    """It skips an invalid page; refusing the call would lose the other pages of the batch."""
    page = pipeline_service_pb2.PageResult(series=common_pb2.Series(ticker="t" * 1_000))
    check_request(pipeline_service_pb2.ReportJobsRequest(pages=[page]))


class Echo(events_rpc.EventPublisherServiceServicer):
    """Answers each message of a stream."""

    async def PublishMany(
        self, request: AsyncIterator[events_pb.PublishManyRequest], context: Any
    ) -> AsyncIterator[events_pb.PublishManyResponse]:
        async for each in request:
            ack = user_events_pb2.EventAck(event_id=each.event.event_id)
            yield events_pb.PublishManyResponse(ack=ack)


async def test_each_message_of_a_stream_is_checked() -> None:
    def register(server: grpc.aio.Server) -> Sequence[str]:
        events_rpc.add_EventPublisherServiceServicer_to_server(Echo(), server)  # type: ignore[abstract]
        return ["dexorder.events.v1.EventPublisherService"]

    settings = ServiceSettings(listen="127.0.0.1:0", drain_seconds=1)
    async with grpc_server(settings, register) as running, grpc.aio.insecure_channel(running.address) as channel:
        stub: Any = events_rpc.EventPublisherServiceStub(channel)
        call = stub.PublishMany(timeout=30)
        await call.write(events_pb.PublishManyRequest(event=user_events_pb2.UserEvent(event_id="one")))
        assert (await call.read()).ack.event_id == "one"
        await call.write(events_pb.PublishManyRequest())
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.details() == "event is missing"
