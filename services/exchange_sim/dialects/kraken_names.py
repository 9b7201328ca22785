"""Kraken's names: old assets carry a letter in front, some coins other names, some pairs a twin. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from services.exchange_sim.candles import Source
from services.exchange_sim.venue import Venue

_RENAMED = {"BTC": "XBT", "DOGE": "XDG", "LUNA": "LUNA2"}
_LETTERED = {name: f"X{name}" for name in ("XBT", "XDG", "ETH", "LTC", "XRP", "XMR", "ZEC")} | {
    name: f"Z{name}" for name in ("USD", "EUR")
}
_NEVER_LETTERED = ("XDGUSD",)
_DARK = ".d"


@dataclass(frozen=True, slots=True)
class Pair:
    """One market under Kraken's names.

    Attributes:
        key: What answers are filed under, ``XXBTZUSD``.
        altname: ``XBTUSD``.
        wsname: ``XBT/USD``; None for a dark pool.
        base: Asset, ``XXBT``.
        quote: Asset, ``ZUSD``.
        source: Its candles and trades.
    """

    key: str
    altname: str
    wsname: str | None
    base: str
    quote: str
    source: Source


def altname(coin: str) -> str:
    """Kraken's short name of a coin: ``XBT`` for BTC."""
    return _RENAMED.get(coin, coin)


def asset(coin: str) -> str:
    """Kraken's id of a coin: ``XXBT`` for BTC, ``SOL`` for SOL."""
    return _LETTERED.get(altname(coin), altname(coin))


def pairs(venue: Venue) -> dict[str, Pair]:
    """All pairs by key, in the order of their keys; a dark pool comes right after the pair whose symbol it shares."""
    lit = [_pair(source, dark="") for source in venue.sources.values()]
    dark = [_pair(source, dark=_DARK) for source in venue.dark.values()]
    return {pair.key: pair for pair in sorted((*lit, *dark), key=lambda pair: pair.key)}


def find(name: str, venue: Venue) -> Pair | None:
    """A pair by any of its three names."""
    known = pairs(venue)
    return known.get(name) or next((pair for pair in known.values() if name in (pair.altname, pair.wsname)), None)


def _pair(source: Source, *, dark: str) -> Pair:
    coins = source.instrument.base, source.instrument.quote
    (base, quote), (base_asset, quote_asset) = map(altname, coins), map(asset, coins)
    short = base + quote
    old = base in _LETTERED and quote in _LETTERED and short not in _NEVER_LETTERED
    key = base_asset + quote_asset if old else short
    return Pair(key + dark, short + dark, None if dark else f"{base}/{quote}", base_asset, quote_asset, source)
