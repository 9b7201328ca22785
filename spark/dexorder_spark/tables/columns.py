"""Columns of a record and their checks. Messages become columns by ptars, in Rust, else by protobuf's own parser."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FileDescriptor

from dexorder_common.lake.arrow_types import MICROSECONDS
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.page import PageHeaders

try:
    import ptars
except ImportError:  # no wheel for this platform: nine times slower, same result
    HAS_PTARS = False
else:
    HAS_PTARS = True

ToColumns: TypeAlias = Callable[[Sequence[bytes]], pa.RecordBatch]


def columns_of(file: FileDescriptor, message: Descriptor, slowly: ToColumns) -> ToColumns:
    """Return a function that turns serialized messages into columns named like their fields.

    Args:
        slowly: Does the same with protobuf's parser, and raises InvalidRequest that says which message does not parse.
    """
    if not HAS_PTARS:
        return slowly
    handler: Any = ptars.HandlerPool([file]).get_for_message(message)

    def convert(encoded: Sequence[bytes]) -> pa.RecordBatch:
        try:
            batch: pa.RecordBatch = handler.list_to_record_batch(encoded)
            return batch
        except ValueError:
            pass  # the slow way says which message it is
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # of its Rust code; it is not an Exception
                raise
        return slowly(encoded)

    return convert


Column: TypeAlias = "pa.Array[Any]"
Bad: TypeAlias = npt.NDArray[np.bool_]


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
    refuse_first(what, (times_ns < first_ns) | (times_ns > last_ns), f"has a {name} outside [{first_ns}, {last_ns}]")


def check_without_period(headers: PageHeaders, what: str) -> None:
    """Raise InvalidRequest for a record that names a period and whose rows have none."""
    if headers.period_seconds:
        raise InvalidRequest(f"period_seconds {headers.period_seconds} of {what} is not 0")


def microseconds(times_ns: npt.NDArray[np.uint64]) -> Column:
    """Return checked times as a column of a table; 0 becomes null."""
    return pa.array((times_ns // 1_000).astype(np.int64), mask=times_ns == 0).view(MICROSECONDS)
