"""Arrow columns as numpy arrays. It needs numpy, which an installation of the client alone does not have."""

from __future__ import annotations

from typing import Any

import numpy
from arro3.core import Array, ChunkedArray, DataType

_NO_TIME = numpy.iinfo(numpy.int64).min
"""What numpy and pandas take for a time that is missing."""


def array(column: ChunkedArray) -> Any:
    """Return the values: times as UTC, a missing number as NaN, types unknown to numpy as objects."""
    kind, is_whole = column.type, not column.null_count
    if DataType.is_timestamp(kind):
        return _integers(column.cast(DataType.int64())).view(f"datetime64[{kind.time_unit}]")
    if is_whole and (DataType.is_boolean(kind) or _is_number(kind)):
        return _whole(column)
    if _is_number(kind):
        return numpy.array(column.to_pylist(), numpy.float64)
    values = numpy.empty(len(column), object)
    values[:] = column.to_pylist()
    return values


def _is_number(kind: DataType) -> bool:
    return bool(DataType.is_integer(kind) or DataType.is_floating(kind))


def _integers(column: ChunkedArray) -> Any:
    if not column.null_count:
        return _whole(column)
    return numpy.array([_NO_TIME if value is None else value for value in column.to_pylist()], numpy.int64)


def _whole(column: ChunkedArray) -> Any:
    return column.to_numpy() if len(column) else Array([], column.type).to_numpy()  # it may have no chunk
