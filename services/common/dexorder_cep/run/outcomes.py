"""Outcomes that the engine returns to its caller. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias


class ResultColumn(NamedTuple):
    """Column of a trigger's rows, with Flink's name of its type, without NOT NULL."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Firing:
    """Event of a trigger.

    Attributes:
        event_id: Same for the same event, also when rows are fed again after a restart.
        trigger_id: Id that the client gave.
        registration_number: Number of the registration; a trigger that is deleted and registered again has another one.
        ticker: The market.
        time_ns: Event time at which the rows are known: the close of the last candle, the time of the last trade, or
            the watermark that ended a window or freed a match.
        columns: Columns of the rows.
        rows: Values: int, float, str, bool, None; points in time are ints of nanoseconds, DECIMAL is text.
        context: Further facts as text (docs/cep.md lists the keys).
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
class Ended:
    """End of a trigger by its own parameters: ``once`` or ``expired``. The trigger is removed."""

    trigger_id: str
    registration_number: int
    time_ns: int
    reason: str


Outcome: TypeAlias = Firing | Suspension | Ended
