"""Checks of subscriptions. Pure."""

from __future__ import annotations

from collections.abc import Container

from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.periods import check_period
from dexorder_common.model.realtime import Subscription
from dexorder_common.model.times import MAX_TIME_NS
from dexorder_relay.state.request import check_id, check_ticker


def check(subscription: Subscription, venues: Container[str], *, wall_ns: int) -> None:
    """Raise InvalidRequest, with the field and its value, for a subscription that cannot be served."""
    check_id("subscription_id", subscription.subscription_id)
    if subscription.client_id:
        check_id("client_id", subscription.client_id)
    check_ticker(subscription.ticker, venues)
    if not subscription.params:
        raise InvalidRequest("params ask for nothing; set include_ticks, or include_ohlc with ohlc_period_seconds")
    for period in subscription.params.periods:
        check_period(period)
    since_ns = subscription.since_ns
    if since_ns is not None and not 0 < since_ns <= min(wall_ns, MAX_TIME_NS):
        raise InvalidRequest(f"since {since_ns} is not between 1 and now, {wall_ns} nanoseconds")
