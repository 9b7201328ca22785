"""Rows of tables as dataclasses and named tuples: one declaration converts both ways, and makes the SQL. Pure.

A field becomes the column of its name. A field of a type in ``FLAT`` becomes one column for each of its fields; a range
other than ``span`` prefixes them with its name. Enumerations are stored by value, datasets by name, and all other
values that SQLite does not have as JSON.
"""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from types import UnionType
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter

from dexorder_common.lake.coverage import Order
from dexorder_common.model.datasets import Dataset, dataset_named
from dexorder_common.model.instrument import Series
from dexorder_common.model.realtime import Subscription
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.triggers import Trigger

V = TypeVar("V")
Row: TypeAlias = Mapping[str, Any]
Statement: TypeAlias = tuple[str, tuple[Any, ...]]
FLAT = (TimeRange, Series, Order, Subscription, Trigger)


class _Codec(NamedTuple):
    """Conversion of one field to its columns and back."""

    columns: tuple[str, ...]
    dump: Callable[[Any], tuple[Any, ...]]
    load: Callable[[Row], Any]


class Columns(Generic[V]):
    """The columns that hold the fields of a value."""

    def __init__(self, kind: type[V], *names: str, prefix: str = "", renamed: Mapping[str, str] | None = None) -> None:
        """Take all fields of the type, or the named ones; ``renamed`` has columns with other names."""
        hints: dict[str, Any] = get_type_hints(kind)
        self._kind: Any = kind
        self._codecs = {
            name: _codec(f"{prefix}{(renamed or {}).get(name, name)}", hints[name]) for name in names or _fields(kind)
        }
        self.names = tuple(column for codec in self._codecs.values() for column in codec.columns)

    def values(self, value: V) -> dict[str, Any]:
        """Return the values by column."""
        found = (each for name, codec in self._codecs.items() for each in codec.dump(getattr(value, name)))
        return dict(zip(self.names, found, strict=True))

    def read(self, row: Row, **others: Any) -> V:
        """Return the value in a row; ``others`` are the fields that are not in it."""
        made: V = self._kind(**{name: codec.load(row) for name, codec in self._codecs.items()}, **others)
        return made


def _fields(kind: Any) -> tuple[str, ...]:
    return kind._fields if issubclass(kind, tuple) else tuple(each.name for each in dataclasses.fields(kind))


def _codec(column: str, hint: Any) -> _Codec:
    """Return the conversion of a field; None becomes NULL in every column."""
    options = [each for each in get_args(hint) if each is not type(None)] if get_origin(hint) is UnionType else [hint]
    kind: Any = options[0] if len(options) == 1 else hint
    if kind in FLAT:
        inner: Columns[Any] = Columns(kind, prefix=f"{column}_" if kind is TimeRange and column != "span" else "")
        columns, absent = inner.names, (None,) * len(inner.names)
        return _Codec(
            columns,
            lambda value: absent if value is None else tuple(inner.values(value).values()),
            lambda row: None if row[columns[0]] is None else inner.read(row),
        )
    dump, load = _scalar(kind)
    return _Codec(
        (column,),
        lambda value: (None if value is None else dump(value),),
        lambda row: None if row[column] is None else load(row[column]),
    )


def _scalar(kind: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    if kind in (int, float, str, bytes):
        return _same, _same
    if kind is bool:
        return int, bool
    if kind is Dataset:
        return str, dataset_named
    if isinstance(kind, type) and issubclass(kind, Enum):
        return lambda value: value.value, kind
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    return lambda value: adapter.dump_json(value).decode(), adapter.validate_json


def _same(value: Any) -> Any:
    return value


def insert(table: str, values: Row, *, conflict: str = "") -> Statement:
    """Return the INSERT of a row; ``conflict`` is OR REPLACE or OR IGNORE."""
    names, marks = ", ".join(f'"{name}"' for name in values), ", ".join("?" * len(values))
    return f"INSERT {conflict} INTO {table} ({names}) VALUES ({marks})", tuple(values.values())  # noqa: S608


def upsert(table: str, values: Row) -> Statement:
    """Return the INSERT of a row in place of the one with its key."""
    return insert(table, values, conflict="OR REPLACE")


def update(table: str, values: Row, **where: Any) -> Statement:
    """Return the UPDATE of the rows with these values."""
    changed, found = ", ".join(f'"{name}" = ?' for name in values), " AND ".join(f'"{name}" = ?' for name in where)
    return f"UPDATE {table} SET {changed} WHERE {found}", (*values.values(), *where.values())  # noqa: S608


def delete(table: str, **where: Any) -> Statement:
    """Return the DELETE of the rows with these values."""
    found = " AND ".join(f'"{name}" = ?' for name in where)
    return f"DELETE FROM {table} WHERE {found}", tuple(where.values())  # noqa: S608 - the store's own names


def select(connection: sqlite3.Connection, sql: str, *values: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a query by column."""
    cursor = connection.execute(sql, values)
    names = [name for name, *_ in cursor.description]
    return (dict(zip(names, row, strict=True)) for row in cursor)
