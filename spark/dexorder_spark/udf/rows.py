"""Output of a UDF as rows of its table, and rows as messages for a topic or a user. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

import orjson

from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.times import iso_microseconds
from dexorder_udf.points import Batch, Point, Value

_INT64 = range(-(2**63), 2**63)


def rows_of(outputs: Iterable[Point | Batch], first: int) -> list[dict[str, Any]]:
    """Return a row for each point; the first one gets ``first`` as its sequence.

    InvalidRequest if a value does not fit the table.
    """
    rows: list[dict[str, Any]] = []
    for output in outputs:
        if isinstance(output, Batch):
            for point in output.points:
                tags = {**output.tags, **point.tags}
                rows.append(_row(point, output.name, output.group, tags, first + len(rows), output.tmax_ns))
        else:
            rows.append(_row(output, output.name, output.group, output.tags, first + len(rows), None))
    return rows


def _row(
    point: Point, name: str, group: str, tags: Mapping[str, str], sequence: int, batch_ns: int | None
) -> dict[str, Any]:
    kinds: dict[type, dict[str, Value]] = {float: {}, int: {}, str: {}, bool: {}}
    for field, value in point.fields.items():
        kinds[type(value)][field] = value
    return {
        "sequence": sequence,
        "time": _microseconds(point.time_ns, "time"),
        "ticker": tags.get("ticker"),
        "period": tags.get("period"),
        "name": name,
        "group": group,
        "batch_time": None if batch_ns is None else _microseconds(batch_ns, "tmax"),
        "tags": list(tags.items()),
        "doubles": list(kinds[float].items()),
        "ints": list(kinds[int].items()),
        "strings": list(kinds[str].items()),
        "bools": list(kinds[bool].items()),
    }


def _microseconds(time_ns: int, field: str) -> int:
    if time_ns not in _INT64:
        raise InvalidRequest(f"{field} {time_ns} of its output does not fit 64 bits")
    return time_ns // 1_000


def fields_of(row: Mapping[str, Any]) -> dict[str, Value]:
    """Return the fields of a row of the table, of all types."""
    kinds: Sequence[str] = ("doubles", "ints", "strings", "bools")
    return {name: value for kind in kinds for name, value in dict(row[kind]).items()}


def message_of(udf: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as the JSON object that topics and events carry."""
    batch_us = row["batch_time"]
    message = {
        "udf": udf,
        "sequence": row["sequence"],
        "time": iso_microseconds(row["time"] * 1_000),
        "name": row["name"],
        "group": row["group"],
        "batch_time": None if batch_us is None else iso_microseconds(batch_us * 1_000),
        "tags": dict(row["tags"]),
        "fields": fields_of(row),
    }
    return {key: value for key, value in message.items() if value is not None}


def text_of(udf: str, row: Mapping[str, Any]) -> bytes:
    """Return the message as JSON; numbers that JSON lacks are text."""
    message = message_of(udf, row)
    fields = message["fields"]
    for name, value in fields.items():
        if isinstance(value, float) and not isfinite(value):
            fields[name] = str(value)
    return orjson.dumps(message)
