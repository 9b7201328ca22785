"""Columns as pandas Series with the types that pyarrow would give them. pandas reads Arrow data with pyarrow only."""

from __future__ import annotations

from typing import Any

import pandas
from arro3.core import DataType

from dexorder.rows.columns import Column

_TEXT: Any = "str" if int(pandas.__version__.partition(".")[0]) >= 3 else object
"""Type of text in this release of pandas."""


def series(column: Column) -> pandas.Series[Any]:
    """Return the values of a column."""
    kind = column.type
    if DataType.is_timestamp(kind):
        times = pandas.DatetimeIndex(column.to_numpy())
        return pandas.Series(times if kind.tz is None else times.tz_localize("UTC").tz_convert(kind.tz))
    if DataType.is_string(kind) or DataType.is_large_string(kind):
        return pandas.Series(column.to_pylist(), dtype=_TEXT)
    return pandas.Series(column.to_numpy())


def frame(names: list[str], columns: list[Column], num_rows: int) -> pandas.DataFrame:
    """Return the columns, of which two may have one name."""
    found = pandas.DataFrame({index: series(each) for index, each in enumerate(columns)}, pandas.RangeIndex(num_rows))
    found.columns = pandas.Index(names)
    return found
