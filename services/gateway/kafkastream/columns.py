"""Conversion of a batch's records from and to columns.

Work per record limits the throughput of the streams: a column costs one pass over a list, a message per record would
cost microseconds each.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableSequence, Sequence
from itertools import repeat
from typing import cast

from services.common.kafka.client_options import headers_of
from services.common.model.errors import InvalidRequest
from services.gateway.kafkapixy.batches import Headers, NewRecord
from services.gateway.kafkapixy.types import Record
from services.gen.dexorder.kafka.v1 import kafka_service_pb2 as pb


def new_records(columns: pb.Records) -> tuple[list[NewRecord], int]:
    """Return the records to write, and their bytes.

    Raises:
        InvalidRequest: A column has another length than ``values``; a null is not in its column, or not empty there.
    """
    count = len(columns.values)
    for name in ("keys", "headers", "timestamps_ms"):
        if (given := len(getattr(columns, name))) not in (0, count):
            raise InvalidRequest(f"{given} {name} for {count} values")
    keys = _with_nulls("keys", columns.keys, columns.null_keys)
    values = _with_nulls("values", columns.values, columns.null_values)
    headers: list[Headers | None] = [[(h.key, h.value) for h in each.headers] or None for each in columns.headers]
    size = sum(map(len, filter(None, keys))) + sum(map(len, filter(None, values))) + sum(map(_headers_size, headers))
    records = zip(
        keys or repeat(None, count),
        values,
        headers or repeat(None, count),
        columns.timestamps_ms or repeat(0, count),
        strict=True,
    )
    return list(records), size


def _with_nulls(name: str, column: Iterable[bytes], nulls: Sequence[int]) -> list[bytes | None]:
    found: list[bytes | None] = list(column)
    if len(nulls) > len(found):
        raise InvalidRequest(f"{len(nulls)} null_{name} for {len(found)} {name}")
    for place, index in enumerate(nulls):
        if index >= len(found):
            raise InvalidRequest(f"null_{name}[{place}] {index} is not an index of {len(found)} {name}")
        if entry := found[index]:
            raise InvalidRequest(f"{name}[{index}] has {len(entry)} bytes and is in null_{name}")
        found[index] = None
    return found


def _headers_size(headers: Sequence[tuple[str, str | bytes | None]] | None) -> int:
    return sum(len(name) + len(data or b"") for name, data in headers or ())


class Columns:
    """Columns of a partition's records from Kafka's client."""

    def __init__(self, records: Sequence[tuple[int, Record]]) -> None:
        self._offsets = [offset for offset, _ in records]
        self._values = [record.value() for _, record in records]
        self._keys = [record.key() for _, record in records]
        self._headers = [headers_of(record) for _, record in records]
        self._timestamps_ms = [at if at > 0 else 0 for _, record in records for _, at in [record.timestamp()]]

    def sizes(self) -> list[int]:
        """Return the bytes of each record's value, key and headers."""
        sizes = [len(value or b"") for value in self._values]
        if any(self._keys):
            sizes = [size + len(key or b"") for size, key in zip(sizes, self._keys, strict=True)]
        if any(self._headers):
            sizes = [size + _headers_size(each) for size, each in zip(sizes, self._headers, strict=True)]
        return sizes

    def fill(self, batch: pb.RecordBatch, begin: int, end: int) -> None:
        """Fill an empty batch with some of them; the batch is in its response already, as adding it later copies it."""
        part, records = slice(begin, end), batch.records
        batch.offsets.extend(self._offsets[part])
        _put(self._values[part], records.values, records.null_values)
        keys = self._keys[part]
        if keys.count(None) < len(keys):
            _put(keys, records.keys, records.null_keys)
        headers = self._headers[part]
        if any(headers):
            for each in headers:
                added = records.headers.add().headers
                for name, data in each:
                    added.add(key=name, value=data or b"")
        timestamps_ms = self._timestamps_ms[part]
        if any(timestamps_ms):
            records.timestamps_ms.extend(timestamps_ms)


def _put(column: list[bytes | None], entries: MutableSequence[bytes], nulls: MutableSequence[int]) -> None:
    """Add a column; a null becomes an empty entry whose index is in ``nulls``."""
    if all(column):
        entries.extend(cast("list[bytes]", column))
    else:
        entries.extend([entry or b"" for entry in column])
        nulls.extend([index for index, entry in enumerate(column) if entry is None])
