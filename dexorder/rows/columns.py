"""Column of rows, as Python values, numpy arrays or Arrow data."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, Self, overload

from arro3.core import ChunkedArray, DataType, Field, RecordBatch, Scalar, Schema

if TYPE_CHECKING:
    import numpy
    import pandas

SHOWN_VALUES = 5
"""Values that the text of a column shows."""


class Column:
    """Immutable values of one type, with methods of a ``pyarrow.ChunkedArray``.

    >>> from dexorder import Client
    >>> with Client() as client:
    ...     rows = client.history("BTC/USDT.SIM", "1h", "2024-01-01", "2024-01-02T06:00")
    >>> times = rows["open_time"]
    >>> len(times), times.null_count, times[0].as_py().hour, max(times.to_pylist()).day
    (30, 0, 0, 2)
    >>> times[:2].to_numpy().tolist()
    [datetime.datetime(2024, 1, 1, 0, 0), datetime.datetime(2024, 1, 1, 1, 0)]
    """

    __slots__ = ("_values",)

    def __init__(self, values: Any) -> None:
        """Take an Arrow array, in one chunk or several, without a copy."""
        self._values = values if isinstance(values, ChunkedArray) else ChunkedArray.from_arrow(values)

    @property
    def type(self) -> DataType:
        """The Arrow type."""
        return self._values.type

    @property
    def null_count(self) -> int:
        """Number of values that are missing."""
        return len(self) if DataType.is_null(self.type) else self._values.null_count

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Scalar]:
        return iter(self._values)

    @overload
    def __getitem__(self, key: int) -> Scalar: ...
    @overload
    def __getitem__(self, key: slice) -> Self: ...
    def __getitem__(self, key: int | slice) -> Scalar | Self:
        """Return a value, with ``as_py()`` for the Python object, or the values of a slice."""
        if not isinstance(key, slice):
            return self._values[key]
        start, stop, step = key.indices(len(self))
        if step != 1:
            raise ValueError(f"step {step}: a column has slices with step 1 only; use to_pylist() or to_numpy()")
        return self.slice(start, max(stop - start, 0))

    def slice(self, offset: int = 0, length: int | None = None) -> Self:
        """Return at most ``length`` values from ``offset`` on, by default all, without a copy."""
        start = min(offset, len(self))
        rest = len(self) - start
        return type(self)(self._values.slice(start, rest if length is None else min(length, rest)))

    def cast(self, target_type: Any) -> Self:
        """Return the values as another Arrow type, of arro3 or pyarrow."""
        return type(self)(self._values.cast(target_type))

    def to_pylist(self) -> list[Any]:
        """Return the values of Python; None for one that is missing."""
        values: list[Any] = self._values.to_pylist()
        return values

    def to_numpy(self) -> numpy.ndarray[Any, Any]:
        """Return a numpy array: times as UTC, a missing number as NaN, types unknown to numpy as objects."""
        try:
            from dexorder.rows.numpy_pandas import array
        except ModuleNotFoundError:
            raise not_installed("to_numpy", "numpy") from None
        return array(self._values)

    def to_pandas(self) -> pandas.Series[Any]:
        """Return a pandas Series, as ``pyarrow.ChunkedArray.to_pandas`` makes it; it needs pandas alone."""
        try:
            from dexorder.rows.numpy_pandas import series

            return series(self)
        except ModuleNotFoundError:
            raise not_installed("to_pandas", "pandas") from None

    def equals(self, other: object) -> bool:
        """Return whether ``other``, a column or any Arrow array, has the same values and type, in any chunks.

        NaN equals NaN.
        """
        if not (hasattr(other, "__arrow_c_stream__") or hasattr(other, "__arrow_c_array__")):
            return False
        theirs = ChunkedArray.from_arrow(other)
        if self.type != theirs.type or len(self) != len(theirs):
            return False
        return not len(self) or bool(_unnamed(self._values) == _unnamed(theirs))

    def __eq__(self, other: object) -> bool:
        return self.equals(other)

    __hash__ = None  # type: ignore[assignment]  # like a list's

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> numpy.ndarray[Any, Any]:
        """Return the values for numpy, which copies them."""
        values = self.to_numpy()
        return values if dtype is None else values.astype(dtype)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export the values to another Arrow library."""
        return self._values.__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        """Export the type to another Arrow library."""
        return self._values.__arrow_c_schema__()

    def __repr__(self) -> str:
        shown = [*self[:SHOWN_VALUES].to_pylist(), *(["..."] if len(self) > SHOWN_VALUES else [])]
        return f"Column: {len(self):,} values: {', '.join(map(str, shown))}"


def int64_values(column: Column) -> list[int]:
    """Return the values, all of them present, as integers, several times faster than ``to_pylist``."""
    parts = [memoryview(chunk.buffer()).cast("q").tolist() for chunk in column.cast(DataType.int64())._values.chunks]
    return parts[0] if len(parts) == 1 else list(chain.from_iterable(parts))


def _unnamed(values: ChunkedArray) -> RecordBatch:
    """Return the values in one chunk under a common name."""
    return RecordBatch.from_arrays([values.combine_chunks()], schema=Schema([Field("", values.type)]))


def not_installed(method: str, module: str) -> ModuleNotFoundError:
    """Return the error of a method that needs a package which is not installed."""
    return ModuleNotFoundError(f"{method} needs {module}, which is not installed: pip install {module}", name=module)
