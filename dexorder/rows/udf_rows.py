"""Rows of a UDF's table with a typed column for each tag and each field, instead of maps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pyarrow as pa

MAPS: dict[str, Any] = {
    "tags": pa.string(),
    "doubles": pa.float64(),
    "ints": pa.int64(),
    "strings": pa.string(),
    "bools": pa.bool_(),
}
"""Columns of the table that are maps, and the types of their values."""


def typed(found: pa.Table, declared: Mapping[str, str] = MappingProxyType({})) -> pa.Table:
    """Return the rows, ordered by sequence: the table's own columns, then a column for each tag and each field.

    A value is null where its row does not have it. A name that is taken gets underscores. A field that is a double in
    some rows and an integer in others is a double.

    Args:
        declared: Map column of each field that has a column although no row may have a value.
    """
    found = found.sort_by("sequence")
    columns: dict[str, Any] = {name: found[name] for name in found.column_names if name not in MAPS}
    own = set(columns)
    again = {"ticker", "period"} & own  # the table has these tags as columns
    for name, values, kind in _maps(found, declared):
        if name in again and kind == pa.string():
            continue
        if name in columns and name not in own and {columns[name].type, kind} == {pa.int64(), pa.float64()}:
            columns[name] = _either(columns[name].to_pylist(), values)
            continue
        while name in columns:
            name += "_"
        columns[name] = pa.chunked_array([pa.array(values, kind)])
    return pa.table(columns)


def _maps(found: pa.Table, declared: Mapping[str, str]) -> Iterator[tuple[str, list[Any], Any]]:
    for column, kind in MAPS.items():
        maps: list[Any] = found[column].to_pylist()
        rows = [dict(each) for each in maps]
        names = {name for row in rows for name in row}
        for name in sorted(names.union(name for name, place in declared.items() if place == column)):
            yield name, [row.get(name) for row in rows], kind


def _either(first: Sequence[Any], second: Sequence[Any]) -> Any:
    both = (one if one is not None else other for one, other in zip(first, second, strict=True))
    return pa.chunked_array([pa.array([None if each is None else float(each) for each in both], pa.float64())])
