"""Interface of a dialect: answers, and the layout of their rows, which faults need. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dexorder_exchange_sim.candles import Column
from dexorder_exchange_sim.venue import SimVenue

Query = Mapping[str, str]
Key = int | str
Row = Any
"""List or dict; `RowLayout` describes it."""
Rows = list[Row]


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Fields of the rows of an answer: indexes in lists, names in dicts.

    Attributes:
        time: Open of a candle, or time of a trade.
        close: Last price of a candle, or price of a trade; text.
        volume: Text.
        high: None for trades, which also have no grid, no lows and no unfinished rows.
        low: None for trades.
        off_grid: Amount that moves a candle's open off its grid.
    """

    time: Key
    unit_ns: int
    close: Key
    volume: Key
    high: Key | None = None
    low: Key | None = None
    off_grid: int = 0

    def time_ns(self, row: Row) -> int:
        """Return a row's time, nanoseconds since the epoch."""
        time_ns: float = row[self.time] * self.unit_ns
        return round(time_ns)


@dataclass(frozen=True, slots=True)
class History:
    """Rows of an answer with candles or trades, and alternatives that faults put there.

    Attributes:
        rows: As the exchange sends them, ascending.
        window_ns: Requested range as far as this answer covers it, half open; nanoseconds since the epoch.
        wrap: Returns the answer's body with rows.
        nothing: Body of an answer without rows.
        earlier: Returns this many rows before the requested start.
        half: Returns the last row's candle as of the middle of its period; None if there was none, or for trades.
        running: Time of the unfinished candle; None for trades.
    """

    rows: Rows
    layout: RowLayout
    window_ns: tuple[int, int]
    wrap: Callable[[Rows], Any]
    nothing: Any
    earlier: Callable[[int], Rows]
    half: Callable[[], Row | None] = lambda: None
    running: int | None = None


@dataclass(frozen=True, slots=True)
class SimAnswer:
    """JSON body, request weight (0 is not counted) and HTTP status; ``history`` where it has candles or trades."""

    body: Any
    weight: int = 1
    history: History | None = None
    status: int = 200


class SimRefusal(Exception):
    """Refusal of a request, as the exchange words it."""

    def __init__(self, answer: SimAnswer) -> None:
        super().__init__(str(answer.body))
        self.answer = answer


@dataclass(frozen=True, slots=True)
class SimDialect:
    """REST protocol of one exchange.

    Attributes:
        routes: By path, how a request is answered, given query, venue and now (nanoseconds); may raise `SimRefusal`.
        knows: Returns whether an id is one of its markets'.
        market: Returns the exchange's id of the market that a query names; None if it names none.
        of_other: Returns the query for another market: the given id, or one that always exists.
        bodies: Content type and body of fault kinds that differ from those in `faults`.
    """

    routes: Mapping[str, Callable[[Query, SimVenue, int], SimAnswer]]
    knows: Callable[[str, SimVenue], bool]
    market: Callable[[Query, SimVenue], str | None]
    of_other: Callable[[Query, SimVenue, str | None], Query]
    bodies: Mapping[str, tuple[str, str]]

    def answer(self, path: str, query: Query, venue: SimVenue, now_ns: int) -> SimAnswer | None:
        """Answer one request; return None for a path that the exchange does not have."""
        handler = self.routes.get(path)
        return None if handler is None else handler(query, venue, now_ns)


def printer(decimals: int | None) -> Callable[[Column], list[str]]:
    """Return a formatter of a column as decimal text; None for as few decimals as read back to the same float64."""
    if decimals is None:
        return lambda column: [_shortest(value) for value in column.tolist()]
    form = f"%.{decimals}f"
    return lambda column: [form % value for value in column.tolist()]


def _shortest(value: float) -> str:
    """Return the shortest text that reads back to the same float, without an exponent, which no exchange sends."""
    text = repr(value)
    return text if "e" not in text else np.format_float_positional(value, trim="0")
