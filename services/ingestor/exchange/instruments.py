"""An exchange's markets: which of ccxt's are asked, what the relay is told of them, why a symbol is not known. Pure.

ccxt keeps one market a symbol, the last one the exchange lists. Kraken lists the dark-pool twin ``XXBTZUSD.d`` behind
``XXBTZUSD`` and both are ``BTC/USD``, so ccxt alone would ask the twin.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from services.common.model.errors import InvalidRequest
from services.common.model.instrument import Instrument
from services.ingestor.exchange.dialects.table import TABLE

CcxtMarket = Mapping[str, Any]
_CODE = re.compile(r"[^/:-]+")
_CLOSE_MATCHES = 3


@dataclass(frozen=True, slots=True)
class ListedInstrument:
    """One market, as the relay lists it."""

    ticker: str
    active: bool
    type: str
    base: str
    quote: str


def list_instruments(venue: str, markets: Iterable[CcxtMarket]) -> list[ListedInstrument]:
    """The markets of ccxt's list that a request can name; one of which ccxt does not know whether it trades does."""
    found = []
    for market in markets:
        try:
            ticker = Instrument.parse(f"{market['symbol']}.{venue}")
        except InvalidRequest:
            continue
        found.append(
            ListedInstrument(
                str(ticker),
                market.get("active") is not False,
                market.get("type") or "",
                market.get("base") or "",
                market.get("quote") or "",
            )
        )
    return found


# ---- one market a symbol


def keep_main_markets(client: Any) -> None:
    """Make a ccxt client that has just loaded its markets forget those that stand in the way of others of their symbol.

    Dark-pool markets go; of several that remain under one symbol those that are traded stay. Where that leaves more
    than one, all stay, and `refusal` has the reason why none is asked.
    """
    everything = [market for same_id in client.markets_by_id.values() for market in same_id]
    kept = main_markets(client.id, everything)
    if len(kept) < len(everything):
        client.set_markets(kept, client.currencies)


def main_markets(ccxt_id: str, markets: Sequence[CcxtMarket]) -> list[CcxtMarket]:
    """The markets that may be asked, in the order given; see `keep_main_markets`."""
    ending = TABLE[ccxt_id].shadow if ccxt_id in TABLE else ""
    lit = [market for market in markets if not ending or not str(market["id"]).endswith(ending)]
    traded = {market["symbol"] for market in lit if market.get("active") is not False}
    return [market for market in lit if market.get("active") is not False or market["symbol"] not in traded]


def refusal(venue: str, symbol: str, client: Any) -> str | None:
    """Why a symbol can't be asked of a ccxt client with loaded markets, as a sentence; None if it can."""
    if symbol not in client.markets:
        return unknown(venue, symbol, client.markets, client.markets_by_id, client.commonCurrencies)
    ids = {m["id"] for same_id in client.markets_by_id.values() for m in same_id if m["symbol"] == symbol}
    return f"symbol {symbol!r} is {len(ids)} markets of {venue}: {', '.join(sorted(ids))}" if len(ids) > 1 else None


def unknown(
    venue: str,
    symbol: str,
    markets: Mapping[str, CcxtMarket],
    by_id: Mapping[str, Sequence[CcxtMarket]],
    renamed: Mapping[str, str],
) -> str:
    """The sentence for a symbol that is not among ``markets``, with the ones that may be meant.

    Args:
        markets: By unified symbol.
        by_id: By the exchange's own id.
        renamed: Currency codes that ccxt has another name for, as ``XBT`` -> ``BTC``.
    """
    text = f"symbol {symbol!r} is unknown to {venue}"
    now = _CODE.sub(lambda code: renamed.get(code[0], code[0]), symbol)
    if now != symbol and now in markets:
        return f"{text}: renamed, it is {_shown(now, markets)}"
    if own := sorted({m["symbol"] for m in by_id.get(symbol, ()) if m["symbol"] in markets}):
        return f"{text}: this is the exchange's own name of {', '.join(_shown(s, markets) for s in own)}"
    near = _close(symbol, markets)
    return f"{text}; close to it: {', '.join(_shown(s, markets) for s in near)}" if near else text


def _close(symbol: str, markets: Iterable[str]) -> list[str]:
    """The symbols most like it, whatever the case of letters, best first."""
    by_upper: dict[str, list[str]] = {}
    for each in markets:
        by_upper.setdefault(each.upper(), []).append(each)
    near = get_close_matches(symbol.upper(), by_upper, n=_CLOSE_MATCHES)
    return [each for upper in near for each in by_upper[upper]][:_CLOSE_MATCHES]


def _shown(symbol: str, markets: Mapping[str, CcxtMarket]) -> str:
    return repr(symbol) + (" (no longer traded)" if markets[symbol].get("active") is False else "")
