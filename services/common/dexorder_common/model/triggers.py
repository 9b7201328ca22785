"""Triggers and their events, for relay and client alike. Pure.

``dexorder_common/rpc/trigger_messages.py`` converts these values to protobuf messages and back. The enumerations have
the numbers of ``triggers.proto``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, TypeAlias

from dexorder_common.model.cursor import Cursor
from dexorder_common.model.times import iso
from dexorder_common.model.user_events import Preference, Priority

Value: TypeAlias = str | int | float | bool | bytes | None


class TriggerState(IntEnum):
    """State of a trigger."""

    WAITING = 1
    """The pipeline has not taken it yet."""
    RUNNING = 2
    SUSPENDED = 3
    """It exceeded a limit and is not evaluated any more."""
    ENDED = 4
    PAUSED = 5
    """It takes rows and does not fire."""


class EventKind(IntEnum):
    """Kind of a trigger's event."""

    FIRED = 1
    SUSPENDED = 2
    ENDED = 3


@dataclass(frozen=True, slots=True)
class Alert:
    """Delivery of firings to a user by the gateway.

    Attributes:
        channels: In the order to try them; none for the user's own order.
    """

    user_id: str
    priority: Priority = Priority.NORMAL
    channels: tuple[Preference, ...] = ()


@dataclass(frozen=True, slots=True)
class Trigger:
    """A trigger as a client registers it. Two are the same if all fields are equal.

    Attributes:
        tickers: The markets that it watches.
        callback_id: Name under which the events of several triggers are read; may be empty.
        client_id: Its owner; may be empty.
    """

    trigger_id: str
    sql: str
    tickers: tuple[str, ...]
    callback_id: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    client_id: str = ""
    alert: Alert | None = None


@dataclass(frozen=True, slots=True)
class TriggerEdit:
    """Change of a trigger under its id.

    Attributes:
        sql: New text; None to keep it.
        parameters: Parameters to set; others stay.
        removed: Names of parameters to remove.
        reset: Start without the trigger's state.
    """

    trigger_id: str
    sql: str | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    reset: bool = False

    def of(self, trigger: Trigger) -> Trigger:
        """Return a trigger as it is after the edit."""
        kept = {name: value for name, value in trigger.parameters.items() if name not in self.removed}
        sql = trigger.sql if self.sql is None else self.sql
        return replace(trigger, sql=sql, parameters=kept | dict(self.parameters))


@dataclass(frozen=True, slots=True)
class RegisteredTrigger:
    """A trigger that was registered and not deleted.

    Attributes:
        registration: Number that only grows, even when the id is used again.
        period_seconds: Period of the candles that it reads; 0 for trades.
        reason: Reason of a suspension or of the end.
        revision: Number of its edits, from 1 for the registration.
    """

    trigger: Trigger
    registration: int
    registered_ns: int
    state: TriggerState
    period_seconds: int = 0
    reason: str = ""
    firings: int = 0
    last_fired_ns: int = 0
    revision: int = 1

    def as_json(self) -> dict[str, Any]:
        """Return the fields of one line of ``--json``."""
        trigger = self.trigger
        return {
            "trigger_id": trigger.trigger_id,
            "state": self.state.name,
            "reason": self.reason or None,
            "tickers": list(trigger.tickers),
            "sql": trigger.sql,
            "parameters": dict(trigger.parameters),
            "callback_id": trigger.callback_id or None,
            "client_id": trigger.client_id or None,
            "user_id": trigger.alert.user_id if trigger.alert else None,
            "registered": iso(self.registered_ns),
            "registered_ns": self.registered_ns,
            "revision": self.revision,
            "firings": self.firings,
            "last_fired": iso(self.last_fired_ns) if self.last_fired_ns else None,
        }


@dataclass(frozen=True, slots=True)
class TriggerEvent:
    """An event of a trigger.

    Attributes:
        cursor: Position from which a subscriber resumes; None in a backtest.
        ticker: Market for which it fired; empty for events of the whole trigger.
        columns: Names and Flink's types of the result's columns, in order.
        rows: Values of the result's rows.
        context: More facts of the engine, for example when the match started.
    """

    trigger_id: str
    event_id: str
    kind: EventKind
    ticker: str
    time_ns: int
    columns: tuple[tuple[str, str], ...] = ()
    rows: tuple[tuple[Value, ...], ...] = ()
    context: Mapping[str, str] = field(default_factory=dict)
    cursor: Cursor | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the fields of one line of ``--json``."""
        names = [name for name, _ in self.columns]
        return {
            "trigger_id": self.trigger_id,
            "event_id": self.event_id or None,
            "cursor": str(self.cursor) if self.cursor else None,
            "kind": self.kind.name,
            "ticker": self.ticker or None,
            "time": iso(self.time_ns),
            "time_ns": self.time_ns,
            "columns": [{"name": name, "type": of_type} for name, of_type in self.columns],
            "rows": [dict(zip(names, map(_json_value, row), strict=True)) for row in self.rows],
            "context": dict(self.context),
        }


def _json_value(value: Value) -> Any:
    return value.hex() if isinstance(value, bytes) else value
