"""Live market data and realtime subscriptions as a client sees them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dexorder_common.model.datasets import realtime_dataset
from dexorder_common.model.periods import PERIODS
from dexorder_common.model.realtime import (
    ProvisionalSpan,
    RealtimeJobRecord,
    RealtimeState,
    SeriesProgress,
    StartedSubscription,
)
from dexorder_common.model.times import iso


@dataclass(frozen=True, slots=True)
class LiveTrade:
    """A public trade.

    Attributes:
        trade_id: The exchange's id; unique within the ticker.
        side: The taker's: ``buy``, ``sell``, or empty if the exchange does not say.
        received_ns: Time at which the ingestor received it, by its own clock.
        refilled: A query released it, after a start in the past, a cut or a gap, so it may be old.
    """

    ticker: str
    trade_id: str
    time_ns: int
    price: float
    amount: float
    side: str
    received_ns: int
    refilled: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the fields of one line of ``--json``."""
        return {
            "kind": "trade",
            "ticker": self.ticker,
            "trade_id": self.trade_id,
            "time": iso(self.time_ns),
            "time_ns": self.time_ns,
            "price": self.price,
            "amount": self.amount,
            "side": self.side or None,
            "received_ns": self.received_ns,
            "refilled": self.refilled,
        }


@dataclass(frozen=True, slots=True)
class LiveCandle:
    """A candle, closed or as it is so far.

    Attributes:
        closed: Its period is over and its trades are complete, as far as the ingestor knows.
        amends: It was sent closed before, and has changed because a trade came late.
        received_ns: Time at which the ingestor received its newest trade; 0 without one.
        provisional: For a part of its time, only one source says that all trades are known.
    """

    ticker: str
    period_seconds: int
    open_ns: int
    open: float
    high: float
    low: float
    close: float
    volume: float
    quote_volume: float | None
    trade_count: int | None
    closed: bool
    amends: bool
    received_ns: int
    provisional: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the fields of one line of ``--json``."""
        return {
            "kind": "candle",
            "ticker": self.ticker,
            "period": PERIODS.get(self.period_seconds, str(self.period_seconds)),
            "open_time": iso(self.open_ns),
            "open_ns": self.open_ns,
            "open": self.open,
            "high": self.high,
            "low": self.low,
            "close": self.close,
            "volume": self.volume,
            "quote_volume": self.quote_volume,
            "trade_count": self.trade_count,
            "closed": self.closed,
            "amends": self.amends,
            "provisional": self.provisional,
        }


@dataclass(frozen=True, slots=True)
class MissedData:
    """Live data that was not sent to this client because it read too slowly. The tables have the complete data.

    Attributes:
        period_seconds: Period of the candles; 0 for trades.
        count: Number of trades, or of states of candles.
        first_ns: Time of the first trade, or open time of the first candle; ``last_ns`` of the last.
    """

    ticker: str
    period_seconds: int
    count: int
    first_ns: int
    last_ns: int

    def as_json(self) -> dict[str, Any]:
        """Return the fields of one line of ``--json``."""
        return {
            "kind": "missed",
            "ticker": self.ticker,
            "of": series_name(self.period_seconds),
            "count": self.count,
            "first": iso(self.first_ns),
            "last": iso(self.last_ns),
        }


@dataclass(frozen=True, slots=True)
class LiveUpdate:
    """Events since the last update, in this order: data that was not sent, states, trades, candles.

    Attributes:
        waiting: By ticker of a state that has come, why its running job does not settle rows; empty if it does.
        provisional: By ticker of a state that has come, the spans of its trades that only one source calls complete.
    """

    missed: tuple[MissedData, ...] = ()
    statuses: tuple[tuple[str, RealtimeState], ...] = ()
    trades: tuple[LiveTrade, ...] = ()
    candles: tuple[LiveCandle, ...] = ()
    waiting: Mapping[str, str] = field(default_factory=dict)
    provisional: Mapping[str, tuple[ProvisionalSpan, ...]] = field(default_factory=dict)

    def as_json(self) -> list[dict[str, Any]]:
        """Return one value for each line of ``--json``."""
        statuses = [
            {
                "kind": "status",
                "ticker": ticker,
                "status": status.name,
                "waiting": self.waiting.get(ticker) or None,
                "provisional": [_provisional_json(each) for each in self.provisional.get(ticker, ())],
            }
            for ticker, status in self.statuses
        ]
        return [
            *(each.as_json() for each in self.missed),
            *statuses,
            *(each.as_json() for each in self.trades),
            *(each.as_json() for each in self.candles),
        ]


@dataclass(frozen=True, slots=True)
class Realtime:
    """All subscriptions that match a question, and the jobs that serve them."""

    subscriptions: tuple[StartedSubscription, ...]
    jobs: tuple[RealtimeJobRecord, ...]

    def as_json(self) -> dict[str, Any]:
        """Return subscriptions and jobs as JSON."""
        return {
            "subscriptions": [_subscription_json(each) for each in self.subscriptions],
            "jobs": [_job_json(each) for each in self.jobs],
        }


def series_name(period_seconds: int) -> str:
    """Return ``trades``, or the period."""
    dataset = realtime_dataset(period_seconds)
    if not dataset.has_periods:
        return dataset.name
    return PERIODS.get(period_seconds, str(period_seconds))


def iso_or_none(time_ns: int | None) -> str | None:
    """Return a time as text, or None where it is unknown: None or 0."""
    return iso(time_ns) if time_ns else None


def _subscription_json(started: StartedSubscription) -> dict[str, Any]:
    subscription = started.subscription
    return {
        "subscription_id": subscription.subscription_id,
        "ticker": subscription.ticker,
        "trades": subscription.params.include_ticks,
        "periods": [series_name(each) for each in subscription.params.periods],
        "since": None if subscription.since_ns is None else iso(subscription.since_ns),
        "client_id": subscription.client_id,
        "started": iso(started.started_ns),
        "history_request_ids": list(started.history_request_ids),
    }


def _job_json(job: RealtimeJobRecord) -> dict[str, Any]:
    return {
        "ticker": job.ticker,
        "status": job.state.name,
        "ingestor": job.ingestor or None,
        "dispatched": iso_or_none(job.dispatched_ns),
        "restarts": job.restarts,
        "last_error": job.error or None,
        "next_attempt": iso_or_none(job.next_attempt_ns),
        "provisional": [_provisional_json(each) for each in job.provisional],
        "unconfirmed_candles": job.unconfirmed,
        "corrected_trades": job.corrected,
        "late_trades": job.late,
        "series": [_series_json(each) for each in job.series],
    }


def _provisional_json(each: ProvisionalSpan) -> dict[str, Any]:
    return {
        "since": iso(each.span.start_ns),
        "until": iso(each.span.end_ns),
        "reason": each.reason.name.lower(),
        "first_id": each.first_id or None,
        "last_id": each.last_id or None,
        "queries": each.queries,
    }


def _series_json(series: SeriesProgress) -> dict[str, Any]:
    return {
        "name": series_name(series.period_seconds),
        "settled_until": iso_or_none(series.settled_ns),
        "count": series.count,
        "reported": iso_or_none(series.reported_ns),
        "lag_ms": series.lag_ns // 1_000_000,
    }
