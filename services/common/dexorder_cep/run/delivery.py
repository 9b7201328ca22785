"""Outcomes that the engine returns, and how a result becomes one: cooldown, size, identity, end. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, TypeVar

from dexorder_cep.compile.guards import Guard
from dexorder_cep.compile.plans import ResultColumn
from dexorder_cep.compile.trigger import CompiledTrigger, plain_value
from dexorder_cep.run.account import Account
from dexorder_cep.run.running import TRADE_ID_SLOT, TRADE_TIME_SLOT
from dexorder_cep.run.runs import RunResult
from dexorder_cep.run.stream import Stream
from dexorder_common.model.periods import TRADES_PERIOD
from dexorder_common.model.times import SECOND_NS, iso

ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True)
class Firing:
    """Event of a trigger.

    Attributes:
        event_id: Same for the same event, even when rows are fed again after a restart.
        trigger_id: Id that the client gave.
        registration_number: Number of the registration; a trigger that is deleted and registered again has another one.
        ticker: The market.
        time_ns: Event time at which the rows are known: the close of the last candle, the time of the last trade, or
            the watermark that ended a window or freed a match.
        columns: Columns of the rows.
        rows: Values: int, float, str, bool, None; points in time are ints of nanoseconds, DECIMAL is text.
        context: More facts as text (docs/cep.md lists the keys).
    """

    event_id: str
    trigger_id: str
    registration_number: int
    ticker: str
    time_ns: int
    columns: tuple[ResultColumn, ...]
    rows: tuple[tuple[Any, ...], ...]
    context: dict[str, str]


@dataclass(frozen=True, slots=True)
class Suspension:
    """End of a trigger that used more than it may, or that Flink would have failed on. The trigger is removed."""

    trigger_id: str
    registration_number: int
    ticker: str
    time_ns: int
    reason: str


@dataclass(frozen=True, slots=True)
class TriggerEnded:
    """End of a trigger by its own parameters: ``once`` or ``expired``. The trigger is removed."""

    trigger_id: str
    registration_number: int
    time_ns: int
    reason: str


Outcome: TypeAlias = Firing | Suspension | TriggerEnded


@dataclass(slots=True)
class Delivered:
    """Deliveries of a trigger on one ticker.

    Attributes:
        until_ns: End of the cooldown.
        suppressed: Results counted in it.
        open: Whether the last result was sent, so that its end is sent too.
    """

    until_ns: int = 0
    suppressed: int = 0
    open: bool = False


class Heard(NamedTuple):
    """Rows of a market that were settled at a registration.

    Attributes:
        until_ns: Time up to which all rows were settled.
        trade_ids: Settled trades of the next millisecond. Its other trades were not settled: the times of rows are cut
            to milliseconds, and a record can end between two trades of one.
    """

    until_ns: int
    trade_ids: frozenset[str] = frozenset()


@lru_cache(maxsize=1_024)
def _heard_on_one(ticker: str, heard: Heard) -> Mapping[str, Heard]:
    """Return a mapping that triggers share which were registered between the same two records."""
    return {ticker: heard}


_NONE: Mapping[str, Any] = MappingProxyType({})


def _none() -> Mapping[str, Any]:
    return _NONE


def with_entry(mapping: Mapping[str, ValueT], ticker: str, value: ValueT) -> Mapping[str, ValueT]:
    """Return a registration's mapping with an entry: the same one, unless it was empty."""
    if not isinstance(mapping, dict):
        return {ticker: value}
    mapping[ticker] = value
    return mapping


def kind_of(compiled: CompiledTrigger) -> tuple[CompiledTrigger, float | None]:
    """Return ``kind`` and ``level`` of a registration of a trigger."""
    return (compiled.first or compiled, compiled.number) if compiled.shape is not None else (compiled, None)


