"""Conversion of records from and to columns, without a broker."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.model.errors import InvalidRequest
from services.gateway.kafkapixy.types import Deliveries, Delivery
from services.gateway.kafkastream import service
from services.gateway.kafkastream.columns import new_records
from services.gateway.kafkastream.consume_stream import Output
from services.gen.dexorder.kafka.v1 import kafka_service_pb2 as pb
from tests.unit.services.gateway.kafkastream.calls import Record, columns, records

FULL = 100
"""Bytes of a response in these tests."""
HEADERS = (("a", b"1"), ("a", b""))


@dataclass(frozen=True)
class Stored:
    """Fake message of confluent-kafka."""

    record: Record

    def __len__(self) -> int:
        return len(self.record.value or b"")

    def value(self) -> bytes | None:
        return self.record.value

    def key(self) -> bytes | None:
        return self.record.key

    def topic(self) -> None: ...

    def partition(self) -> None: ...

    def offset(self) -> None: ...

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return [(name, data or None) for name, data in self.record.headers] or None

    def set_headers(self, headers: object) -> None: ...

    def timestamp(self) -> tuple[int, int]:
        return (1, self.record.timestamp_ms) if self.record.timestamp_ms else (0, -1)


def consumed(*batches: Sequence[Record], again: str = "") -> list[pb.ConsumeResponse]:
    """Return the responses; the batches are of partitions 0, 1, ..., their offsets 10, 11, ..."""
    deliveries: Deliveries = [
        Delivery(partition, [(10 + place, Stored(record)) for place, record in enumerate(batch)], again)
        for partition, batch in enumerate(batches)
    ]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(service, "BATCH_BYTES", FULL)
        return list(service._responses(Output(deliveries)))


def size(record: Record) -> int:
    headers = sum(len(name) + len(data) for name, data in record.headers)
    return len(record.value or b"") + len(record.key or b"") + headers


BATCHES = [
    [Record(b"v")],
    [Record(b"")],
    [Record()],
    [Record(b"v"), Record(), Record(b""), Record(b"w")],
    [Record(b"v", b"k"), Record(b"w", b"l")],
    [Record(b"v", b"k"), Record(b"v"), Record(b"v", b"")],
    [Record(b"v", b""), Record(b"v", b"")],
    [Record(key=b"gone"), Record(b"v", b"k")],
    [Record(b"v"), Record(b"v", headers=HEADERS), Record(b"v")],
    [Record(b"v", timestamp_ms=1_700_000_000_123), Record(b"v")],
    [Record(b"v", b"k", HEADERS, 1), Record(b"w", b"l", HEADERS[:1], 2)],
]


@pytest.mark.parametrize("batch", [[], *BATCHES])
def test_columns_become_records(batch: list[Record]) -> None:
    assert new_records(columns(batch)) == (
        [(record.key, record.value, list(record.headers) or None, record.timestamp_ms) for record in batch],
        sum(map(size, batch)),
    )


@pytest.mark.parametrize("batch", BATCHES)
def test_records_become_columns(batch: list[Record]) -> None:
    ((answer,),) = [response.batches for response in consumed(batch)]
    assert records(answer) == batch
    assert list(answer.offsets) == list(range(10, 10 + len(batch)))


@pytest.mark.parametrize(
    ("batch", "wanted"),
    [
        ([Record(b"v"), Record(b"")], pb.Records(values=[b"v", b""])),
        ([Record(), Record(b"v"), Record()], pb.Records(values=[b"", b"v", b""], null_values=[0, 2])),
        ([Record(b"", b""), Record(b"", b"k")], pb.Records(values=[b"", b""], keys=[b"", b"k"])),
        ([Record(b""), Record(b"", b"")], pb.Records(values=[b"", b""], keys=[b"", b""], null_keys=[0])),
        (
            [Record(b""), Record(b"", headers=HEADERS)],
            pb.Records(
                values=[b"", b""],
                headers=[pb.Headers(), pb.Headers(headers=[pb.Header(key="a", value=b"1"), pb.Header(key="a")])],
            ),
        ),
        ([Record(b""), Record(b"", timestamp_ms=5)], pb.Records(values=[b"", b""], timestamps_ms=[0, 5])),
    ],
)
def test_empty_column_is_left_out(batch: list[Record], wanted: pb.Records) -> None:
    (response,) = consumed(batch)
    assert response == pb.ConsumeResponse(batches=[pb.RecordBatch(offsets=range(10, 10 + len(batch)), records=wanted)])


def test_batch_has_partition_offsets_and_redelivered() -> None:
    for again in ("", "timeout"):
        (response,) = consumed([Record()], [Record()], again=again)
        assert [(batch.partition, batch.redelivered) for batch in response.batches] == [
            (0, bool(again)),
            (1, bool(again)),
        ]


BAD = [
    (pb.Records(values=[b""] * 5, keys=[b""] * 3), "3 keys for 5 values"),
    (pb.Records(keys=[b"k"]), "1 keys for 0 values"),
    (pb.Records(values=[b""] * 2, headers=[pb.Headers()]), "1 headers for 2 values"),
    (pb.Records(values=[b""], timestamps_ms=[1, 2]), "2 timestamps_ms for 1 values"),
    (pb.Records(values=[b""] * 5, null_values=[7]), "null_values[0] 7 is not an index of 5 values"),
    (pb.Records(values=[b""] * 2, null_values=[0, 2]), "null_values[1] 2 is not an index of 2 values"),
    (pb.Records(values=[b""], null_values=[0, 0]), "2 null_values for 1 values"),
    (pb.Records(values=[b"", b"abc"], null_values=[1]), "values[1] has 3 bytes and is in null_values"),
    (pb.Records(values=[b"v"], null_keys=[0]), "1 null_keys for 0 keys"),
    (pb.Records(values=[b"v"], keys=[b""], null_keys=[1]), "null_keys[0] 1 is not an index of 1 keys"),
    (pb.Records(values=[b"v"], keys=[b"k"], null_keys=[0]), "keys[0] has 1 bytes and is in null_keys"),
]


@pytest.mark.parametrize(("bad", "text"), BAD)
def test_columns_that_do_not_match_are_refused_by_name(bad: pb.Records, text: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{re.escape(text)}$"):
        new_records(bad)


@pytest.mark.parametrize(
    ("sizes", "responses"),
    [
        ([[100, 100]], [[1], [1]]),
        ([[99, 1, 1]], [[2], [1]]),
        ([[250]], [[1]]),
        ([[0, 250, 0]], [[2], [1]]),
        ([[0] * 3], [[3]]),
        ([[60] * 5], [[2], [2], [1]]),
        ([[100], [0]], [[1], [1]]),
        ([[50], [49], [1], [1]], [[1, 1, 1], [1]]),
        ([[30] * 2, [30] * 3], [[2, 2], [1]]),
    ],
)
def test_response_is_limited_in_bytes(sizes: list[list[int]], responses: list[list[int]]) -> None:
    found = consumed(*([Record(b"x" * size) for size in batch] for batch in sizes))
    assert [[len(batch.offsets) for batch in response.batches] for response in found] == responses


some_records = st.builds(
    Record,
    value=st.none() | st.binary(max_size=2 * FULL),
    key=st.none() | st.binary(max_size=FULL // 2),
    headers=st.lists(st.tuples(st.text(max_size=3), st.binary(max_size=FULL // 2)), max_size=2).map(tuple),
    timestamp_ms=st.integers(0, 2**50),
)


@given(st.lists(st.lists(some_records, min_size=1, max_size=15), min_size=1, max_size=4))
def test_records_are_unchanged_in_responses_of_the_right_size(batches: list[list[Record]]) -> None:
    responses = consumed(*batches)
    found: list[list[Record]] = [[] for _ in batches]
    offsets: list[list[int]] = [[] for _ in batches]
    for response in responses:
        for batch in response.batches:
            found[batch.partition] += records(batch)
            offsets[batch.partition] += batch.offsets
    assert found == batches
    assert offsets == [list(range(10, 10 + len(batch))) for batch in batches]
    held = [[size(record) for batch in response.batches for record in records(batch)] for response in responses]
    assert all(held)
    assert all(sum(sizes[:-1]) < FULL for sizes in held)
    assert all(sum(sizes) >= FULL for sizes in held[:-1])
