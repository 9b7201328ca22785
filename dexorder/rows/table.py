"""Rows of a table: what every call that reads one returns.

They are Arrow data in the memory of arro3, which needs a fifth of pyarrow's space on disk. pyarrow, polars, DuckDB
and others with the Arrow PyCapsule interface take them without a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING, Any, Self, overload

from arro3.core import Array, DataType, RecordBatchReader, Schema, Table
from arro3.io import read_ipc_stream, write_ipc_stream

from dexorder.rows.columns import Column, int64_values, not_installed

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow
    from arro3.core.types import ArrowArrayExportable, ArrowStreamExportable

SHOWN_ROWS = 10
"""Rows that the text and the HTML of a longer result show: half of them its first, half its last."""


class Rows:
    """Immutable rows with named columns, and methods of a ``pyarrow.Table``.

    Examples:
        >>> from dexorder import Client
        >>> with Client() as client:
        ...     rows = client.history("BTC/USDT.SIM", "1h", "2024-01-01", "2024-01-02T06:00")
        >>> len(rows), rows.column_names[:4]
        (30, ['ticker', 'period_seconds', 'open_time', 'open'])
        >>> rows["open_time"][0].as_py()
        datetime.datetime(2024, 1, 1, 0, 0, tzinfo=zoneinfo.ZoneInfo(key='UTC'))
        >>> rows[:2].select(["ticker", "period_seconds"]).to_pylist()
        [{'ticker': 'BTC/USDT.SIM', 'period_seconds': 3600}, {'ticker': 'BTC/USDT.SIM', 'period_seconds': 3600}]
        >>> frame = rows.to_pandas()  # or rows.to_polars(), polars.DataFrame(rows), pyarrow.table(rows)
        >>> frame["open_time"].dtype, frame.shape == rows.shape
        (datetime64[us, UTC], True)
    """

    __slots__ = ("_table",)

    def __init__(self, data: ArrowStreamExportable | ArrowArrayExportable) -> None:
        """Take Arrow data without a copy: a ``pyarrow.Table``, a record batch, a polars DataFrame."""
        self._table = _table(data)

    @classmethod
    def concat(cls, parts: Iterable[Rows]) -> Self:
        """Return the rows of all parts, of which there is at least one, in their order, without a copy.

        Raises:
            ValueError: The parts have different columns.
        """
        tables = [part._table for part in parts]
        schema = tables[0].schema
        for table in tables:
            if table.schema.names != schema.names or table.schema.types != schema.types:
                raise ValueError(f"the parts have different columns: {schema} and {table.schema}")
        filled = (batch for table in tables for batch in table.to_batches() if batch.num_rows)
        batches = [batch.with_schema(schema) for batch in filled]  # their metadata may differ
        return cls(Table.from_batches(batches, schema=schema))

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self._table.num_rows

    @property
    def num_columns(self) -> int:
        """Number of columns."""
        return self._table.num_columns

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and of columns."""
        return self._table.shape

    @property
    def nbytes(self) -> int:
        """Size in memory."""
        return self._table.nbytes

    @property
    def column_names(self) -> list[str]:
        """Names of the columns, in order."""
        return self._table.column_names

    @property
    def columns(self) -> list[Column]:
        """The columns, in order."""
        return [Column(column) for column in self._table.columns]

    @property
    def schema(self) -> Schema:
        """Names and types of the columns."""
        return self._table.schema

    def column(self, name: str | int) -> Column:
        """Return a column by its name or index; KeyError for an unknown name."""
        return Column(self._table.column(name))

    @overload
    def __getitem__(self, key: str | int) -> Column: ...
    @overload
    def __getitem__(self, key: slice) -> Self: ...
    def __getitem__(self, key: str | int | slice) -> Column | Self:
        """Return a column by its name or index, or the rows of a slice."""
        if not isinstance(key, slice):
            return self.column(key)
        start, stop, step = key.indices(self.num_rows)
        return self.slice(start, max(stop - start, 0)) if step == 1 else self.take(range(start, stop, step))

    def __len__(self) -> int:
        return self.num_rows

    def slice(self, offset: int = 0, length: int | None = None) -> Self:
        """Return at most ``length`` rows from ``offset`` on, by default all, without a copy."""
        start = min(offset, self.num_rows)
        rest = self.num_rows - start
        return type(self)(self._table.slice(start, rest if length is None else min(length, rest)))

    def select(self, columns: Sequence[str] | Sequence[int]) -> Self:
        """Return some of the columns, in the given order."""
        return type(self)(self._table.select(columns))

    def take(self, indices: Iterable[int]) -> Self:
        """Return the rows with these indices, in the given order."""
        wanted, whole = list(indices), self._table.combine_chunks().to_batches()
        return type(self)(whole[0].take(Array(wanted, DataType.uint64()))) if wanted else self.slice(0, 0)

    def to_pylist(self) -> list[dict[str, Any]]:
        """Return each row as a dictionary."""
        names, columns = self.column_names, [column.to_pylist() for column in self.columns]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def to_pydict(self) -> dict[str, list[Any]]:
        """Return the values of each column."""
        return {name: column.to_pylist() for name, column in zip(self.column_names, self.columns, strict=True)}

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame, as ``pyarrow.Table.to_pandas`` makes it; it needs pandas alone."""
        try:
            from dexorder.rows.numpy_pandas import frame

            return frame(self.column_names, self.columns, self.num_rows)
        except ModuleNotFoundError:
            raise not_installed("to_pandas", "pandas") from None

    def to_polars(self) -> polars.DataFrame:
        """Return a polars DataFrame."""
        try:
            import polars
        except ModuleNotFoundError:
            raise not_installed("to_polars", "polars") from None
        return polars.DataFrame(self)

    def to_arrow(self) -> pyarrow.Table:
        """Return a ``pyarrow.Table`` of the same memory, which can also sort, filter, group and join."""
        try:
            import pyarrow
        except ModuleNotFoundError:
            raise not_installed("to_arrow", "pyarrow") from None
        return pyarrow.table(self)

    def equals(self, other: object) -> bool:
        """Return whether ``other``, rows or any Arrow table, has the same columns and values, in any chunks.

        Metadata does not count. NaN equals NaN.
        """
        if not hasattr(other, "__arrow_c_stream__"):
            return False
        theirs = type(self)(other)
        if self.column_names != theirs.column_names:
            return False
        return all(map(Column.equals, self.columns, theirs.columns))

    def __eq__(self, other: object) -> bool:
        return self.equals(other)

    __hash__ = None  # type: ignore[assignment]  # like a list's

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export the rows to another Arrow library."""
        return self._table.__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        """Export the schema to another Arrow library."""
        return self._table.schema.__arrow_c_schema__()

    def __reduce__(self) -> tuple[Any, ...]:
        stream = BytesIO()
        write_ipc_stream(self, stream)
        return _unpickled, (stream.getvalue(),)

    def __repr__(self) -> str:
        first, last = (_texts(part) for part in self._ends())
        gap = [["..."] * self.num_columns] if last else []
        lines = [self.column_names, *first, *gap, *last]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        shown = ("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
        return "\n".join([self._title(), *shown])

    def _repr_html_(self) -> str:
        """Return the first and the last rows as HTML, for a notebook."""
        first, last = (_texts(part) for part in self._ends())
        gap = [["…"] * self.num_columns] if last else []
        head = "".join(f"<th>{escape(name)}</th>" for name in self.column_names)
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>" for line in [*first, *gap, *last]
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{self._title()}</p>"

    def _title(self) -> str:
        return f"Rows: {self.num_rows:,} rows, {self.num_columns:,} columns"

    def _ends(self) -> tuple[Self, Self]:
        """Return the rows that are shown before and after the gap; without one the second are none."""
        if self.num_rows <= SHOWN_ROWS:
            return self, self.slice(self.num_rows)
        return self.slice(0, SHOWN_ROWS // 2), self.slice(self.num_rows - SHOWN_ROWS // 2)


def times_ns(rows: Rows, name: str) -> list[int]:
    """Return a column of times, all of them present, as nanoseconds since 1970."""
    return int64_values(rows.column(name).cast(DataType.timestamp("ns", tz="UTC")))


def _table(data: Any) -> Table:
    # What arro3 has made itself needs no export, which takes as long as reading it.
    if isinstance(data, RecordBatchReader):
        return Table.from_batches(list(data), schema=data.schema)
    return data if isinstance(data, Table) else Table.from_arrow(data)


def _texts(rows: Rows) -> list[list[str]]:
    return [["" if value is None else str(value) for value in row.values()] for row in rows.to_pylist()]


def _unpickled(data: bytes) -> Rows:
    return Rows(read_ipc_stream(data))
