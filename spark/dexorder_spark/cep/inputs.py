"""Inputs of the engine in a micro-batch, in order. The journal has them, so that a batch can be evaluated again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from dexorder_common.lake.market_rows import Row
from dexorder_common.model.instrument import Series

Pauses: TypeAlias = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Register:
    """A trigger starts, paused if it was paused before the process has learned of it.

    Attributes:
        pauses: Times in which it was paused before, oldest first, each with its start and its end.
    """

    registration: int
    trigger_id: str
    sql: str
    parameters: Mapping[str, str]
    tickers: Sequence[str]
    registered_ns: int
    revision: int = 1
    is_paused: bool = False
    pauses: Pauses = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Edit:
    """From this input, a trigger has another text or other parameters. It keeps its state."""

    registration: int
    revision: int
    sql: str
    parameters: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Remove:
    """A trigger ends."""

    registration: int


@dataclass(frozen=True, slots=True)
class Pause:
    """A trigger does not fire on a ticker any more."""

    registration: int
    ticker: str


@dataclass(frozen=True, slots=True)
class Resume:
    """A trigger fires on a ticker for rows that were settled after a time."""

    registration: int
    ticker: str
    at_ns: int


@dataclass(frozen=True, slots=True)
class SkipPauses:
    """A trigger does not fire on a ticker for rows that were settled in pauses that have ended."""

    registration: int
    ticker: str
    pauses: Pauses


@dataclass(frozen=True, slots=True)
class Suspend:
    """A trigger is suspended, because it would miss rows."""

    registration: int
    reason: str
    time_ns: int


@dataclass(frozen=True, slots=True)
class Feed:
    """Rows of a series; period 0 stands for trades.

    Attributes:
        since_ns: Start of the time for which these are all rows; None for rows that are only for the engine's memory.
        settled_ns: Time before which no more rows of the series come; None as for ``since_ns``.
        stamp_ns: Time at which they were settled; None as for ``since_ns``.
    """

    ticker: str
    period_seconds: int
    rows: Sequence[Row]
    since_ns: int | None = None
    settled_ns: int | None = None
    stamp_ns: int | None = None

    @property
    def series(self) -> Series:
        """Their series."""
        return Series.decode(self.ticker, self.period_seconds)


@dataclass(frozen=True, slots=True)
class Expire:
    """The clock ends triggers."""

    now_ns: int


Input: TypeAlias = Register | Edit | Remove | Pause | Resume | SkipPauses | Suspend | Feed | Expire
_KINDS: tuple[type[Input], ...] = (Register, Edit, Remove, Pause, Resume, SkipPauses, Suspend, Feed, Expire)


def encode(inputs: Iterable[Input]) -> list[Any]:
    """Return inputs as JSON values."""
    return [[type(each).__name__, *(getattr(each, name) for name in each.__slots__)] for each in inputs]


def decode(values: Iterable[Any]) -> tuple[Input, ...]:
    """Return the inputs that ``encode`` was given."""
    kinds: Any = {kind.__name__: kind for kind in _KINDS}
    found = [kinds[name](*fields) for name, *fields in values]
    return tuple(replace(each, rows=list(map(tuple, each.rows))) if isinstance(each, Feed) else each for each in found)
