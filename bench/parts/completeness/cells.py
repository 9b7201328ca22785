"""Cells of the measurement: kinds of faulty answers, their shares, and a range for each. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_exchange_sim.faults import FaultRule
from dexorder_exchange_sim.instruments import INSTRUMENTS

MINUTE_NS = 60 * SECOND_NS
EPOCH_MINUTE_NS = 1_704_067_200 * SECOND_NS
"""2024-01-01: minute 0 of the numbers below."""
FIRST_MINUTE, LAST_MINUTE = -1_400_000, 1_100_000
GAP_MINUTES = 5_000
"""Between two ranges, so that no question about one reaches into the other."""
DENSE = ("BTC/USDT", "ETH/USDT", "LTC/USDT", "BNB/USDT", "XRP/USDT", "ADA/USDT", "TRX/USDT", "ETH/BTC", "ETH/USD")
"""Markets with a candle every minute, listed before ``FIRST_MINUTE``."""
RETRY_AFTER_SECONDS = 1

Kind = Mapping[str, Any]
"""Fields of a fault rule that say what goes wrong, not how often."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Row of the table.

    Attributes:
        name: Name on the command line.
        label: Printed name.
        kinds: Kinds of faults, each with the same probability.
    """

    name: str
    label: str
    kinds: tuple[Kind, ...]


@dataclass(frozen=True, slots=True)
class Cell:
    """One fault at one share, on a range that no other cell uses.

    Attributes:
        share: Share of faulty answers to calls for candles, 0 to 1.
        salt: Selects one of the exchange's random sequences.
    """

    fault: Fault
    share: float
    symbol: str
    span: TimeRange
    salt: int

    @property
    def label(self) -> str:
        """First column of the row."""
        return self.fault.label if self.symbol in DENSE else f"{self.symbol}: {self.fault.label}"

    @property
    def wide(self) -> TimeRange:
        """The range and half of the gap on each side, where rows must not be wrong either."""
        around_ns = GAP_MINUTES // 2 * MINUTE_NS
        return TimeRange(self.span.start_ns - around_ns, self.span.end_ns + around_ns)


def _fault(name: str, label: str, **more: Any) -> Fault:
    return Fault(name, label, ({"kind": name, **more},))


_SINGLE = (
    Fault("bans", "429 and 418", ({"kind": "http_429"}, {"kind": "http_418"})),
    Fault("502", "502", ({"kind": "http_502"},)),
    _fault("html", "200 and an HTML page"),
    _fault("empty", "200 and `[]`"),
    _fault("cut_json", "cut JSON"),
    _fault("text", "200 and text"),
    _fault("null", "200 and `null`"),
    _fault("drop_last", "last candle missing"),
    _fault("drop_first", "first candle missing"),
    _fault("hole", "hole of ten, in the middle"),
    Fault("hole_random", "hole of ten, anywhere", ({"kind": "hole", "place": "random"},)),
    _fault("short", "short page"),
    _fault("duplicate_tail", "tail doubled"),
    _fault("reversed", "order reversed"),
    _fault("null_fields", "null fields"),
    _fault("off_grid", "a candle off the grid"),
    _fault("low_above_high", "low above high"),
    _fault("unfinished", "unfinished candle added"),
    _fault("running", "last candle half-finished"),
    _fault("outside", "rows outside the range"),
    _fault("other_symbol", "rows of another symbol"),
)
NONE = Fault("none", "none", ())
THIN_MARKET = "XMR/USD"
THIN = ("none", "empty", "drop_last", "hole", "short", "mixed")
"""Rows that a market with true holes is asked for."""


def offered() -> tuple[list[Fault], list[Fault]]:
    """Return the rows that the simulated exchange supports, ``mixed`` last, and those that it does not."""
    known = [fault for fault in _SINGLE if all(_is_known(kind) for kind in fault.kinds)]
    mixed = Fault("mixed", "all of these, mixed", tuple(kind for fault in known for kind in fault.kinds))
    return [NONE, *known, mixed], [fault for fault in _SINGLE if fault not in known]


def thin_market() -> str | None:
    """Return a market with true holes, if the simulated exchange has one."""
    return next((each.symbol for each in INSTRUMENTS if each.symbol == THIN_MARKET), None)


def _is_known(kind: Kind) -> bool:
    try:
        FaultRule(**kind)
    except ValidationError:
        return False
    return True


def rules(cell: Cell) -> list[dict[str, Any]]:
    """Return the rules for ``POST /sim/faults`` that spoil ``share`` of the answers.

    The exchange decides by seed, position of the rule in the list and number of the call, so rules before these that
    never apply select another random sequence. Of several kinds the first that applies wins, hence the root.
    """
    kinds = cell.fault.kinds
    if not kinds:
        return []
    chance = 1 - (1 - cell.share) ** (1 / len(kinds))
    never = [{"kind": "empty", "path": "/never"}] * cell.salt
    ours = [{**kind, "probability": chance, "retry_after_s": RETRY_AFTER_SECONDS} for kind in kinds]
    return [*never, *ours]


def plan(
    faults: Sequence[Fault], shares: Sequence[float], *, candles: int, symbols: Sequence[str], thin: str | None
) -> list[Cell]:
    """Return all cells, share by share.

    Args:
        faults: Rows in the order of the table.
        candles: Minutes in each range.
        symbols: Markets, filled one after the other.
        thin: Market with true holes, for a few more rows.

    Raises:
        ValueError: The markets have no room for all ranges.
    """
    room = (LAST_MINUTE - FIRST_MINUTE) // (candles + GAP_MINUTES)
    wanted = [(fault, share, symbols) for share in shares for fault in faults]
    if thin:
        wanted += [(fault, share, (thin,)) for share in shares for fault in faults if fault.name in THIN]
    used: dict[Sequence[str], int] = {}
    cells = []
    for salt, (fault, share, markets) in enumerate(wanted):
        number = used.get(markets, 0)
        used[markets] = number + 1
        if number >= room * len(markets):
            raise ValueError(f"{', '.join(markets)}: no room for more than {room * len(markets)} ranges of {candles}")
        start_ns = EPOCH_MINUTE_NS + (FIRST_MINUTE + number % room * (candles + GAP_MINUTES)) * MINUTE_NS
        span = TimeRange(start_ns, start_ns + candles * MINUTE_NS)
        cells.append(Cell(fault, share, markets[number // room], span, salt))
    return sorted(cells, key=lambda cell: shares.index(cell.share))