@dataclass(slots=True)
class Registration:
    """A registered trigger. There may be a million: they share empty mappings; ``with_entry`` adds to one.

    Attributes:
        trigger_id: Id that the client gave.
        number: Number of the registration.
        kind: The trigger; or the first alert of its shape, from which it differs in text, parameters and condition.
        level: Number of an alert with a shape; None for other triggers.
        at_ns: Time of the registration; rows that were known by then never fire.
        tickers: Markets; None for all.
        heard: By ticker, which rows were settled at the registration. Others fire, though they may be older than it.
        delivered: By ticker, for tickers with a sent event.
        withheld: By ticker on which it is paused, the newest outcomes with the times at which their rows were settled.
        silent: By ticker, pauses that have ended, each with its start and end; rows that were settled in them do not
            fire.
        revision: Number of the edit that has made it as it is; 1 before the first one.
        place: Place among the runs of its stream while it is at rest there, without a run; 0 otherwise.
    """

    trigger_id: str
    number: int
    kind: CompiledTrigger
    level: float | None
    at_ns: int
    tickers: frozenset[str] | None
    heard: Mapping[str, Heard] = field(default_factory=_none)
    delivered: Mapping[str, Delivered] = field(default_factory=_none)
    withheld: Mapping[str, list[tuple[int, Outcome]]] = field(default_factory=_none)
    silent: Mapping[str, list[tuple[int, int]]] = field(default_factory=_none)
    revision: int = 1
    place: int = 0
    _account: Account | None = None

    @property
    def compiled(self) -> CompiledTrigger:
        """The trigger. That of an alert is made at each call: use ``kind`` for what it shares with others."""
        return self.kind if self.level is None else self.kind.with_number(self.level)

    def text(self) -> tuple[str, dict[str, str]]:
        """Return its text and its parameters as received."""
        if self.level is None or self.kind.shape is None:
            return self.kind.sql, dict(self.kind.given)
        return self.kind.shape.text(abs(self.level))

    def take(self, compiled: CompiledTrigger) -> None:
        """Become another trigger."""
        self.kind, self.level = kind_of(compiled)

    @property
    def guard(self) -> Guard | None:
        """Guard of an alert that may rest."""
        guard = self.kind.guard
        return Guard(guard.slot, guard.operator, self.level, guard.exact) if guard is not None else None

    @property
    def account(self) -> Account:
        """Resources that it uses on all its tickers."""
        if self._account is None:
            self._account = Account()
        return self._account

    def hear(self, ticker: str, heard: Heard) -> None:
        """Note which rows of a market were settled at the registration."""
        if len(self.heard) > 1:
            self.heard = with_entry(self.heard, ticker, heard)
        else:
            self.heard = {**self.heard, ticker: heard} if self.heard else _heard_on_one(ticker, heard)

    def sent_on(self, ticker: str) -> Delivered:
        """Return the deliveries on a market, which the caller may change."""
        if ticker not in self.delivered:
            self.delivered = with_entry(self.delivered, ticker, Delivered())
        return self.delivered[ticker]

    @property
    def series_period(self) -> int:
        """Period of the rows at which it is evaluated; 0 for trades."""
        return TRADES_PERIOD if self.kind.is_running else self.kind.period_seconds

    @property
    def variant(self) -> tuple[int, tuple[tuple[int, bool], ...]]:
        """Delay in milliseconds and order of the stream on which it is evaluated."""
        return self.kind.parameters.delay_ms, self.kind.order

    @property
    def may_rest(self) -> bool:
        """Whether it needs no run while no row changes its guard: an alert on one market."""
        return self.kind.follows_newest and self.tickers is not None and len(self.tickers) == 1

    def silent_until(self, ticker: str) -> int:
        """Return the time up to which all rows of a market were known at the registration."""
        heard = self.heard.get(ticker)
        return self.at_ns if heard is None else heard.until_ns

    def knew(self, ticker: str, time_ns: int, identity: object) -> bool:
        """Return whether a row was known at the registration.

        Args:
            time_ns: Close of the candle, or time of the trade.
            identity: Id of the trade; anything else for a candle.
        """
        heard = self.heard.get(ticker)
        if heard is None:
            return time_ns <= self.at_ns
        return time_ns <= heard.until_ns or identity in heard.trade_ids

    def has_been_paused(self, ticker: str) -> bool:
        """Return whether it matters when rows were settled."""
        return ticker in self.withheld or ticker in self.silent

    def is_silenced(self, ticker: str, stamp_ns: int) -> bool:
        """Return whether rows settled at a time do not fire because of a pause; 0 stands for an unknown time."""
        return ticker in self.withheld or any(start < stamp_ns <= end for start, end in self.silent.get(ticker, ()))

    def noted_on(self) -> set[str]:
        """Return the markets of which it has a state beside its run."""
        return {*self.heard, *self.delivered, *self.withheld, *self.silent}

    @property
    def silent_ns(self) -> int:
        """Return the end of the last pause that has ended; 0 without one."""
        return max((end for spans in self.silent.values() for _, end in spans), default=0)

    def wants(self, ticker: str) -> bool:
        """Return whether the trigger is for a market."""
        return self.tickers is None or ticker in self.tickers


