"""Columns of protobuf messages: by ptars, which turns messages into Arrow in Rust, else by protobuf's own parser."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FileDescriptor

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
