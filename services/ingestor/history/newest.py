"""Absence of the newest candles: it takes a later candle and a delay, as exchanges publish candles late. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from services.common.model.periods import next_open, open_times
from services.common.model.proof import ProofKind
from services.common.model.time_range import subtract
from services.common.model.times import SECOND_NS
from services.ingestor.history.paging import Page

QUIET_AFTER_SECONDS = 600
"""Age from which on a candle may be absent although no later one exists: the market may be quiet, or no longer traded.
Such an absence is provisional."""
REASON = "not settled yet: the exchange may still publish candles there"


def settled_end_ns(page: Page, period_seconds: int, *, newest_ns: int, now_ns: int, delay_seconds: float) -> int:
    """Return the time up to which a page's absent candles count as absent.

    Args:
        newest_ns: Open time of the newest candle that the exchange is known to have.
        now_ns: The time by which candles are closed.
        delay_seconds: Age from which on the exchange has published a candle, once it has a later one.
    """
    # Where ids of trades prove an absence, it is one from the first moment on.
    for part in subtract(page.empty, [proof.span for proof in page.proofs if proof.kind is ProofKind.TRADE_IDS]):
        if _is_settled(part.end_ns, newest_ns, now_ns, delay_seconds):
            continue
        for open_ns in open_times(part, period_seconds):
            if not _is_settled(next_open(open_ns, period_seconds), newest_ns, now_ns, delay_seconds):
                return open_ns
    return page.span.end_ns


def newest_open_ns(pages: Sequence[Page]) -> int:
    """Return the open time of the last candle of pages, or 0."""
    return max((page.candles[-1].open_ns for page in pages if page.candles), default=0)


def _is_settled(end_ns: int, newest_ns: int, now_ns: int, delay_seconds: float) -> bool:
    age_ns = now_ns - end_ns
    return age_ns >= (delay_seconds if end_ns <= newest_ns else max(delay_seconds, QUIET_AFTER_SECONDS)) * SECOND_NS
