"""Table of exchanges: candles of one call, layout of answers, error codes that heal. Pure.

docs/exchanges.md gives the source of each fact and explains how to add a row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import product
from typing import Any, Literal

Path = tuple[str | int, ...]
"""Keys and indexes from the top of an answer."""
Columns = tuple[int | None, ...]
"""Indexes in a row: open time (milliseconds), open, high, low, close, volume, quote volume, number of trades."""
CCXT_COLUMNS: Columns = (0, 1, 2, 3, 4, 5, None, None)
MARKET = "{market}"
"""Stands in a path for the exchange's id of the queried market."""


class Remedy(StrEnum):
    """Reaction to an error code."""

    REPEAT = "repeat the query"
    SLOW_DOWN = "repeat the query after a pause of the whole exchange"


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Candles that one call of an exchange returns.

    Attributes:
        wide: The window may span more periods than that; the exchange then returns the oldest ``candles`` of it.
        names_symbol: The answer names its symbol, which has been compared with the queried one.
    """

    candles: int
    wide: bool = False
    names_symbol: bool = False


@dataclass(frozen=True, slots=True)
class Dialect:
    """Facts about one exchange.

    Attributes:
        candles: Largest number of candles of one call, or of one query for trades.
        wide: A window may span more periods than that; the oldest of it are returned then. Only for exchanges known to
            do so: one that returns the newest, or cuts the window, would make holes look empty.
        history: Source of candles: the exchange's own candles, or its trades.
        rows_at: Path of the rows in an answer; None if it is not known.
        columns: Columns of raw rows of spot markets; None leaves reading them to ccxt, which drops quote volume and
            number of trades.
        linear_columns: The same for linear derivatives.
        symbol_at: Path of the market's name in an answer, if it is not a part of ``rows_at``.
        running: Index and value of the mark in a raw row that its candle is still open.
        volume_tolerance: Relative difference between the volume of a coarser candle and the sum of the finer ones that
            rounding explains; None if coarser candles are no checksums: not known, or candles are built from trades.
        publish_seconds: Time after a candle's close in which the exchange publishes it. No exchange promises one; these
            are cautious.
        codes_at: Paths where an answer may hold an error code; every answer has one if ``always_coded``.
        remedies: Error codes that heal although ccxt's class of them does not say so, or does not say how.
        dark_pool_suffix: End of the ids of dark-pool markets, which share their symbol with a lit one; empty for none.
    """

    ccxt: str
    candles: int
    wide: bool = False
    history: Literal["candles", "trades"] = "candles"
    rows_at: Path | None = None
    columns: Columns | None = None
    linear_columns: Columns | None = None
    symbol_at: Path | None = None
    running: tuple[int, str] | None = None
    volume_tolerance: float | None = None
    publish_seconds: float = 120.0
    codes_at: tuple[Path, ...] = ()
    always_coded: bool = False
    remedies: Mapping[str, Remedy] = field(default_factory=dict)
    dark_pool_suffix: str = ""

    @property
    def limits(self) -> CallLimits:
        """Limits of one call."""
        return CallLimits(self.candles, self.wide, self.symbol_at is not None or MARKET in (self.rows_at or ()))

    def columns_of(self, market: Mapping[str, Any]) -> Columns | None:
        """Return the columns of a market's raw rows, if they are known; ``market`` is ccxt's."""
        if market.get("spot"):
            return self.columns
        return self.linear_columns if market.get("linear") and not market.get("option") else None

    def remedy(self, error_text: str) -> Remedy | None:
        """Return the remedy for an error whose text holds the exchange's answer; None leaves it to ccxt's class."""
        _, brace, rest = error_text.partition("{")
        try:
            code = self.code(json.loads(brace + rest))
        except ValueError:
            return None
        return next((r for c, r in self.remedies.items() if code == c or (code or "").startswith(f"{c}:")), None)

    def code(self, answer: Any) -> str | None:
        """Return the error code of an answer, without blanks."""
        found = (at(answer, path) for path in self.codes_at)
        return next((str(code).replace(" ", "") for code in found if isinstance(code, (str, int))), None)


def at(answer: Any, path: Path) -> Any:
    """Return the value at a path, or None if the answer has no such place."""
    for key in path:
        if isinstance(key, int):
            answer = answer[key] if isinstance(answer, list) and key < len(answer) else None
        else:
            answer = answer.get(key) if isinstance(answer, dict) else None
    return answer


_BINANCE = Dialect(
    "binance",
    candles=1_000,
    wide=True,
    rows_at=(),
    columns=(0, 1, 2, 3, 4, 5, 7, 8),
    linear_columns=(0, 1, 2, 3, 4, 5, 7, 8),
    volume_tolerance=1e-12,
    publish_seconds=30.0,
    codes_at=(("code",),),
    remedies={"-1008": Remedy.SLOW_DOWN, "-1016": Remedy.REPEAT},
)
_ROWS = (
    _BINANCE,
    replace(_BINANCE, ccxt="binanceus"),
    Dialect(
        "bybit",
        candles=1_000,
        rows_at=("result", "list"),
        columns=(0, 1, 2, 3, 4, 5, 6, None),
        linear_columns=(0, 1, 2, 3, 4, 5, 6, None),
        volume_tolerance=1e-9,
        publish_seconds=30.0,
        symbol_at=("result", "symbol"),
        codes_at=(("retCode",), ("ret_code",)),
        always_coded=True,
        remedies={"10006": Remedy.SLOW_DOWN, "10016": Remedy.REPEAT},
    ),
    Dialect(
        "coinbase",
        candles=300,
        rows_at=("candles",),
        volume_tolerance=1e-6,
        codes_at=(("errors", 0, "id"), ("error",)),
        remedies={"internal_server_error": Remedy.REPEAT},
    ),
    Dialect(
        "kraken",
        candles=240,
        wide=True,
        history="trades",
        publish_seconds=30.0,
        rows_at=("result", MARKET),
        codes_at=(("error", 0),),
        remedies={"EService:Throttled": Remedy.SLOW_DOWN},
        dark_pool_suffix=".d",
    ),
    Dialect(
        "okx",
        candles=100,  # 300 for recent candles; its history endpoint returns 100
        rows_at=("data",),
        columns=(0, 1, 2, 3, 4, 5, 7, None),
        linear_columns=(0, 1, 2, 3, 4, 6, 7, None),
        volume_tolerance=1e-6,
        publish_seconds=30.0,
        running=(8, "0"),
        codes_at=(("code",),),
        always_coded=True,
        remedies={"50001": Remedy.REPEAT, "50011": Remedy.SLOW_DOWN},
    ),
)
TABLE: Mapping[str, Dialect] = {row.ccxt: row for row in _ROWS}
"""Rows by ccxt id."""
DEFAULT_CANDLES, MAX_UNVERIFIED_CANDLES = 500, 1_000
"""Candles of a call to an exchange without a row: if ccxt gives no limit, and at most."""
_KINDS: tuple[Path, ...] = (("spot",), *product(("swap", "future"), ("linear", "inverse")))


def dialect_of(ccxt_id: str, features: Mapping[str, Any] | None) -> Dialect:
    """Return the exchange's row; without one, the smallest limit that ccxt gives for any of its kinds of markets."""
    if ccxt_id in TABLE:
        return TABLE[ccxt_id]
    limits = [at(features, (*kind, "fetchOHLCV", "limit")) for kind in _KINDS]
    known = [limit for limit in limits if isinstance(limit, int) and limit > 0]
    return Dialect(ccxt_id, min(*known, MAX_UNVERIFIED_CANDLES) if known else DEFAULT_CANDLES)
