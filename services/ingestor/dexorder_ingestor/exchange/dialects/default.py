"""Any other exchange.

500 candles a call unless ccxt says otherwise; windows are never wider; answers that are lists are counted. An exchange
that returns fewer, always the oldest or always the newest of a window, costs calls and may end in ERROR, but hides no
candle: a hole is also queried at the end and at the start of a window. If ccxt lacks `fetchOHLCV` for the exchange, or
the period, the job ends as ERROR with this reason. An exchange that ignores the start returns rows outside the window,
which is an error too, never data.

The ids of trades are unknown. Trades since a time are used if an answer shows a trade from before.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

from dexorder_ingestor.exchange.answers import Path, at
from dexorder_ingestor.exchange.dialect import CandleFacts, Dialect

DEFAULT_CANDLES, MAX_UNVERIFIED_CANDLES = 500, 1_000
"""Candles of a call to an exchange without a module: if ccxt gives no limit, and at most."""
_KINDS: tuple[Path, ...] = (("spot",), *product(("swap", "future"), ("linear", "inverse")))


def default_dialect(ccxt_id: str, features: Mapping[str, Any] | None) -> Dialect:
    """Return the facts about an unknown exchange, with the smallest limit that ccxt gives for a kind of its markets."""
    limits = [at(features, (*kind, "fetchOHLCV", "limit")) for kind in _KINDS]
    known = [limit for limit in limits if isinstance(limit, int) and limit > 0]
    return Dialect(ccxt_id, CandleFacts(min(*known, MAX_UNVERIFIED_CANDLES) if known else DEFAULT_CANDLES))
