"""Types of the columns of Iceberg tables in Arrow and in Spark's DDL."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DoubleType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

MICROSECONDS = pa.timestamp("us", tz="UTC")
"""Arrow type of every time in the tables."""
_ARROW_TYPES: dict[type[IcebergType], pa.DataType] = {
    StringType: pa.string(),
    BinaryType: pa.binary(),
    BooleanType: pa.bool_(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    DoubleType: pa.float64(),
    TimestamptzType: MICROSECONDS,
}
_DDL_TYPES = {
    pa.string(): "string",
    pa.binary(): "binary",
    pa.bool_(): "boolean",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float64(): "double",
    MICROSECONDS: "timestamp",
}


def spark_ddl(columns: pa.Schema) -> str:
    """Return an Arrow schema as Spark DDL; nullability is not expressed."""
    return ", ".join(f"`{each.name}` {_ddl_type(each.type)}" for each in columns)


def _ddl_type(kind: pa.DataType) -> str:
    if isinstance(kind, pa.StructType):
        return f"struct<{', '.join(f'`{each.name}`: {_ddl_type(each.type)}' for each in kind)}>"
    if isinstance(kind, pa.MapType):
        return f"map<{_ddl_type(kind.key_type)}, {_ddl_type(kind.item_type)}>"
    if isinstance(kind, pa.ListType):
        return f"array<{_ddl_type(kind.value_type)}>"
    return _DDL_TYPES[kind]


def arrow_field(column: NestedField) -> pa.Field[Any]:
    """Return a column of an Iceberg table as a field of Arrow."""
    return pa.field(column.name, _arrow_type(column.field_type), not column.required)


def _arrow_type(kind: IcebergType) -> pa.DataType:
    if isinstance(kind, StructType):
        return pa.struct([arrow_field(each) for each in kind.fields])
    if isinstance(kind, ListType):
        return pa.list_(arrow_field(kind.element_field))
    if isinstance(kind, MapType):
        return pa.map_(_arrow_type(kind.key_type), arrow_field(kind.value_field))  # type: ignore[call-overload, no-any-return]
    return _ARROW_TYPES[type(kind)]


def with_integer_times(column: pa.Field[Any]) -> pa.Field[Any]:
    """Return a field with its times as integers, in microseconds."""
    return pa.field(column.name, _integer_type(column.type))


def _integer_type(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.StructType):
        return pa.struct([with_integer_times(each) for each in kind])
    if isinstance(kind, pa.ListType):
        return pa.list_(with_integer_times(kind.value_field))
    return pa.int64() if pa.types.is_timestamp(kind) else kind
