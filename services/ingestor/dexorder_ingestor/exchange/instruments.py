"""Which of ccxt's markets a symbol is: the markets that may be queried, and the error for an unknown symbol. Pure.

ccxt keeps one market for each symbol, the last one that the exchange lists. An exchange may list a dark-pool market
after the lit one, and both have the same symbol, so ccxt alone would query the dark one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dexorder_common.model.instrument import similar_symbols
from dexorder_ingestor.exchange.dialects import dialect_of

CcxtMarket = Mapping[str, Any]
_CODE = re.compile(r"[^/:-]+")


def keep_main_markets(client: Any) -> None:
    """Make a ccxt client that has just loaded its markets forget markets that hide others of the same symbol.

    Dark-pool markets are dropped. Of several markets that remain under one symbol, the traded ones stay. If more
    than one remains after that, all stay, and `refusal` gives the reason why the symbol is not queried.
    """
    markets = [market for same_id in client.markets_by_id.values() for market in same_id]
    kept = main_markets(client.id, markets)
    if len(kept) < len(markets):
        client.set_markets(kept, client.currencies)


def main_markets(ccxt_id: str, markets: Sequence[CcxtMarket]) -> list[CcxtMarket]:
    """Return the markets that may be queried, in the order given; see `keep_main_markets`."""
    suffix = dialect_of(ccxt_id).quirks.dark_pool_suffix
    lit = [market for market in markets if not suffix or not str(market["id"]).endswith(suffix)]
    traded = {market["symbol"] for market in lit if market.get("active") is not False}
    return [market for market in lit if market.get("active") is not False or market["symbol"] not in traded]


def refusal(venue: str, symbol: str, client: Any) -> str | None:
    """Return a sentence that says why a ccxt client with loaded markets can't query a symbol; None if it can."""
    if symbol not in client.markets:
        return _unknown_symbol(venue, symbol, client)
    ids = {m["id"] for same_id in client.markets_by_id.values() for m in same_id if m["symbol"] == symbol}
    return f"symbol {symbol!r} is {len(ids)} markets of {venue}: {', '.join(sorted(ids))}" if len(ids) > 1 else None


def _unknown_symbol(venue: str, symbol: str, client: Any) -> str:
    """Return the error text for a symbol that ``client`` does not know, with the symbols that may be meant."""
    text, markets = f"symbol {symbol!r} is unknown to {venue}", client.markets
    renamed = client.commonCurrencies  # codes for which ccxt has another name, such as XBT -> BTC
    current = _CODE.sub(lambda code: renamed.get(code[0], code[0]), symbol)
    if current != symbol and current in markets:
        return f"{text}: renamed, it is {_described(current, markets)}"
    if own := sorted({m["symbol"] for m in client.markets_by_id.get(symbol, ()) if m["symbol"] in markets}):
        return f"{text}: this is the exchange's own name of {', '.join(_described(s, markets) for s in own)}"
    near = similar_symbols(symbol, markets)
    return f"{text}; close to it: {', '.join(_described(s, markets) for s in near)}" if near else text


def _described(symbol: str, markets: Mapping[str, CcxtMarket]) -> str:
    return repr(symbol) + (" (no longer traded)" if markets[symbol].get("active") is False else "")
