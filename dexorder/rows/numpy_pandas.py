"""Columns as numpy arrays and as pandas Series, with the types that pyarrow would give them.

It needs numpy, which an installation of the client alone does not have. pandas reads Arrow data with pyarrow only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy
from arro3.core import Array, ChunkedArray, DataType

if TYPE_CHECKING:
    import pandas

    from dexorder.rows.columns import Column

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
    return column.to_numpy() if len(column) else Array([], column.type).to_numpy()  # it may be without chunks


def series(column: Column) -> pandas.Series[Any]:
    """Return the values of a column."""
    import pandas

    kind = column.type
    if DataType.is_timestamp(kind):
        times = pandas.DatetimeIndex(column.to_numpy())
        return pandas.Series(times if kind.tz is None else times.tz_localize("UTC").tz_convert(kind.tz))
    if DataType.is_string(kind) or DataType.is_large_string(kind):
        text: Any = "str" if int(pandas.__version__.partition(".")[0]) >= 3 else object
        return pandas.Series(column.to_pylist(), dtype=text)
    return pandas.Series(column.to_numpy())


def frame(names: list[str], columns: list[Column], num_rows: int) -> pandas.DataFrame:
    """Return the columns, of which two may have one name."""
    import pandas

    found = pandas.DataFrame({index: series(each) for index, each in enumerate(columns)}, pandas.RangeIndex(num_rows))
    found.columns = pandas.Index(names)
    return found
