"""Pairs and parameters of a query in Kraken's dialect. Pure.

Old assets have a letter in front, some coins other names, and some pairs a dark pool beside them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from dexorder_exchange_sim.candles import Source
from dexorder_exchange_sim.dialects.dialect import Query, SimAnswer, SimRefusal
from dexorder_exchange_sim.venue import SimVenue

_RENAMED = {"BTC": "XBT", "DOGE": "XDG", "LUNA": "LUNA2"}
_LETTERED = {name: f"X{name}" for name in ("XBT", "XDG", "ETH", "LTC", "XRP", "XMR", "ZEC")} | {
    name: f"Z{name}" for name in ("USD", "EUR")
}
_NEVER_LETTERED = ("XDGUSD",)
_DARK = ".d"
_MAX_SECOND = 10**12
"""A larger ``since`` is in nanoseconds."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Market with Kraken's names.

    Attributes:
        key: Key of the market in answers, ``XXBTZUSD``.
        altname: ``XBTUSD``.
        wsname: ``XBT/USD``; None for a dark pool.
        base: Asset, ``XXBT``.
        quote: Asset, ``ZUSD``.
    """

    key: str
    altname: str
    wsname: str | None
    base: str
    quote: str
    source: Source


def altname(coin: str) -> str:
    """Return Kraken's short name of a coin: ``XBT`` for BTC."""
    return _RENAMED.get(coin, coin)


def asset(coin: str) -> str:
    """Return Kraken's id of a coin: ``XXBT`` for BTC, ``SOL`` for SOL."""
    return _LETTERED.get(altname(coin), altname(coin))


def pairs(venue: SimVenue) -> dict[str, Pair]:
    """Return all pairs by key, sorted; a dark pool follows the pair whose symbol it shares."""
    lit = [_pair(source, dark="") for source in venue.sources.values()]
    dark = [_pair(source, dark=_DARK) for source in venue.dark.values()]
    return {pair.key: pair for pair in sorted((*lit, *dark), key=lambda pair: pair.key)}


def find(name: str, venue: SimVenue) -> Pair | None:
    """Return a pair by any of its three names."""
    known = pairs(venue)
    return known.get(name) or next((pair for pair in known.values() if name in (pair.altname, pair.wsname)), None)


def _pair(source: Source, *, dark: str) -> Pair:
    coins = source.instrument.base, source.instrument.quote
    (base, quote), (base_asset, quote_asset) = map(altname, coins), map(asset, coins)
    short = base + quote
    old = base in _LETTERED and quote in _LETTERED and short not in _NEVER_LETTERED
    key = base_asset + quote_asset if old else short
    return Pair(key + dark, short + dark, None if dark else f"{base}/{quote}", base_asset, quote_asset, source)


class KrakenError(SimRefusal):
    """Error in Kraken's form: HTTP 200 with a text under ``error``."""

    def __init__(self, text: str) -> None:
        super().__init__(SimAnswer({"error": [text]}, weight=0))


def one_pair(query: Query, venue: SimVenue) -> Pair:
    """Return the pair that a query names, by any of its names."""
    name = query.get("pair", "")
    if not name:
        raise KrakenError("EGeneral:Invalid arguments")
    pair = find(name, venue)
    if pair is None:
        raise KrakenError("EQuery:Unknown asset pair")
    return pair


def integer(query: Query, name: str, default: int) -> int:
    """Return a parameter that is an integer of at least 0."""
    text = query.get(name, str(default))
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise KrakenError(f"EGeneral:Invalid arguments:{name}")
    return int(text)


def since_ns(query: Query) -> int | None:
    """Return ``since``, which is in seconds or nanoseconds since the epoch; None if it is missing."""
    text = query.get("since")
    if text is None:
        return None
    if not re.fullmatch(r"-?[0-9]{1,19}(\.[0-9]{1,9})?", text):
        raise KrakenError("EGeneral:Invalid arguments:since")
    value = max(Decimal(text), Decimal(0))
    return min(int(value * 1_000_000_000 if value < _MAX_SECOND else value), 2**62)
