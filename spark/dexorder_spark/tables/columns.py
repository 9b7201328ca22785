"""Columns of a record and their checks. Messages become columns by ptars, in Rust, else by protobuf's own parser."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.message import DecodeError, Message

from dexorder_common.lake.arrow_types import MICROSECONDS
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.page import PageHeaders

try:
    import ptars
except ImportError:  # no wheel for this platform: nine times slower, same result
    HAS_PTARS = False
else:
    HAS_PTARS = True

Column: TypeAlias = "pa.Array[Any]"
Bad: TypeAlias = npt.NDArray[np.bool_]
Counts: TypeAlias = npt.NDArray[np.int32]


class MessageColumns:
    """Serialized messages of one type as columns named like their fields."""

    def __init__(self, message: type[Message], schema: pa.Schema, fault: str) -> None:
        """Take the columns to return.

        Args:
            fault: Text for a message that does not parse, with its ``{place}`` or ``{size}`` in bytes.
        """
        self._message = message
        self._schema = schema
        self._fault = fault
        descriptor = message.DESCRIPTOR
        self._handler: Any = ptars.HandlerPool([descriptor.file]).get_for_message(descriptor) if HAS_PTARS else None

    def __call__(self, encoded: Sequence[bytes]) -> pa.RecordBatch:
        """Return the columns; InvalidRequest if a message does not parse."""
        if self._handler is not None:
            try:
                batch: pa.RecordBatch = self._handler.list_to_record_batch(encoded)
                return batch
            except ValueError:
                pass  # the slow way says which message it is
            except BaseException as error:
                if type(error).__name__ != "PanicException":  # of its Rust code; it is not an Exception
                    raise
        return self.slowly(encoded)

    def slowly(self, encoded: Sequence[bytes]) -> pa.RecordBatch:
        """Do the same with protobuf's own parser."""
        rows = []
        for place, data in enumerate(encoded):
            try:
                message = self._message.FromString(data)
            except DecodeError as error:
                raise InvalidRequest(f"{self._fault.format(place=place, size=len(data))}: {error}") from error
            rows.append({each.name: _value(message, each) for each in self._schema})
        return pa.RecordBatch.from_pylist(rows, schema=self._schema)

    def rows(self, payloads: Sequence[bytes], what: str, max_rows: int) -> tuple[dict[str, Any], Counts]:
        """Return the columns of the only, repeated field of messages, and the number of rows of each message.

        Raises:
            InvalidRequest: A message does not parse, or has more than ``max_rows``; ``what`` are its rows.
        """
        lists: Any = self(payloads).column(0)
        rows = lists.flatten()
        counts: Counts = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        if (most := max(counts, default=0)) > max_rows:
            raise InvalidRequest(f"record has {most} {what}; at most {max_rows} are allowed")
        return {each.name: rows.field(each.name) for each in self._schema.field(0).type.value_type}, counts


def _value(message: Any, field: pa.Field[Any]) -> Any:
    """Return the value of a message's field; None for an optional one that it lacks."""
    value, kind = getattr(message, field.name), field.type
    if pa.types.is_list(kind):
        return [{each.name: _value(one, each) for each in kind.value_type} for one in value]
    is_optional = message.DESCRIPTOR.fields_by_name[field.name].has_presence
    return None if is_optional and not message.HasField(field.name) else value


def repeated(name: str, kinds: dict[str, pa.DataType]) -> pa.Schema:
    """Return the schema of a message with one repeated field, given the fields of its rows."""
    return pa.schema({name: pa.list_(pa.struct(list(kinds.items())))})


def refuse_first(what: str, bad: Bad | Sequence[bool], fault: str) -> None:
    """Raise InvalidRequest that names the first bad row by its position."""
    if any(bad) if isinstance(bad, Sequence) else bad.any():
        raise InvalidRequest(f"{what} {int(np.argmax(bad))} {fault}")


def check_texts(what: str, texts: Sequence[str], name: str, max_length: int) -> None:
    """Check that texts are printable, and have 1 to ``max_length`` characters and no blank at either end."""
    bad = [not (0 < len(each) <= max_length and each.isprintable() and each == each.strip()) for each in texts]
    refuse_first(what, bad, f"has a {name} that is not 1 to {max_length} printable characters")


def check_times(what: str, times_ns: npt.NDArray[np.uint64], name: str, first_ns: int, last_ns: int) -> None:
    """Check that times are in ``[first_ns, last_ns]``."""
    check_ends(what, times_ns, name, first_ns, np.full(1, last_ns, np.uint64))


def check_ends(
    what: str, times_ns: npt.NDArray[np.uint64], name: str, first_ns: int, last_ns: npt.NDArray[np.uint64]
) -> None:
    """Check that times are not before ``first_ns``, nor after their own ``last_ns``, or the one for all."""
    if (bad := (times_ns < first_ns) | (times_ns > last_ns)).any():
        last = last_ns[np.argmax(bad) if len(last_ns) > 1 else 0]
        refuse_first(what, bad, f"has a {name} outside [{first_ns}, {last}]")


def check_without_period(headers: PageHeaders, what: str) -> None:
    """Raise InvalidRequest for a record that names a period or empty ranges although its rows do not have them."""
    if headers.period_seconds:
        raise InvalidRequest(f"period_seconds {headers.period_seconds} of {what} is not 0")
    if headers.empty:
        raise InvalidRequest(f"{what} has verified-empty ranges, which only candles have")


def microseconds(times_ns: npt.NDArray[np.uint64]) -> Column:
    """Return checked times as a column of a table; 0 becomes null."""
    return pa.array((times_ns // 1_000).astype(np.int64), mask=times_ns == 0).view(MICROSECONDS)
