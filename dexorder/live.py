"""Live market data and realtime subscriptions as a client sees them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from services.common.model.periods import PERIODS
from services.common.model.times import iso


class LiveStatus(StrEnum):
    """State of the one job that fetches a market's live data."""

    WAITING = "WAITING"
    """No ingestor has it, or the market has no subscription."""
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"


@dataclass(frozen=True, slots=True)
class LiveTrade:
    """A public trade.

    Attributes:
        trade_id: The exchange's id; unique within the ticker.
        side: The taker's: ``buy``, ``sell``, or empty if the exchange does not say.
        received_ns: Time at which the ingestor received it, by its own clock.
    """

    ticker: str
    trade_id: str
    time_ns: int
    price: float
    amount: float
    side: str
    received_ns: int

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
        }


@dataclass(frozen=True, slots=True)
class LiveCandle:
    """A candle, closed or as it is so far.

    Attributes:
        closed: Its period is over and its trades are complete, as far as the ingestor knows.
        amends: It was sent closed before, and has changed because a trade came late.
        received_ns: Time at which the ingestor received its newest trade; 0 without one.
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
        }


@dataclass(frozen=True, slots=True)
class Missed:
    """Live data that was not sent to this client, as it read too slowly. The tables have what is complete.

    Attributes:
        period_seconds: Period of the candles; 0 for trades.
        count: Number of trades, or of states of candles.
        first_ns: Time of the first trade, or open time of the first candle; ``last_ns`` that of the last.
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
            "of": PERIODS.get(self.period_seconds, str(self.period_seconds)) if self.period_seconds else "trades",
            "count": self.count,
            "first": iso(self.first_ns),
            "last": iso(self.last_ns),
        }


@dataclass(frozen=True, slots=True)
class LiveUpdate:
    """Events since the last update, in this order: data that was not sent, states, trades, candles."""

    missed: tuple[Missed, ...] = ()
    statuses: tuple[tuple[str, LiveStatus], ...] = ()
    trades: tuple[LiveTrade, ...] = ()
    candles: tuple[LiveCandle, ...] = ()

    def as_json(self) -> list[dict[str, Any]]:
        """Return one value for each line of ``--json``."""
        statuses = [{"kind": "status", "ticker": ticker, "status": str(status)} for ticker, status in self.statuses]
        return [
            *(each.as_json() for each in self.missed),
            *statuses,
            *(each.as_json() for each in self.trades),
            *(each.as_json() for each in self.candles),
        ]


@dataclass(frozen=True, slots=True)
class Subscription:
    """A realtime subscription that was started and not stopped."""

    subscription_id: str
    ticker: str
    trades: bool
    periods: tuple[int, ...]
    since_ns: int | None
    client_id: str
    started_ns: int
    history_request_ids: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the subscription as JSON."""
        return {
            "subscription_id": self.subscription_id,
            "ticker": self.ticker,
            "trades": self.trades,
            "periods": [PERIODS.get(each, str(each)) for each in self.periods],
            "since": None if self.since_ns is None else iso(self.since_ns),
            "client_id": self.client_id,
            "started": iso(self.started_ns),
            "history_request_ids": list(self.history_request_ids),
        }


@dataclass(frozen=True, slots=True)
class LiveSeries:
    """Progress of the trades (``period_seconds`` 0) or candles of a job.

    Attributes:
        settled_until_ns: Kafka has everything before this time that the exchange had; 0 if nothing was reported.
        count: Trades or candles since the relay's start.
        lag_ns: Time between ``settled_until_ns`` and Kafka's acknowledgement, at the last report.
    """

    period_seconds: int
    settled_until_ns: int
    count: int
    reported_ns: int
    lag_ns: int

    @property
    def name(self) -> str:
        """``trades``, or the period."""
        return PERIODS.get(self.period_seconds, str(self.period_seconds)) if self.period_seconds else "trades"


@dataclass(frozen=True, slots=True)
class LiveJob:
    """The one job of a market, which serves all its subscriptions."""

    ticker: str
    status: LiveStatus
    ingestor: str
    dispatched_ns: int
    restarts: int
    last_error: str
    next_attempt_ns: int
    series: tuple[LiveSeries, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the job as JSON."""
        return {
            "ticker": self.ticker,
            "status": str(self.status),
            "ingestor": self.ingestor or None,
            "dispatched": iso(self.dispatched_ns) if self.dispatched_ns else None,
            "restarts": self.restarts,
            "last_error": self.last_error or None,
            "next_attempt": iso(self.next_attempt_ns) if self.next_attempt_ns else None,
            "series": [
                {
                    "name": each.name,
                    "settled_until": iso(each.settled_until_ns) if each.settled_until_ns else None,
                    "count": each.count,
                    "reported": iso(each.reported_ns) if each.reported_ns else None,
                    "lag_ms": each.lag_ns // 1_000_000,
                }
                for each in self.series
            ],
        }


@dataclass(frozen=True, slots=True)
class Realtime:
    """All subscriptions that match a question, and the jobs that serve them."""

    subscriptions: tuple[Subscription, ...]
    jobs: tuple[LiveJob, ...]
