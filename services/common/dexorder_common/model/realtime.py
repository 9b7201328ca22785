"""Realtime subscriptions and dispatches, for relay and client alike. Pure.

``dexorder_common/rpc/realtime_messages.py`` converts these values to protobuf messages and back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple

from dexorder_common.model.instrument import Instrument, Series
from dexorder_common.model.page import Candle
from dexorder_common.model.periods import TRADES_PERIOD
from dexorder_common.model.time_range import TimeRange


@dataclass(frozen=True, slots=True)
class RealtimeParams:
    """Outputs of a realtime job.

    Attributes:
        include_ticks: Each trade.
        periods: Periods of candles, in seconds, ascending; none for no candles.
    """

    include_ticks: bool
    periods: tuple[int, ...] = ()

    @staticmethod
    def union(several: Iterable[RealtimeParams]) -> RealtimeParams:
        """Return parameters that ask for everything in any of them."""
        several = list(several)
        periods = {period for each in several for period in each.periods}
        return RealtimeParams(any(each.include_ticks for each in several), tuple(sorted(periods)))

    def __bool__(self) -> bool:
        return self.include_ticks or bool(self.periods)

    @property
    def series(self) -> tuple[int, ...]:
        """Periods of all series that are produced: 0 for trades first, then the periods of candles."""
        return (TRADES_PERIOD, *self.periods) if self.include_ticks else self.periods


@dataclass(frozen=True, slots=True)
class Subscription:
    """A client's subscription. Two are the same if all fields are equal.

    Attributes:
        since_ns: Start of the complete data; its acceptance if None.
        client_id: Its owner; may be empty.
    """

    subscription_id: str
    ticker: str
    params: RealtimeParams
    since_ns: int | None = None
    client_id: str = ""

    def serves(self, repeated: Subscription) -> bool:
        """Return whether this subscription satisfies a repeated call, in which ``-5m`` names a later time."""
        if self.since_ns is None or repeated.since_ns is None:
            return self == repeated
        return self == replace(repeated, since_ns=self.since_ns) and self.since_ns <= repeated.since_ns


@dataclass(frozen=True, slots=True)
class StartedSubscription:
    """A subscription that was accepted.

    Attributes:
        sequence: Position in the relay's list of subscriptions; 0 where it is not known.
        history_request_ids: The latest requests that fetch candles as history, where they are known.
    """

    subscription: Subscription
    started_ns: int
    sequence: int = 0
    history_request_ids: tuple[str, ...] = ()

    @property
    def begin_ns(self) -> int:
        """Time from which it is complete."""
        since_ns = self.subscription.since_ns
        return self.started_ns if since_ns is None else since_ns


MAX_WAIT_TEXT = 500


def wait_text(text: str) -> str:
    """Return a reason as one line for a terminal: without control characters, at most ``MAX_WAIT_TEXT`` characters."""
    line = " ".join("".join(each if each.isprintable() else " " for each in text[: 4 * MAX_WAIT_TEXT]).split())
    return line if len(line) <= MAX_WAIT_TEXT else f"{line[: MAX_WAIT_TEXT - 1]}…"


class RealtimeState(IntEnum):
    """State of a realtime job, with the numbers of the proto."""

    WAITING = 1
    RUNNING = 2
    STOPPING = 3


class ProvisionalReason(IntEnum):
    """Why a span of trades is provisional, with the numbers of the proto."""

    MISSING_IDS = 1
    IDS_BEGAN_AGAIN = 2
    ONE_SOURCE = 3
    NOT_JOINED = 4


class ProvisionalSpan(NamedTuple):
    """A span of trades that is settled although one source alone calls it complete.

    Attributes:
        first_id: The first id that no source has shown; empty if unknown. ``last_id`` is the last one.
        since_ns: Time since which it is provisional.
        queries: Number of times that the exchange was asked again without a new trade.
    """

    span: TimeRange
    reason: ProvisionalReason
    first_id: str = ""
    last_id: str = ""
    since_ns: int = 0
    queries: int = 0


class UncheckedCandles(NamedTuple):
    """Adjacent closed candles, joined into one, that are still to be compared with the exchange's own.

    Attributes:
        comparisons: Number of comparisons in which they were equal.
        candle: The joined candle; None without a trade.
    """

    period_seconds: int
    span: TimeRange
    comparisons: int
    candle: Candle | None


@dataclass(frozen=True, slots=True)
class Knowledge:
    """Knowledge of a realtime job that is not in its records.

    Attributes:
        provisional: By start.
        corrected: Trades of the current dispatch that the exchange has corrected after they were recorded.
        late: Trades of the current dispatch that came after their time was settled.
        waiting: Reason why the current dispatch does not settle data; empty if it does.
    """

    provisional: tuple[ProvisionalSpan, ...] = ()
    unchecked: tuple[UncheckedCandles, ...] = ()
    corrected: int = 0
    late: int = 0
    waiting: str = ""


@dataclass(frozen=True, slots=True)
class SeriesProgress:
    """Progress of one series of a realtime job; unknown times are 0.

    Attributes:
        settled_ns: Kafka has everything before.
        count: Trades or candles reported since the relay's start.
        lag_ns: From the end of the last reported span to Kafka's acknowledgement.
    """

    period_seconds: int
    settled_ns: int
    count: int
    reported_ns: int
    lag_ns: int


@dataclass(frozen=True, slots=True)
class RealtimeJobRecord:
    """The one job of an instrument, as clients see it.

    Attributes:
        ingestor: Name of the ingestor that has it, or the identity of its socket in hexadecimal.
        dispatched_ns: Time of the current dispatch; 0 without one.
        restarts: Dispatches after the first one.
        error: Reason why it does not settle data, or why the last dispatch ended early; may be empty.
        next_attempt_ns: Time before which it is not dispatched again; 0 if it does not wait for a time.
        unconfirmed: Number of closed candles that no comparison with the exchange's own has confirmed.
        corrected: See `Knowledge`; ``late`` too.
    """

    ticker: str
    params: RealtimeParams
    state: RealtimeState
    ingestor: str
    dispatched_ns: int
    restarts: int
    error: str
    next_attempt_ns: int
    series: tuple[SeriesProgress, ...]
    provisional: tuple[ProvisionalSpan, ...] = ()
    unconfirmed: int = 0
    corrected: int = 0
    late: int = 0


@dataclass(frozen=True, slots=True)
class RealtimeDispatch:
    """One attempt of a realtime job at one ingestor; without an end."""

    dispatch_id: str
    request_id: str
    ticker: str
    params: RealtimeParams
    client_id: str = ""

    @property
    def instrument(self) -> Instrument:
        """Instrument of the ticker."""
        return Instrument.parse(self.ticker)


@dataclass(frozen=True, slots=True)
class Stop:
    """Order to stop a dispatch."""

    dispatch_id: str


@dataclass(frozen=True, slots=True)
class Resumption:
    """Start of a realtime dispatch.

    Attributes:
        start_ns: Start of the wanted trades.
        last_trade_id: Id of the last trade settled before; empty if it is not known.
        candles: By period, the open time of the first candle that is wanted; may lie in the future.
        first_ns: By period, the open time of the first candle of all dispatches.
        provisional: Spans that are still to be queried.
        unchecked: Candles to compare.
        compared_ns: Time before which REST has shown the recorded values of all trades; None if it records none.
    """

    start_ns: int
    last_trade_id: str
    candles: dict[int, int]
    first_ns: Mapping[int, int] = field(default_factory=dict)
    provisional: tuple[ProvisionalSpan, ...] = ()
    unchecked: tuple[UncheckedCandles, ...] = ()
    compared_ns: int | None = None


@dataclass(frozen=True, slots=True)
class RealtimeReport:
    """A span of one series of a dispatch that Kafka has acknowledged.

    Attributes:
        count: Trades or candles.
        compared_ns: Time before which REST has shown the recorded values of all trades; 0 if that is not known.
    """

    dispatch_id: str
    series: Series
    span: TimeRange
    count: int = 0
    last_trade_id: str = ""
    lag_ns: int = 0
    compared_ns: int = 0


class RealtimeStatus(NamedTuple):
    """Knowledge of a dispatch that is not in its records.

    Attributes:
        number: The higher one of two is of the newer status; 0 if they are not numbered.
    """

    dispatch_id: str
    knowledge: Knowledge
    number: int = 0
