from __future__ import annotations

import base64
from dataclasses import dataclass, field

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import example, given
from hypothesis import strategies as st

from dexorder_common.model.errors import InvalidRequest
from dexorder_protos.source.v1 import source_pb2 as pb
from dexorder_udsource import codec


@dataclass
class Record:
    """Replacement for a confluent-kafka message, whose constructor takes no partition in the supported releases."""

    at: tuple[int, int] = (3, 12)
    time: tuple[int, int] = (1, 1_700_000_000_123)
    name: bytes | None = b"job-1"
    body: bytes | None = b"\x00\xff"
    extra: list[tuple[str, bytes | None]] | None = field(default_factory=list)

    def topic(self) -> str:
        return "t"

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

    def set_headers(self, headers: list[tuple[str, bytes | None]]) -> None:
        self.extra = headers


def by_protobuf(record: Record) -> pb.ReadResponse:
    """Return the expected message of a record, built by protobuf."""
    time_ms = max(0, record.time[1])
    response = pb.ReadResponse(
        result=pb.ReadResponse.Result(
            payload=record.body or b"",
            offset=pb.Offset(offset=str(record.at[1]).encode(), partition_id=record.at[0]),
            event_time=Timestamp(seconds=time_ms // 1000, nanos=time_ms % 1000 * 1_000_000),
            keys=[] if record.name is None else [codec.as_text(record.name).decode()],
        ),
        status=pb.ReadResponse.Status(eot=False, code=pb.ReadResponse.Status.SUCCESS),
    )
    for name, value in record.extra or ():
        response.result.headers[name] = codec.as_text(value or b"").decode()
    return response


def sizes(*near: int) -> st.SearchStrategy[int]:
    """Return a strategy for numbers of any size, and for those next to the limits where a varint grows."""
    return st.sampled_from(sorted({n + d for n in near for d in (-1, 0, 1)})) | st.integers(0, max(near))


VALUES = st.none() | st.binary(max_size=40) | sizes(128, 16_384, 20_000).map(bytes) | st.text().map(str.encode)
NAMES = st.sampled_from(["", "a", "dx-kind", "é", "n" * 130]) | st.text(st.characters(codec="utf-8"), max_size=20)
RECORDS = st.builds(
    Record,
    at=st.tuples(sizes(128, 16_384, 2**31 - 1 - 1), sizes(128, 10**9, 2**63 - 1 - 1)),
    time=st.tuples(st.sampled_from([0, 1, 2]), st.just(-1) | sizes(1, 1_000, 128_000, 16_384_000, 2**45)),
    name=VALUES,
    body=VALUES,
    extra=st.none() | st.lists(st.tuples(NAMES, VALUES), max_size=5),
)


@given(RECORDS)
@example(Record(body=bytes(1 << 21)))
@example(Record(extra=[("a", b"1"), ("b", b"\xff"), ("a", b"base64:"), ("n", None)]))
def test_bytes_of_a_record_equal_those_of_protobuf(record: Record) -> None:
    data = codec.encode_record(record)
    assert pb.ReadResponse.FromString(data) == by_protobuf(record)
    # No shorter way to say it was missed, and no longer one taken.
    assert len(data) == by_protobuf(record).ByteSize()


def test_record_has_the_bytes_peers_expect() -> None:
    record = Record(extra=[("a", b"1"), ("b", b"\xff"), ("a", "2é".encode()), ("n", None)])
    assert codec.encode_record(record).hex() == "".join(
        (
            "0a43",  # result, 67 bytes
            "0a0200ff",  # payload
            "12060a0231321003",  # offset "12" of partition 3
            "1a0b0880e2cfaa0610c0a9d33a",  # event_time 1,700,000,000 s and 123,000,000 ns
            "22056a6f622d31",  # key "job-1"
            "2a080a0161120332c3a9",  # header a: of two the last
            "2a100a0162120b6261736536343a2f773d3d",  # header b: base64:/w==
            "2a050a016e1200",  # header n: a null is empty, and an entry tells even of that
            "1200",  # status: no eot, SUCCESS
        )
    )


def test_bare_record_still_has_offset_and_event_time() -> None:
    data = codec.encode_record(Record(name=None, body=None, extra=None, time=(0, -1), at=(0, 0)))
    assert data.hex() == "0a0712030a01301a001200"
    response = pb.ReadResponse.FromString(data)
    assert response.result.offset.offset == b"0"
    assert response.result.HasField("event_time") and response.result.event_time.seconds == 0
    assert list(response.result.keys) == [] and response.result.payload == b""
    assert response.HasField("status") and not response.status.eot


def test_empty_key_is_a_key() -> None:
    assert list(pb.ReadResponse.FromString(codec.encode_record(Record(name=b""))).result.keys) == [""]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"", b""),
        (b"BTC/USDT.BINANCE", b"BTC/USDT.BINANCE"),
        ("ключ".encode(), "ключ".encode()),
        (b"\xff\x00", b"base64:/wA="),
        (b"\xed\xa0\x80", b"base64:7aCA"),  # a surrogate is no UTF-8
        (b"base64:x", b"base64:YmFzZTY0Ong="),
    ],
)
def test_text(value: bytes, text: bytes) -> None:
    assert codec.as_text(value) == text


