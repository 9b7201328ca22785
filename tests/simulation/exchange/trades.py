"""Trades of one market: a Poisson process with bursts and quiet minutes, and what the exchange says of them for ever.

A tape is made before the run, from its generator. So the truth does not depend on what the suite asks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from random import Random
from typing import Any, NamedTuple

from tests.simulation.loop import SECOND_NS

MS_NS = 1_000_000
_PUBLISH_NS = 50 * MS_NS
"""Time after a trade at which the exchange shows it."""


class Executed(NamedTuple):
    """A trade with its final values.

    Attributes:
        number: Consecutive in its market and era, or 0 if the exchange does not number its trades.
        published_ns: Time at which REST and the socket show it.
        first_price: Price in the socket's message; another one than ``price`` if the exchange has corrected it.
        era: Number of times that the exchange's numbers have begun again before it.
        revised_ns: Time from which REST has the final price; before, it has the first one too.
    """

    time_ns: int
    number: int
    trade_id: str
    price: float
    amount: float
    side: str
    published_ns: int
    first_price: float
    era: int
    revised_ns: int = 0

    def seen(self, view_ns: int) -> Executed:
        """Return the trade as REST has it at a time."""
        return self if view_ns >= self.revised_ns else self._replace(price=self.first_price)

    @property
    def key(self) -> tuple[int, str]:
        """Name of the trade within its market."""
        return self.era, self.trade_id

    def row(self, price: float | None = None) -> dict[str, Any]:
        """Return the trade as ccxt has it."""
        return {
            "id": self.trade_id,
            "timestamp": self.time_ns // MS_NS,
            "price": self.price if price is None else price,
            "amount": self.amount,
            "side": self.side,
            "info": {"f": self.number, "l": self.number},
        }


class FinalCandle(NamedTuple):
    """A candle of a period, by the exchange."""

    open_ns: int
    open: float
    high: float
    low: float
    close: float
    volume: float
    trades: int
    quote_volume: float = 0.0


@dataclass(frozen=True)
class TapePlan:
    """What a tape is made of.

    Attributes:
        per_second: Mean number of trades in an ordinary minute.
        numbered: The exchange numbers its trades.
        late: Spans of time whose trades are published late, with the delay in nanoseconds.
        corrected: Spans of time whose trades have another price in the socket's message.
        revised: Spans of time whose trades have another price in REST too, with the delay until it has the final one.
        restarts: Times at which the numbers begin again.
        jumps: Times at which a million numbers are left out.
    """

    start_ns: int
    end_ns: int
    per_second: float
    numbered: bool = True
    late: Sequence[tuple[int, int, int]] = ()
    corrected: Sequence[tuple[int, int]] = ()
    revised: Sequence[tuple[int, int, int]] = ()
    restarts: Sequence[int] = ()
    jumps: Sequence[int] = ()


@dataclass
class Tape:
    """All trades of a market, in the order of time and number."""

    trades: list[Executed]
    times_ns: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.times_ns = [trade.time_ns for trade in self.trades]

    def between(self, start_ns: int, end_ns: int) -> list[Executed]:
        """Return the trades of a span of time."""
        return self.trades[bisect_left(self.times_ns, start_ns) : bisect_left(self.times_ns, end_ns)]


def make_tape(plan: TapePlan, random: Random) -> Tape:
    """Draw the trades of a market."""
    trades: list[Executed] = []
    number, era, price = random.randrange(1_000, 1_000_000), 0, 100.0
    marks = sorted([(t, "restart") for t in plan.restarts] + [(t, "jump") for t in plan.jumps])
    for time_ns in _times(plan, random):
        while marks and marks[0][0] <= time_ns:
            is_restart = marks.pop(0)[1] == "restart"
            era += is_restart
            number = 0 if is_restart else number + 1_000_000
        number += 1
        price = max(1.0, round(price + random.uniform(-0.5, 0.5), 2))
        trade_id = str(number) if plan.numbered else f"{random.getrandbits(48):012x}"
        if trades and trades[-1].time_ns == time_ns and not plan.numbered:
            trade_id = trades[-1].trade_id + "f"  # ccxt sorts trades of one millisecond by their ids
        late_ns = max((delay_ns for start, end, delay_ns in plan.late if start <= time_ns < end), default=0)
        revised_ns = max((end + delay_ns for start, end, delay_ns in plan.revised if start <= time_ns < end), default=0)
        is_corrected = bool(revised_ns) or any(start <= time_ns < end for start, end in plan.corrected)
        trades.append(
            Executed(
                time_ns,
                number if plan.numbered else 0,
                trade_id,
                price,
                round(random.uniform(0.001, 5.0), 4),
                random.choice(("buy", "sell")),
                time_ns + late_ns + _PUBLISH_NS,
                round(price + 1.5, 2) if is_corrected else price,
                era,
                revised_ns,
            )
        )
    return Tape(trades)


def _times(plan: TapePlan, random: Random) -> list[int]:
    """Draw times in whole milliseconds; every stretch of some seconds to two minutes has a rate of its own."""
    found, now_ns = [], plan.start_ns
    while now_ns < plan.end_ns:
        kind = random.random()
        factor, longest = (0.02, 120.0) if kind < 0.2 else (15.0, 4.0) if kind < 0.35 else (1.0, 60.0)
        stretch_end_ns = min(plan.end_ns, now_ns + int(random.uniform(1.0, longest) * SECOND_NS))
        at_ns = now_ns
        while True:
            at_ns += int(random.expovariate(plan.per_second * factor) * SECOND_NS)
            if at_ns >= stretch_end_ns:
                break
            found.append(at_ns - at_ns % MS_NS)
        now_ns = stretch_end_ns
    return found


def candles_of(trades: Iterable[Executed], period_seconds: int) -> dict[int, FinalCandle]:
    """Return the candles of trades by open time; a period without trades has none here, see `flat`."""
    period_ns, by_open = period_seconds * SECOND_NS, dict[int, list[Executed]]()
    for trade in trades:
        by_open.setdefault(trade.time_ns - trade.time_ns % period_ns, []).append(trade)
    return {open_ns: _candle(open_ns, inside) for open_ns, inside in by_open.items()}


def flat(open_ns: int, last: FinalCandle) -> FinalCandle:
    """Return the candle of a period without trades."""
    return FinalCandle(open_ns, last.close, last.close, last.close, last.close, 0.0, 0)


def _candle(open_ns: int, trades: list[Executed]) -> FinalCandle:
    prices = [trade.price for trade in trades]
    amounts = [Decimal(repr(trade.amount)) for trade in trades]
    quote = float(sum(Decimal(repr(price)) * amount for price, amount in zip(prices, amounts, strict=True)))
    first, last, volume = prices[0], prices[-1], float(sum(amounts))
    return FinalCandle(open_ns, first, max(prices), min(prices), last, volume, len(trades), quote)
