"""The one table of exchanges: how much a call returns, what its answer looks like, which error codes heal. Pure.

docs/exchanges.md tells where each fact comes from, and how to add a row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal

Path = tuple[str | int, ...]
"""Keys and indexes from the top of an answer."""
MARKET = "{market}"
"""In a path: the exchange's id of the asked market."""


class Remedy(StrEnum):
    """What to do about an error code."""

    AGAIN = "ask again"
    SLOW_DOWN = "ask again, and nobody asks for a while"


@dataclass(frozen=True, slots=True)
class Dialect:
    """One exchange.

    Attributes:
        ccxt: ccxt's id.
        candles: Most candles of one call, or of one walk through trades.
        wide: A window may span more periods than that; the oldest of it come back then. Only for exchanges known to do
            so: one that returns the newest, or cuts the window, would make holes look empty.
        history: What candles come from: the exchange's own, or its trades.
        rows_at: Where an answer holds its rows; None if that is not known.
        symbol_at: Where an answer names the market it is for, if it does other than in ``rows_at``.
        running: Index and value of a raw row's mark that its candle still runs.
        codes_at: Where an answer may hold an error code; every answer has one if ``always_coded``.
        remedies: Error codes that heal though ccxt's class of them does not say so, or not how.
        shadow: How the ids of dark-pool markets end, which share their symbol with a proper one; empty for none.
    """

    ccxt: str
    candles: int
    wide: bool = False
    history: Literal["candles", "trades"] = "candles"
    rows_at: Path | None = None
    symbol_at: Path | None = None
    running: tuple[int, str] | None = None
    codes_at: tuple[Path, ...] = ()
    always_coded: bool = False
    remedies: Mapping[str, Remedy] = field(default_factory=dict)
    shadow: str = ""

    @property
    def names_symbol(self) -> bool:
        """Whether an answer says which market it is for."""
        return self.symbol_at is not None or MARKET in (self.rows_at or ())

    def remedy(self, error_text: str) -> Remedy | None:
        """What helps against an error whose text holds the exchange's answer; None leaves it to ccxt's class."""
        _, brace, rest = error_text.partition("{")
        try:
            code = self.code(json.loads(brace + rest))
        except ValueError:
            return None
        return next((r for c, r in self.remedies.items() if code == c or (code or "").startswith(f"{c}:")), None)

    def code(self, answer: Any) -> str | None:
        """The error code of an answer, without its blanks."""
        found = (at(answer, path) for path in self.codes_at)
        return next((str(code).replace(" ", "") for code in found if isinstance(code, (str, int))), None)


def at(answer: Any, path: Path) -> Any:
    """What lies at a path; None if the answer has no such place."""
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
    codes_at=(("code",),),
    remedies={"-1008": Remedy.SLOW_DOWN, "-1016": Remedy.AGAIN},
)
_ROWS = (
    _BINANCE,
    replace(_BINANCE, ccxt="binanceus"),
    Dialect(
        "bybit",
        candles=1_000,
        rows_at=("result", "list"),
        symbol_at=("result", "symbol"),
        codes_at=(("retCode",), ("ret_code",)),
        always_coded=True,
        remedies={"10006": Remedy.SLOW_DOWN, "10016": Remedy.AGAIN},
    ),
    Dialect(
        "coinbase",
        candles=300,
        rows_at=("candles",),
        codes_at=(("errors", 0, "id"), ("error",)),
        remedies={"internal_server_error": Remedy.AGAIN},
    ),
    Dialect(
        "kraken",
        candles=240,
        wide=True,
        history="trades",
        rows_at=("result", MARKET),
        codes_at=(("error", 0),),
        remedies={"EService:Throttled": Remedy.SLOW_DOWN},
        shadow=".d",
    ),
    Dialect(
        "okx",
        candles=100,  # 300 for recent candles; its history endpoint returns 100
        rows_at=("data",),
        running=(8, "0"),
        codes_at=(("code",),),
        always_coded=True,
        remedies={"50001": Remedy.AGAIN, "50011": Remedy.SLOW_DOWN},
    ),
)
TABLE: Mapping[str, Dialect] = {row.ccxt: row for row in _ROWS}
"""By ccxt id."""
UNKNOWN_CANDLES, MOST_UNKNOWN = 500, 1_000
_KINDS: tuple[Path, ...] = (
    ("spot",),
    ("swap", "linear"),
    ("swap", "inverse"),
    ("future", "linear"),
    ("future", "inverse"),
)


def dialect_of(ccxt_id: str, features: Mapping[str, Any] | None) -> Dialect:
    """The table's row, else a cautious guess: the least ccxt says of any kind of market there, windows no wider."""
    if ccxt_id in TABLE:
        return TABLE[ccxt_id]
    limits = [at(features, (*kind, "fetchOHLCV", "limit")) for kind in _KINDS]
    known = [limit for limit in limits if isinstance(limit, int) and limit > 0]
    return Dialect(ccxt_id, min(*known, MOST_UNKNOWN) if known else UNKNOWN_CANDLES)
