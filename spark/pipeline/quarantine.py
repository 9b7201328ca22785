"""Search for the records that fail every batch in which they are, so that one of them cannot stop the pipeline.

The decoder refuses whatever it can; this is the last resort, for a record that ends the worker itself. Of a batch that
failed several times, ever smaller parts are processed, each committed at once, until single records are left that fail
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spark.pipeline.reporter import Stopped
from spark.source.offsets import OffsetRange, share

Attempt = Callable[[Sequence[OffsetRange]], None]
"""Processes the records of some ranges, or raises."""


def isolate(
    ranges: Sequence[OffsetRange], attempt: Attempt, check: Callable[[], None], skip: Callable[[OffsetRange, str], None]
) -> int:
    """Process the ranges, in order, and pass each record that fails alone to ``skip``; return the number of these.

    Args:
        check: Raises unless a record that is known to be good can be processed. It is called before a record is
            skipped, so that a full disk or a lost catalog is not taken for the record's fault.
        skip: Receives the record's range, and the error.
    """
    try:
        attempt(ranges)
    except Stopped:
        raise
    except Exception as error:
        halves = share(ranges, 2)
        if len(halves) > 1:
            return sum(isolate(half, attempt, check, skip) for half in halves)
        check()
        skip(halves[0][0], f"{type(error).__name__}: {error}")
        return 1
    return 0
