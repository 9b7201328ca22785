"""Fields put together by hand, held against protobuf's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.events.raw_proto import field, field_head
from services.gen.dexorder.events.v1 import event_service_pb2 as pb


@pytest.mark.parametrize(
    ("number", "size", "head"),
    [
        (1, 0, b"\x0a\x00"),
        (4, 1, b"\x22\x01"),
        (15, 127, b"\x7a\x7f"),
        (16, 128, b"\x82\x01\x80\x01"),
        (4, 16_383, b"\x22\xff\x7f"),
        (4, 16_384, b"\x22\x80\x80\x01"),
    ],
)
def test_head_of_a_field(number: int, size: int, head: bytes) -> None:
    assert field_head(number, size) == head
    assert field(number, b"x" * size) == head + b"x" * size


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(0, 40_000))
def test_fields_equal_those_of_protobuf(title: str, size: int) -> None:
    parts = field(4, title.encode()) + field(5, b"x" * size)
    assert pb.SessionEvent.FromString(parts) == pb.SessionEvent(title=title, body="x" * size)
