"""Where reading a partition begins. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from services.gateway.kafkapixy.sparse_acks import Range, committed_ranges

Commit = tuple[int, str]
"""Offset and metadata."""


@dataclass(frozen=True, slots=True)
class StartPosition:
    """Where reading a partition begins.

    Attributes:
        acked: Ranges above ``offset`` that are acked already.
        committed: Whether this is exactly what is committed.
        remark: What was wrong with the commit; empty when nothing was.
    """

    offset: int
    acked: tuple[Range, ...] = ()
    committed: bool = False
    remark: str = ""


def start_position(offset: int, metadata: str, *, low: int, high: int, earliest: bool) -> StartPosition:
    """Where to begin, given a partition's commit and its log ``[low, high)``.

    Args:
        offset: Committed offset; negative when the group has none.
        earliest: Where a group without a commit begins: at ``low`` instead of ``high``.
    """
    if offset < 0:
        return StartPosition(low if earliest else high)
    if offset > high:
        # The topic was made anew: none of its records was ever delivered.
        return StartPosition(low, remark=f"committed {offset} is beyond the log's end {high}; starting at {low}")
    try:
        acked = tuple(committed_ranges(offset, metadata, end=high))
    except ValueError as error:
        return StartPosition(max(offset, low), remark=f"metadata {metadata!r} is not used: {error}")
    if offset < low:
        kept = tuple((max(start, low), end) for start, end in acked if end > low)
        return StartPosition(low, kept, remark=f"committed {offset} is before the log's beginning; starting at {low}")
    return StartPosition(offset, acked, committed=True)
