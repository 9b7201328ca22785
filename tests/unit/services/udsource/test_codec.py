from __future__ import annotations

import base64
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.errors import InvalidRequest
from services.gen.source.v1 import source_pb2 as pb
from services.udsource import codec


@dataclass
class Record:
    """Stands in for a confluent-kafka message, whose constructor takes no partition in the releases we allow."""

    at: tuple[int, int] = (3, 12)
    time: tuple[int, int] = (1, 1_700_000_000_123)
    name: bytes | None = b"job-1"
    body: bytes | None = b"\x00\xff"
    extra: list[tuple[str, bytes | None]] | None = field(default_factory=list)

    def partition(self) -> int:
        return self.at[0]

    def offset(self) -> int:
        return self.at[1]

    def timestamp(self) -> tuple[int, int]:
        return self.time

    def key(self) -> bytes | None:
        return self.name

    def value(self) -> bytes | None:
        return self.body

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self.extra


def test_record_becomes_a_result() -> None:
    result = codec.to_response(Record(extra=[("a", b"1"), ("b", b"\xff"), ("a", "2é".encode()), ("n", None)])).result
    assert (result.payload, result.offset.offset, result.offset.partition_id) == (b"\x00\xff", b"12", 3)
    assert (result.event_time.seconds, result.event_time.nanos) == (1_700_000_000, 123_000_000)
    assert list(result.keys) == ["job-1"]
    assert dict(result.headers) == {"a": "2é", "b": "base64:/w==", "n": ""}


@pytest.mark.parametrize("record", [Record(name=None, body=None, extra=None, time=(0, -1), at=(0, 0))])
def test_bare_record_still_has_offset_and_event_time(record: Record) -> None:
    response = codec.to_response(record)
    assert response.result.offset.offset == b"0"
    assert response.result.HasField("event_time") and response.result.event_time.seconds == 0
    assert list(response.result.keys) == [] and response.result.payload == b""
    assert response.HasField("status") and not response.status.eot


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"", ""),
        (b"BTC/USDT.BINANCE", "BTC/USDT.BINANCE"),
        ("ключ".encode(), "ключ"),
        (b"\xff\x00", "base64:/wA="),
        (b"\xed\xa0\x80", "base64:7aCA"),  # a surrogate is no UTF-8
        (b"base64:x", "base64:YmFzZTY0Ong="),
    ],
)
def test_text(value: bytes, text: str) -> None:
    assert codec.as_text(value) == text


@given(st.binary() | st.text().map(str.encode) | st.text().map(lambda t: b"base64:" + t.encode()))
def test_text_loses_nothing(value: bytes) -> None:
    text = codec.as_text(value)
    pb.ReadResponse.Result(keys=[text])  # protobuf takes it
    back = base64.b64decode(text.removeprefix("base64:")) if text.startswith("base64:") else text.encode()
    assert back == value


def test_fixed_answers_have_the_bytes_peers_expect() -> None:
    assert codec.READ_GREETING.SerializeToString() == bytes.fromhex("1200 1a02 0801")  # status{} handshake{sot}
    assert codec.END_OF_BATCH.SerializeToString() == bytes.fromhex("1202 0801")  # status{eot}, no result
    assert codec.ACK_GREETING.SerializeToString() == bytes.fromhex("0a02 0a00 1202 0801")
    assert codec.ACKED.SerializeToString() == codec.NACKED.SerializeToString() == bytes.fromhex("0a02 0a00")
    assert codec.failed_batch("no").SerializeToString() == bytes.fromhex("120a 0801 1001 1801 2202 6e6f")


def test_offsets_come_back() -> None:
    offsets = [pb.Offset(offset=b"12", partition_id=3), pb.Offset(offset=b"0")]
    assert codec.to_pairs(offsets) == [(3, 12), (0, 0)]


@pytest.mark.parametrize("value", [b"", b"-1", b"1.5", b"0x1", b"\xff", b"99999999999999999999"])
def test_offset_that_is_no_number_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidRequest, match="offset"):
        codec.to_pairs([pb.Offset(offset=value)])


def test_ack_of_an_older_client_is_a_batch_of_one() -> None:
    """The contract before batches had a single offset in the same field."""
    request = pb.AckRequest.FromString(bytes.fromhex("0a07 0a05 0a01 37 1003"))
    assert codec.to_pairs(request.request.offsets) == [(3, 7)]
