"""What `tests/nightly/test_grpc_campaign.py` changes: a sound call of every RPC, and each field of its messages."""

from __future__ import annotations

from random import Random

from google.protobuf.message import DecodeError

from dexorder_protos.dexorder.events.v1 import event_service_pb2 as event_pb
from tests.nightly.message_fuzz import changed
from tests.nightly.rpc_samples import SAMPLES, rpcs


def test_every_rpc_has_a_sample_of_its_messages() -> None:
    assert SAMPLES.keys() == rpcs().keys()
    for path, method in rpcs().items():
        kinds = {each.DESCRIPTOR.full_name for each in SAMPLES[path].messages}
        assert kinds == {method.input_type.full_name}, path


def test_changes_reach_each_field_and_most_of_them_parse() -> None:
    sound = SAMPLES["/dexorder.events.v1.EventPublisherService/Publish"].messages[0]
    assert isinstance(sound, event_pb.PublishRequest)
    random, seen, parsed = Random(1), set[str](), 0
    for _ in range(2_000):
        found = event_pb.PublishRequest()
        try:
            found.MergeFromString(changed(sound, random))
        except DecodeError:
            continue
        parsed += found != sound
        event, was = found.event, sound.event
        seen |= {each.name for each in event.DESCRIPTOR.fields if getattr(event, each.name) != getattr(was, each.name)}
        if event.delivery.channels != was.delivery.channels:
            seen.add("channels")
    assert seen == {"user_id", "event_id", "timestamp", "event_type", "payload", "delivery", "channels"}
    assert parsed > 1_200
