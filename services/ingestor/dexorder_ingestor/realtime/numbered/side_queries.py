"""Queries about joints and open gaps, which come after all that the feed needs to go on. Pure."""

from __future__ import annotations

from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.trades import TradeQuery, TradeSeries
from dexorder_ingestor.realtime.numbered.joint import Joint, Joints
from dexorder_ingestor.realtime.numbered.open_gaps import OpenGap, OpenGaps

RETRY_NS = SECOND_NS // 2
LONGEST_RETRY_NS = 30 * SECOND_NS


def pause_ns(times: int) -> int:
    """Return the time until the next query after so many in a row that brought nothing new."""
    return min(RETRY_NS << min(times, 6), LONGEST_RETRY_NS)


class SideQueries:
    """The query that is chosen, if any. ``now_ns`` is of the monotonic clock."""

    def __init__(self, *, now_ns: int) -> None:
        """Start without one."""
        self._chosen: OpenGap | Joint | None = None
        self._failures = 0
        """Queries that have brought nothing, one after the other."""
        self._from_ns = now_ns
        """Time before which there is no further one."""

    @property
    def is_chosen(self) -> bool:
        """Whether the next query is one of these, unless there is a more urgent one."""
        return self._chosen is not None

    def choose(self, joints: Joints, gaps: OpenGaps, exchange_ns: int, *, now_ns: int) -> bool:
        """Choose the query that is due, if one is; return whether there is one.

        A joint comes first, and every other time a gap, so that a joint that REST never shows holds up no gap.
        """
        if now_ns < self._from_ns:
            return False
        joint, gap = joints.due, gaps.due(exchange_ns)
        self._chosen = gap if joint is None or (gap is not None and self._failures % 2) else joint
        return self._chosen is not None

    def query(self, series: TradeSeries) -> TradeQuery | None:
        """Return the chosen query."""
        return self._chosen.query(series) if self._chosen is not None else None

    def take(self) -> OpenGap | Joint | None:
        """Return what an answer is about, if it is about one of these."""
        chosen, self._chosen = self._chosen, None
        return chosen

    def succeeded(self) -> None:
        """Note that the answer was of use."""
        self._failures = 0

    def failed(self, *, now_ns: int) -> None:
        """Note that the query has brought nothing: what it was about stays due, so the next one has to wait."""
        self._chosen, self._failures = None, self._failures + 1
        self._from_ns = now_ns + pause_ns(self._failures)