@given(st.binary() | st.text().map(str.encode) | st.text().map(lambda t: b"base64:" + t.encode()))
def test_text_loses_nothing(value: bytes) -> None:
    text = codec.as_text(value).decode()
    pb.ReadResponse.Result(keys=[text])  # protobuf takes it
    back = base64.b64decode(text.removeprefix("base64:")) if text.startswith("base64:") else text.encode()
    assert back == value


def test_fixed_answers_have_the_bytes_peers_expect() -> None:
    assert codec.READ_GREETING.hex(" ", -2) == "1200 1a02 0801"  # status{} handshake{sot}
    assert codec.END_OF_BATCH.hex(" ", -2) == "1202 0801"  # status{eot}, no result
    assert codec.END_OF_RANGE.hex(" ", -2) == "1212 0801 220e " + b"range complete".hex(" ", -2)
    assert codec.ACK_GREETING.SerializeToString() == bytes.fromhex("0a02 0a00 1202 0801")
    assert codec.ACKED.SerializeToString() == codec.NACKED.SerializeToString() == bytes.fromhex("0a02 0a00")
    assert codec.failed_batch("no") == bytes.fromhex("120a 0801 1001 1801 2202 6e6f")


def test_offsets_round_trip() -> None:
    offsets = [pb.Offset(offset=b"12", partition_id=3), pb.Offset(offset=b"0")]
    assert codec.to_pairs(offsets) == [(3, 12), (0, 0)]


@pytest.mark.parametrize("value", [b"", b"-1", b"1.5", b"0x1", b"\xff", b"99999999999999999999"])
def test_offset_that_is_not_a_number_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidRequest, match="offset"):
        codec.to_pairs([pb.Offset(offset=value)])


def test_ack_of_an_older_client_is_a_batch_of_one() -> None:
    """The contract before batches had a single offset in the same field."""
    request = pb.AckRequest.FromString(bytes.fromhex("0a07 0a05 0a01 37 1003"))
    assert codec.to_pairs(request.request.offsets) == [(3, 7)]


# ---- handshake

HELLO = {"handshake": True, "sot": True, "request": False}
REQUEST = {"handshake": False, "sot": False, "request": True}
NOTHING = {"handshake": False, "sot": False, "request": False}


def test_requests_follow_one_handshake() -> None:
    state = codec.Handshake()
    for message in (HELLO, REQUEST, REQUEST):
        state.receive(**message)
        assert state.greeted


@pytest.mark.parametrize(
    ("before", "message", "text"),
    [
        ([], REQUEST, "first message must be a handshake"),
        ([], NOTHING, "first message must be a handshake"),
        ([], {**HELLO, "sot": False}, "first message must be a handshake"),
        ([], {**HELLO, "request": True}, "not both"),
        ([HELLO], HELLO, "duplicate handshake"),
        ([HELLO], {**HELLO, "sot": False}, "duplicate handshake"),
        ([HELLO], NOTHING, "neither"),
        ([HELLO, REQUEST], {**HELLO, "request": True}, "not both"),
    ],
)
def test_handshake_refuses_messages_out_of_order(
    before: list[dict[str, bool]], message: dict[str, bool], text: str
) -> None:
    state = codec.Handshake()
    for each in before:
        state.receive(**each)
    with pytest.raises(InvalidRequest, match=text):
        state.receive(**message)
    assert state.greeted == bool(before)
