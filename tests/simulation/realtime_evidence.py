"""What the checks of the realtime chain look at, and what they find. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from dexorder_common.model.time_range import TimeRange
from tests.simulation.exchange.live import Exchange
from tests.simulation.exchange.trades import Executed
from tests.simulation.live.storage import LogRecord, Storage
from tests.simulation.loop import SECOND_NS, START_WALL_NS

EARLY_SECONDS = 5.0


class Rule(StrEnum):
    """Promises that can be broken."""

    MISSED = "missed between two dispatches"
    GIVEN_UP = "given up by its dispatch"
    UNNUMBERED = "missed without numbers"
    WRONG_VALUE = "wrong value"
    WRONG_CANDLE = "wrong candle"
    SPOILED = "right candle replaced by a wrong one"
    STUCK = "stuck"
    STUCK_BY_VALUE = "stuck behind a wrong value"
    STUCK_BY_IDS = "stuck since ids begin again"
    EARLY = "claimed before it was there"
    UNTOLD = "claimed before the table had it"
    ABSENT = "not there a minute after the last fault"
    SILENT = "settles nothing and does not say why"
    DELISTED = "delisted, and the job does not say so"


@dataclass(frozen=True)
class Breach:
    """A broken promise, and how it shows."""

    rule: Rule
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


@dataclass(frozen=True, slots=True)
class Sample:
    """What a job says of itself at a time of the run."""

    time_ns: int
    settled_ns: int
    is_running: bool
    error: str


@dataclass
class Evidence:
    """All that the checks look at.

    Attributes:
        named: Spans that a relay has called provisional, and the time of the first look that has seen it.
        absent: Trades that the table lacked a minute after the last fault, though their time was not provisional then.
        looks: Times of all looks; while the relay is down there is none, and nobody can ask it.
    """

    ticker: str
    symbol: str
    periods: Sequence[int]
    exchange: Exchange
    storage: Storage
    samples: Sequence[Sample]
    is_numbered: bool
    named: Mapping[TimeRange, int]
    looks: Sequence[int]
    provisional: Sequence[TimeRange]
    early: Sequence[tuple[Executed, int]] = ()
    absent: Sequence[Executed] = ()

    def was_named(self, trade: Executed, claim_ns: int) -> bool:
        """Return whether a trade's time was called provisional when it was claimed, soon after, or at the next look."""
        next_look = bisect_right(self.looks, claim_ns)
        looked_ns = self.looks[next_look] if next_look < len(self.looks) else 0
        limit_ns = max(claim_ns + int(EARLY_SECONDS * SECOND_NS), looked_ns)
        return any(
            span.start_ns <= trade.time_ns < span.end_ns and seen_ns <= limit_ns for span, seen_ns in self.named.items()
        )

    def is_provisional(self, trade: Executed) -> bool:
        """Return whether a trade's time is called provisional at the end."""
        return any(span.start_ns <= trade.time_ns < span.end_ns for span in self.provisional)

    @cached_property
    def truth(self) -> list[Executed]:
        """The exchange's trades that it has shown to anyone."""
        now_ns = self.exchange.now_ns
        return [trade for trade in self.exchange.tapes[self.symbol].trades if trade.published_ns <= now_ns]

    @cached_property
    def trade_records(self) -> list[LogRecord]:
        """The log's records of trades."""
        return list(self.storage.of(self.ticker, 0))

    @cached_property
    def recorded(self) -> dict[tuple[str, int], LogRecord]:
        """The first record of each trade, by id and time."""
        found: dict[tuple[str, int], LogRecord] = {}
        for record in self.trade_records:
            for trade in record.trades:
                found.setdefault((trade.trade_id, trade.time_ns), record)
        return found

    def record_of(self, trade: Executed) -> LogRecord | None:
        """Return the first record with a trade."""
        return self.recorded.get((trade.trade_id, trade.time_ns))

    @cached_property
    def first_ns(self) -> int:
        """Start of the first settled span of trades."""
        return min((record.headers.span.start_ns for record in self.trade_records), default=0)

    @cached_property
    def settled_ns(self) -> int:
        """End of the last settled span of trades."""
        return max((record.headers.span.end_ns for record in self.trade_records), default=0)

    @cached_property
    def _claims(self) -> tuple[list[int], list[tuple[int, LogRecord]]]:
        """Starts of disjoint spans, in order, with their ends and the records that have first claimed them."""
        starts, found = list[int](), list[tuple[int, LogRecord]]()
        for record in self.trade_records:  # a later dispatch begins where an earlier one has ended, or before
            start_ns = max(record.headers.span.start_ns, found[-1][0] if found else 0)
            if start_ns < record.headers.span.end_ns:
                starts.append(start_ns)
                found.append((record.headers.span.end_ns, record))
        return starts, found

    def claim_of(self, trade: Executed) -> LogRecord | None:
        """Return the record that has first claimed a trade's time as settled."""
        starts, found = self._claims
        place = bisect_right(starts, trade.time_ns) - 1
        return found[place][1] if place >= 0 and trade.time_ns < found[place][0] else None


def seconds(time_ns: int) -> str:
    """Return a time of the exchange's clock in seconds of the run, as the story has them."""
    return f"{(time_ns - START_WALL_NS) / SECOND_NS:.3f}"