def deliver(registration: Registration, stream: Stream, result: RunResult, period_ns: int) -> list[Outcome]:
    """Return the event of a result, if one is sent, and the end of the trigger, if it ends."""
    parameters = registration.kind.parameters
    time_ns = result.time_ns + (period_ns if result.emitted_by == "row" else 0)
    if parameters.expires_ns is not None and time_ns >= parameters.expires_ns:
        return [TriggerEnded(registration.trigger_id, registration.number, time_ns, "expired")]
    if time_ns <= registration.silent_until(stream.ticker):
        return []
    state = registration.sent_on(stream.ticker)
    if result.kind == "resolved":
        if not state.open:
            return []
        state.open = False
    elif time_ns < state.until_ns:
        state.suppressed += 1
        state.open = False
        return []
    else:
        state.until_ns = time_ns + parameters.cooldown_ns
        if parameters.on == "bar":
            state.until_ns = max(state.until_ns, result.first[0] + registration.kind.period_seconds * SECOND_NS)
        state.open = True
    firing = _firing(registration, stream, result, time_ns, state.suppressed)
    state.suppressed = 0
    if parameters.fire == "once" and result.kind != "resolved":
        return [firing, TriggerEnded(registration.trigger_id, registration.number, time_ns, "once")]
    return [firing]


def _firing(registration: Registration, stream: Stream, result: RunResult, time_ns: int, suppressed: int) -> Firing:
    compiled = registration.kind
    most = compiled.parameters.max_rows
    context = {
        "kind": result.kind,
        "match_start": str(result.first[0]),
        "match_end": str(result.last[TRADE_TIME_SLOT if compiled.is_running else 0]),
        "emitted_by": result.emitted_by,
    }
    if compiled.period_seconds:
        context["period"] = str(compiled.period_seconds)
    for key, count in (
        ("late_dropped", stream.late),
        ("suppressed", suppressed),
        ("rows_omitted", max(0, len(result.rows) - most)),
    ):
        if count:
            context[key] = str(count)
    identity = (
        registration.trigger_id,
        str(registration.number),
        stream.ticker,
        result.kind,
        str(result.first[1 if compiled.source == "ticks" else 0]),
        str(result.last[_identity_slot(compiled)]),
    )
    rows = tuple(tuple(plain_value(value) for value in row) for row in result.rows[:most])
    if compiled.message is not None and rows:
        facts = {"ticker": stream.ticker, "time": iso(time_ns), "trigger_id": registration.trigger_id}
        context["message"] = compiled.message.of(compiled.columns, rows[-1], facts)
    return Firing(
        ":".join(identity),
        registration.trigger_id,
        registration.number,
        stream.ticker,
        time_ns,
        compiled.columns,
        rows,
        context,
    )


def _identity_slot(compiled: CompiledTrigger) -> int:
    """Return the slot that identifies the last row of a result: the id of a trade, or the open time of a candle."""
    if compiled.is_running:
        return TRADE_ID_SLOT
    return 1 if compiled.source == "ticks" else 0
