"""Shape of an exchange's answers, learnt from them: lower page limit, order, ends that they exclude. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import NamedTuple

from dexorder_common.model.time_range import TimeRange
from dexorder_ingestor.exchange.dialect import CallLimits

_AGREEING = 3
"""Answers in a row that show the same."""


class Shape(NamedTuple):
    """Differences of an exchange from its dialect.

    Attributes:
        page_limit: Candles that a call returns; 0 if as many as the dialect says.
        newest_first: A window that holds more is answered with its newest candles.
        excludes_since: The candle at the start of the window is left out.
        excludes_until: The candle at the end of the window is left out.
    """

    page_limit: int = 0
    newest_first: bool = False
    excludes_since: bool = False
    excludes_until: bool = False

    def __str__(self) -> str:
        texts = [f"{self.page_limit:,} candles a call"] if self.page_limit else []
        texts += ["newest candles first"] if self.newest_first else []
        texts += ["the start of a window is excluded"] if self.excludes_since else []
        texts += ["the end of a window is excluded"] if self.excludes_until else []
        return ", ".join(texts)

    def apply(self, limits: CallLimits) -> CallLimits:
        """Return the limits of a call to an exchange of this shape."""
        candles = limits.candles if self.page_limit < 3 else min(limits.candles, self.page_limit)
        return replace(limits, candles=candles, wide=limits.wide and not self.newest_first)


@dataclass(frozen=True, slots=True)
class Answered:
    """Open times in an answer about a window."""

    window: TimeRange
    opens: frozenset[int]


class AnswerShapes:
    """Learns the shape of an exchange's answers, each from the next one; forgets it with the first that differs."""

    def __init__(self, shape: Shape = Shape()) -> None:  # noqa: B008 - immutable
        self.adopt(shape)

    def adopt(self, shape: Shape) -> None:
        """Take the shape that another process learnt."""
        self._cuts: deque[tuple[int, bool]] = deque([(shape.page_limit, shape.newest_first)] * _AGREEING, _AGREEING)
        self._since: deque[bool] = deque([shape.excludes_since] * _AGREEING, _AGREEING)
        self._until: deque[bool] = deque([shape.excludes_until] * _AGREEING, _AGREEING)
        if not shape.page_limit:
            self._cuts.clear()

    @property
    def shape(self) -> Shape:
        """The shape that the last answers agree on."""
        is_cut = len(self._cuts) == _AGREEING and len(set(self._cuts)) == 1
        limit, newest = self._cuts[0] if is_cut else (0, False)
        return Shape(limit, newest, len(self._since) == _AGREEING and all(self._since), all(self._until))

    def note(self, answer: Answered, last: Answered | None, *, most: int, period_ns: int) -> None:
        """Note an answer and the last one to the same job.

        Args:
            most: Candles of a call by the dialect.
        """
        if self._cuts and len(answer.opens) > self._cuts[-1][0]:
            self._cuts.clear()
        if not last or not last.opens or not answer.opens:
            return
        if answer.window.start_ns == max(last.opens):
            self._since.append(answer.window.start_ns not in answer.opens)
        if len(last.opens) < most:
            shown = [t for t in answer.opens if last.window.start_ns <= t < last.window.end_ns]
            self._note_ends(last, shown, period_ns)

    def _note_ends(self, last: Answered, shown: Collection[int], period_ns: int) -> None:
        """Note which candles the next answer shows before the last one's first and after its last."""
        end_ns = last.window.end_ns - period_ns
        later = [t for t in shown if t > max(last.opens)]
        if end_ns in last.opens or end_ns in later:
            self._until.append(later == [end_ns])
        is_newest = any(last.window.start_ns < t < min(last.opens) for t in shown)
        if is_newest or (later and later != [end_ns]):
            self._cuts.append((len(last.opens), is_newest))
