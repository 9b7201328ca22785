"""Records of a batch from columns and into them. Pure but for a warning about headers.

What is done here for a single record bounds the streams: a column costs one pass over a list, a message a record
microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

from services.common.errors import InvalidRequest
from services.common.kafka import headers_of
from services.gateway.pixy.batches import Headers, NewRecord
from services.gateway.pixy.topic_reader import Record
from services.gen.dexorder.kafka.v1 import kafka_service_pb2 as pb


def new_records(request: pb.ProduceRequest) -> tuple[list[NewRecord], int]:
    """The records to write, and their bytes.

    Raises:
        InvalidRequest: A column is of another length than ``values``; a null is not in its column, or not empty there.
    """
    values, keys = list(request.values), list(request.keys)
    count = len(values)
    for name in ("keys", "headers", "timestamps_ms"):
        if (given := len(getattr(request, name))) not in (0, count):
            raise InvalidRequest(f"{given} {name} for {count} values")
    size = sum(map(len, values)) + sum(map(len, keys))
    size += sum(len(header.key) + len(header.value) for each in request.headers for header in each.headers)
    records = zip(
        _with_nulls("keys", keys, request.null_keys) or repeat(None, count),
        _with_nulls("values", values, request.null_values),
        _headers(request.headers) or repeat(None, count),
        request.timestamps_ms or repeat(0, count),
        strict=True,
    )
    return list(records), size


def _with_nulls(name: str, column: Sequence[bytes], nulls: Sequence[int]) -> list[bytes | None]:
    if len(nulls) > len(column):
        raise InvalidRequest(f"{len(nulls)} null_{name} for {len(column)} {name}")
    found: list[bytes | None] = [*column]
    for place, index in enumerate(nulls):
        if index >= len(column):
            raise InvalidRequest(f"null_{name}[{place}] {index} is no index of {len(column)} {name}")
        if column[index]:
            raise InvalidRequest(f"{name}[{index}] has {len(column[index])} bytes and is in null_{name}")
        found[index] = None
    return found


def _headers(column: Sequence[pb.Headers]) -> list[Headers | None]:
    return [[(header.key, header.value) for header in each.headers] or None for each in column]


class Columns:
    """Records of a partition, as Kafka's client has them."""

    def __init__(self, records: Sequence[tuple[int, Record]]) -> None:
        self._offsets = [offset for offset, _ in records]
        self._values = [record.value() for _, record in records]
        self._keys = [record.key() for _, record in records]
        self._headers = [headers_of(record) for _, record in records]
        self._timestamps_ms = [at if at > 0 else 0 for _, record in records for _, at in [record.timestamp()]]

    def sizes(self) -> list[int]:
        """Bytes of each record's value, key and headers."""
        sizes = [len(value or b"") for value in self._values]
        if any(self._keys):
            sizes = [size + len(key or b"") for size, key in zip(sizes, self._keys, strict=True)]
        if any(self._headers):
            headers = (sum(len(name) + len(data or b"") for name, data in each) for each in self._headers)
            sizes = [size + more for size, more in zip(sizes, headers, strict=True)]
        return sizes

    def fill(self, batch: pb.RecordBatch, begin: int, end: int) -> None:
        """Put some of them into an empty batch that is in its response already: one put there later is copied."""
        batch.offsets.extend(self._offsets[begin:end])
        batch.timestamps_ms.extend(self._timestamps_ms[begin:end])
        values, null_values = _without_nulls(self._values[begin:end])
        batch.values.extend(values)
        batch.null_values.extend(null_values)
        keys, null_keys = _without_nulls(self._keys[begin:end])
        if len(null_keys) < len(keys):
            batch.keys.extend(keys)
            batch.null_keys.extend(null_keys)
        headers = self._headers[begin:end]
        if any(headers):
            for each in headers:
                added = batch.headers.add().headers
                for name, data in each:
                    added.add(key=name, value=data or b"")


def _without_nulls(column: Sequence[bytes | None]) -> tuple[list[bytes], list[int]]:
    """Nulls become empty; where they were."""
    nulls = [] if all(column) else [index for index, entry in enumerate(column) if entry is None]
    return [entry or b"" for entry in column], nulls
