"""What every dialect gives the server: answers, and about their rows what the faults need to know. Pure types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from services.exchange_sim.venue import Venue

Query = Mapping[str, str]
Key = int | str
Row = Any
"""A list or a dict; `Layout` says where it keeps what."""
Rows = list[Row]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the rows of an answer keep what: places in lists, names in dicts.

    Attributes:
        time: A candle's open or a trade's time.
        unit_ns: What one of that time is worth, nanoseconds.
        close: A candle's last price, a trade's only one; text.
        volume: Text.
        high: None for trades, which have no grid, no lows and no unfinished rows either.
        low: The same.
        off_grid: What moves a candle's open off its grid.
    """

    time: Key
    unit_ns: int
    close: Key
    volume: Key
    high: Key | None = None
    low: Key | None = None
    off_grid: int = 0

    def time_ns(self, row: Row) -> int:
        """A row's time, nanoseconds since the epoch."""
        time_ns: float = row[self.time] * self.unit_ns
        return round(time_ns)


@dataclass(frozen=True, slots=True)
class History:
    """The rows of an answer about history, and what the market could have put there instead.

    Attributes:
        rows: As the exchange sends them, ascending.
        layout: Where they keep what.
        window_ns: What was asked for, as far as this answer goes, half open; nanoseconds since the epoch.
        wrap: The answer's body around rows.
        nothing: The body of an answer without rows.
        earlier: That many rows from right before the asked start.
        half: The last row's candle as it was in the middle of its period; None if there was none, or for trades.
        running: Time of the candle that is still running; None for trades.
    """

    rows: Rows
    layout: Layout
    window_ns: tuple[int, int]
    wrap: Callable[[Rows], Any]
    nothing: Any
    earlier: Callable[[int], Rows]
    half: Callable[[], Row | None] = lambda: None
    running: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer: JSON types, request weight (0 is not counted), HTTP status; ``history`` where it is about history."""

    body: Any
    weight: int = 1
    history: History | None = None
    status: int = 200


class Refusal(Exception):
    """The exchange refuses the request, in its own words."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(str(answer.body))
        self.answer = answer


@dataclass(frozen=True, slots=True)
class Dialect:
    """One exchange's way of talking.

    Attributes:
        answer: Answers one request by path, query, venue and now (nanoseconds); None for a path the exchange does not
            have. Raises `Refusal`.
        knows: Whether an id is one of its markets'.
        market: The exchange's id of the market a query names; None if it names none.
        of_other: The query with another market in it: the given one (an id), or one that is always there.
        bodies: Content type and body of fault kinds that this exchange words otherwise than `faults` does.
    """

    answer: Callable[[str, Query, Venue, int], Answer | None]
    knows: Callable[[str, Venue], bool]
    market: Callable[[Query, Venue], str | None]
    of_other: Callable[[Query, Venue, str | None], Query]
    bodies: Mapping[str, tuple[str, str]]
