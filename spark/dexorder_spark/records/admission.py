"""Rules that decide which records of a batch count: only records of dispatches that the relay has issued. Pure.

A producer can write any page to the topic. The id of a dispatch cannot be guessed, and the relay knows for which range
of which series it issued each one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from dexorder_common.model.history import IssuedDispatch
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS, iso

if TYPE_CHECKING:
    pass

MAX_AHEAD_NS = 120 * SECOND_NS
"""A page may end this much after the driver's time, as clocks differ."""
Place: TypeAlias = tuple[int, ...]
"""Partition and offset of a record; of one that is joined with others, also its number among them."""


@dataclass(frozen=True)
class RecordRefusal:
    """Reason why a well-formed record does not count.

    Attributes:
        is_issued: Whether the relay knows the dispatch, so that the refusal is reported to it.
    """

    reason: str
    is_issued: bool


def refusal(
    dispatch_id: str,
    series: Series,
    span: TimeRange,
    issued: Mapping[str, IssuedDispatch],
    *,
    is_page: bool,
    now_ns: int,
) -> RecordRefusal | None:
    """Return why a page or a final does not count; None if it does.

    Args:
        issued: The relay's knowledge of the batch's dispatches, by id.
        now_ns: The driver's time.
    """
    dispatch = issued.get(dispatch_id)
    if dispatch is None:
        return RecordRefusal(f"job_id {dispatch_id!r} was not issued by the relay, or too long ago", is_issued=False)
    if not dispatch.covers(series):
        return RecordRefusal(
            f"series {series} is not {dispatch.series}, for which job_id {dispatch_id!r} was issued", True
        )
    if not dispatch.span.contains(span):
        return RecordRefusal(
            f"range {span} is outside {dispatch.span}, for which job_id {dispatch_id!r} was issued", True
        )
    if is_page and span.end_ns > now_ns + MAX_AHEAD_NS:
        return RecordRefusal(f"range {span} ends in the future; it is {iso(now_ns)} now", True)
    return None
