"""Frames of every port by literal bytes, round trip and broken input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.messaging import frames as codec
from dexorder_common.messaging.frames import BadFrame
from dexorder_common.model.errors import InvalidRequest
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as pb
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as work

GOLDEN: list[tuple[codec.WorkFrame, bytes]] = [
    (work.WorkerReady(exchanges=["SIM"], job_type=work.HISTORICAL), b"\x20\x0a\x03SIM\x10\x01"),
    (work.WorkComplete(job_id="j1", success=True), b"\x21\x0a\x02j1\x10\x01"),
    (work.WorkHeartbeat(job_id="j1"), b"\x22\x0a\x02j1"),
    (work.WorkReject(job_id="j1", reason="full"), b"\x23\x0a\x02j1\x12\x04full"),
    (work.DataRequest(request_id="r", ticker="A/B.SIM", job_id="j1"), b"\x24\x0a\x01r\x1a\x07A/B.SIM:\x02j1"),
    (work.WorkStop(job_id="j1"), b"\x25\x0a\x02j1"),
]


@pytest.mark.parametrize(("message", "body"), GOLDEN, ids=lambda v: type(v).__name__)
def test_work_frame_bytes(message: codec.WorkFrame, body: bytes) -> None:
    assert codec.encode_work(message) == [b"\x01", body]
    assert codec.decode_work([b"\x01", body]) == message


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([], "0 frames"),
        ([b"\x01"], "1 frames"),
        ([b"\x01", b"\x20", b""], "3 frames"),
        ([b"\x02", b"\x20"], "version 02"),
        ([b"", b"\x20"], "version empty"),
        ([b"\x01", b""], "type missing"),
        ([b"\x01", b"\x01"], "type 01"),
        ([b"\x01", b"\x26"], "type 26"),
        ([b"\x01", b"\x20\xff"], "does not parse"),
    ],
)
def test_broken_work_frames_are_refused_with_the_reason(frames: list[bytes], why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        codec.decode_work(frames)


@given(st.lists(st.binary(max_size=40), max_size=4))
def test_no_bytes_raise_anything_else_on_the_work_port(frames: list[bytes]) -> None:
    try:
        codec.decode_work(frames)
    except InvalidRequest:
        return


EVENT = pb.UserEvent(user_id="a", event_id="e1", delivery=pb.DeliverySpec(priority=pb.CRITICAL))
BODY = b"\x0a\x01a\x12\x02e1\x32\x02\x08\x02"


def test_event_and_ack_bytes() -> None:
    assert codec.encode_event(EVENT) == [b"\x01", b"\x20" + BODY]
    assert codec.event_body([b"\x01", b"\x20" + BODY]) == BODY
    ack = pb.EventAck(event_id="e1", status=pb.QUEUED)
    assert codec.encode_ack(ack) == [b"\x01", b"\x21\x0a\x02e1\x10\x01"]
    assert codec.decode_ack([b"\x01", b"\x21\x0a\x02e1\x10\x01"]) == ack


def test_topic_ends_so_that_no_longer_id_matches_it() -> None:
    frames = [codec.topic(EVENT.user_id), *codec.encode_event(EVENT)]
    assert frames == [b"USER:a\x00", b"\x01", b"\x20" + BODY]
    assert codec.published_body(frames) == (b"USER:a\x00", BODY)
    assert not codec.topic("alice").startswith(codec.topic("a"))


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([b"\x01"], "frame_count"),
        ([b"\x01", b"\x20", b""], "frame_count"),
        ([b"\x02", b"\x20"], "version"),
        ([b"\x01", b""], "type"),
        ([b"\x01", b"\x21"], "type"),  # an ack, which only the gateway sends
    ],
)
def test_broken_event_frames_are_refused_with_the_reason(frames: list[bytes], reason: str) -> None:
    with pytest.raises(BadFrame) as refused:
        codec.event_body(frames)
    assert refused.value.reason == reason
    with pytest.raises(BadFrame):
        codec.published_body(frames)
    with pytest.raises(BadFrame) as refused:
        codec.published_body([b"USER:a\x00", *frames])
    assert refused.value.reason == reason


@given(st.lists(st.binary(max_size=40), max_size=4))
def test_no_bytes_raise_anything_else_on_the_event_ports(frames: list[bytes]) -> None:
    for read in (codec.event_body, codec.published_body, codec.decode_ack):
        try:
            read(frames)
        except BadFrame:
            continue
