"""Frames of port 5567 by literal bytes, round trip and broken input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.messaging import broker_frames
from services.common.model.errors import InvalidRequest
from services.gen.dexorder.ingest.v1 import ingest_pb2 as pb

GOLDEN: list[tuple[broker_frames.Frame, bytes]] = [
    (pb.WorkerReady(exchanges=["SIM"], job_type=pb.HISTORICAL), b"\x20\x0a\x03SIM\x10\x01"),
    (pb.WorkComplete(job_id="j1", success=True), b"\x21\x0a\x02j1\x10\x01"),
    (pb.WorkHeartbeat(job_id="j1"), b"\x22\x0a\x02j1"),
    (pb.WorkReject(job_id="j1", reason="full"), b"\x23\x0a\x02j1\x12\x04full"),
    (pb.DataRequest(request_id="r", ticker="A/B.SIM", job_id="j1"), b"\x24\x0a\x01r\x1a\x07A/B.SIM:\x02j1"),
    (pb.WorkStop(job_id="j1"), b"\x25\x0a\x02j1"),
]


@pytest.mark.parametrize(("message", "body"), GOLDEN, ids=lambda v: type(v).__name__)
def test_frame_bytes(message: broker_frames.Frame, body: bytes) -> None:
    assert broker_frames.encode(message) == [b"\x01", body]
    assert broker_frames.decode([b"\x01", body]) == message


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
def test_broken_frames_are_refused_with_the_reason(frames: list[bytes], why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        broker_frames.decode(frames)


@given(st.lists(st.binary(max_size=40), max_size=4))
def test_no_bytes_raise_anything_else(frames: list[bytes]) -> None:
    try:
        broker_frames.decode(frames)
    except InvalidRequest:
        return
