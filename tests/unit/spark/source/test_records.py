import pyarrow as pa
import pytest

from dexorder_protos.source.v1 import source_pb2 as pb
from dexorder_spark.source.records import RAW, RECORD, number_of, to_batch
from tests.unit.spark.source.plain_source import record


@pytest.mark.parametrize(
    ("offset", "number"),
    [
        (b"17", 17),
        (b"0", 0),
        (b"007", 7),
        (b"9223372036854775807", 2**63 - 1),
        (b"9223372036854775808", None),
        (b"99999999999999999999", None),
        (b"", None),
        (b"-1", None),
        (b"1a", None),
        (b"\xff\x00", None),
        ("١".encode(), None),
    ],
)
def test_an_offset_is_a_number_only_as_decimal_digits(offset: bytes, number: int | None) -> None:
    assert number_of(offset) == number


def test_a_record_keeps_every_field_of_its_source() -> None:
    ours = pb.ReadResponse.Result(payload=b"x", offset=pb.Offset(offset=b"17", partition_id=1), headers={"a": "1"})
    ours.event_time.FromMilliseconds(1_500)
    rows = to_batch([ours, record(3)]).to_pylist()
    assert rows[0].pop("event_time").timestamp() == 1.5
    assert rows[1].pop("event_time").timestamp() == 1_700_000_000.003
    assert rows == [
        {
            "payload": b"x",
            "key": None,
            "headers": [("a", "1")],
            "partition": 1,
            "offset": 17,
            "keys": [],
            "offset_bytes": b"17",
        },
        {
            "payload": b"3",
            "key": "k3",
            "headers": [("n", "3")],
            "partition": 1,
            "offset": None,
            "keys": ["k3", "second"],
            "offset_bytes": b"o-3",
        },
    ]


def test_a_record_without_event_time_has_none() -> None:
    assert to_batch([pb.ReadResponse.Result(offset=pb.Offset(offset=b"1"))]).to_pylist()[0]["event_time"] is None


def test_the_pipelines_columns_are_the_first_ones() -> None:
    assert pa.schema(list(RECORD)[: len(RAW)]) == RAW
