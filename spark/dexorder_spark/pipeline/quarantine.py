"""Search for the records that fail every batch in which they are, so that one of them cannot stop the pipeline.

The decoder refuses all that it can; this is the last resort, for a record that ends the worker itself. Of a batch that
failed several times, ever smaller parts are processed, each committed at once, until single records are left that fail
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from dexorder_common.model.errors import Unavailable
from dexorder_spark.records.relay_client import Stopped
from dexorder_spark.source.offsets import OffsetRange, share

log = structlog.get_logger(__name__)
_MAX_LOGGED = 300

Attempt = Callable[[Sequence[OffsetRange]], None]
"""Processes the records of some ranges, or raises."""


def isolate(
    ranges: Sequence[OffsetRange], attempt: Attempt, check: Callable[[], None], skip: Callable[[OffsetRange, str], None]
) -> int:
    """Process the ranges, in order, and pass each record that fails alone to ``skip``; return the number of these.

    A record is at fault only if it fails a second time, after a check that everything else works, and if everything
    else still works then: a source, a disk or a catalog that is lost for a minute fails any record.

    Args:
        check: Raises unless the source answers and a record that is known to be good can be processed.
        skip: Receives the record's range, and the error.

    Raises:
        Unavailable: A part that is needed cannot be reached, whichever record was processed.
    """
    try:
        attempt(ranges)
        return 0
    except (Stopped, Unavailable):
        raise
    except Exception as error:
        log.info("a part of the batch failed", ranges=[str(each) for each in ranges], error=repr(error)[:_MAX_LOGGED])
    halves = share(ranges, 2)
    if len(halves) > 1:
        return sum(isolate(half, attempt, check, skip) for half in halves)
    check()
    try:
        attempt(halves[0])
        return 0
    except (Stopped, Unavailable):
        raise
    except Exception as error:
        check()
        skip(halves[0][0], f"{type(error).__name__}: {error}")
        return 1
