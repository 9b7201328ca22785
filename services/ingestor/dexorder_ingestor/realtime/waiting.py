"""Why a realtime job does not settle data, and when that is reported. Pure.

reason                the job waits for
LIVE_ONLY             - (ccxt can't query the trades of this exchange)
OVERLOADED            the processor: messages were dropped, so REST has to show their trades
REST_BEHIND           REST, which has not shown a trade that the socket has sent
REST_LACKS            REST, which has left out a trade, or numbers
REST_REFUSES          an answer: the exchange refuses the query, or does not answer
BANNED                the end of a ban
OTHER_VALUES          answers with the values that are known
IDS_BEGAN_AGAIN       the place where the exchange's ids start again
UNKNOWN_MARKET        a market that the exchange no longer has
ONE_SOURCE            a second source: the socket is dead, or REST repeats itself
NOTHING_KNOWN         something that no rule has foreseen

The reasons of a feed come from its state (`waits`), the reason of a failed query from its error. They count after
``SILENT_NS`` without settled data. OVERLOADED counts at once, even while data is settled: far less than the exchange
sends.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import ccxt.async_support as ccxt

from dexorder_common.model.realtime import wait_text
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.answers import BadAnswer
from dexorder_ingestor.exchange.failures import ExchangeFailure

SILENT_NS = 60 * SECOND_NS
"""Time without progress after which a job says why."""
_START_NS = 15 * SECOND_NS
"""Time that each dispatch has to settle something."""
_OVERLOAD_NS = 60 * SECOND_NS
"""Time for which dropped messages are told."""
_SAME_NS = 10 * SECOND_NS
"""Shortest time between two texts of one reason, which the relay stores and sends to clients."""


class WaitReason(StrEnum):
    """Reason why a job does not settle data; a label of a metric."""

    LIVE_ONLY = "live_only"
    OVERLOADED = "overloaded"
    REST_BEHIND = "rest_behind"
    REST_LACKS = "rest_lacks"
    REST_REFUSES = "rest_refuses"
    BANNED = "banned"
    OTHER_VALUES = "other_values"
    IDS_BEGAN_AGAIN = "ids_began_again"
    UNKNOWN_MARKET = "unknown_market"
    ONE_SOURCE = "one_source"
    NOTHING_KNOWN = "nothing_known"


class Wait(NamedTuple):
    """A reason, and the text that people read."""

    reason: WaitReason
    text: str


_BAD_ANSWERS = {"other_symbol": WaitReason.OTHER_VALUES, "hole": WaitReason.REST_LACKS}


class Progress:
    """Progress of one job. ``now_ns`` is of the monotonic clock."""

    def __init__(self, settled_ns: int, *, silent_ns: int = 0, now_ns: int) -> None:
        """Continue after the data that earlier dispatches have settled; repeated work does not count as progress.

        Args:
            silent_ns: How long ago that was: as long there may have been no progress.
        """
        self._settled_ns = settled_ns
        self._since_ns = now_ns - max(0, min(silent_ns, SILENT_NS - _START_NS))
        self._failure: Wait | None = None
        self._told: Wait | None = None
        self._told_ns = 0
        self._dropped = 0
        self._dropped_ns: int | None = None

    def dropped(self, messages: int, *, now_ns: int) -> None:
        """Note that messages of the socket found no room."""
        if not self._is_overloaded(now_ns):
            self._dropped = 0
        self._dropped, self._dropped_ns = self._dropped + messages, now_ns

    def failed(self, failure: Wait) -> None:
        """Note that the last query has failed."""
        self._failure = failure

    def answered(self) -> None:
        """Note that the last query was answered."""
        self._failure = None

    def wait(self, settled_ns: int, feed: Wait | None, *, ban: Wait | None = None, now_ns: int) -> Wait | None:
        """Return why no data was settled for long, or that messages were dropped; None otherwise.

        Args:
            feed: Reason why the feed waits.
            ban: The exchange refuses all calls now.
        """
        if settled_ns > self._settled_ns:
            self._settled_ns, self._since_ns = settled_ns, now_ns
        is_live_only = feed is not None and feed.reason is WaitReason.LIVE_ONLY
        overload = self._overload(now_ns)
        if now_ns < self._since_ns + SILENT_NS and not is_live_only and not overload:
            self._told = None
            return None
        found = (
            ban
            or overload
            or self._failure
            or feed
            or Wait(WaitReason.NOTHING_KNOWN, "no trade is settled; the log may say why")
        )
        is_same = self._told is not None and self._told.reason is found.reason
        if not is_same or now_ns >= self._told_ns + _SAME_NS:
            self._told, self._told_ns = found._replace(text=wait_text(found.text)), now_ns
        return self._told

    def _is_overloaded(self, now_ns: int) -> bool:
        return self._dropped_ns is not None and now_ns < self._dropped_ns + _OVERLOAD_NS

    def _overload(self, now_ns: int) -> Wait | None:
        if not self._is_overloaded(now_ns):
            return None
        text = (
            f"the ingestor is overloaded: {self._dropped:,} messages of the socket were dropped; REST is asked instead"
        )
        return Wait(WaitReason.OVERLOADED, text)


def why_failed(error: ExchangeFailure) -> Wait:
    """Return the reason of a query that has failed for good."""
    cause = error.__cause__
    reason = WaitReason.REST_REFUSES
    if isinstance(cause, BadAnswer):
        reason = _BAD_ANSWERS.get(cause.kind, reason)
    elif isinstance(cause, ccxt.BadSymbol) or cause is None:  # without a call: the exchange does not list it any more
        reason = WaitReason.UNKNOWN_MARKET
    return Wait(reason, str(error))
