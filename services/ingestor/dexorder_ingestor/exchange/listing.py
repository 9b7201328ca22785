"""Instruments for the relay's list, from ccxt's markets. Pure.

ccxt fills its market structure from the answers of each exchange. A value of another type or outside its range is
treated as missing, because a tick size of 0, for example, is useless for trading.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from ccxt.base.decimal_to_precision import DECIMAL_PLACES, TICK_SIZE

from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.instrument import MAX_TICKER_LENGTH, Instrument, InstrumentKind, ListedInstrument
from dexorder_common.model.times import MAX_TIME_NS
from dexorder_ingestor.exchange.dialect import DelistingFact

CcxtMarket = Mapping[str, Any]
_KINDS = {str(kind): kind for kind in InstrumentKind}
_MS = 1_000_000
_MOST_PLACES = 300
_MOST_DIGITS = 19
"""Digits of a time that are read."""


def list_instruments(
    venue: str, markets: Iterable[CcxtMarket], precision_mode: int, delisting: DelistingFact | None = None
) -> list[ListedInstrument]:
    """Return the instruments of ccxt's markets that a request can name; active unless ccxt knows otherwise.

    Args:
        precision_mode: ccxt's ``precisionMode`` of the exchange.
        delisting: Where its raw markets say when trading ends.
    """
    found = []
    for market in markets:
        try:
            ticker = str(Instrument.parse(f"{market['symbol']}.{venue}"))
        except InvalidRequest:
            continue
        found.append(_instrument(ticker, market, precision_mode, delisting))
    return found


def _instrument(ticker: str, market: CcxtMarket, mode: int, delisting: DelistingFact | None) -> ListedInstrument:
    kind, precision = _KINDS.get(str(market.get("type"))), market.get("precision") or {}
    expires = kind is not None and kind.expires
    return ListedInstrument(
        ticker,
        market.get("active") is not False,
        kind,
        _text(market.get("base")),
        _text(market.get("quote")),
        exchange_id=_text(market.get("id")),
        settle=_text(market.get("settle")),
        tick_size=_step(precision.get("price"), mode),
        lot_size=_step(precision.get("amount"), mode),
        contract_size=None if kind is InstrumentKind.SPOT else _size(market.get("contractSize")),
        expiry_ns=_time_ns(market.get("expiry")) if expires else None,
        listed_ns=_time_ns(market.get("created")),
        delisted_ns=None if expires or delisting is None else _delisted_ns(market.get("info"), delisting),
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= MAX_TICKER_LENGTH else None


def _step(value: Any, mode: int) -> float | None:
    """Return the step of a precision; None for one in significant digits: its step depends on the price."""
    if mode == TICK_SIZE:
        return _size(value)
    if mode == DECIMAL_PLACES and _is_number(value) and abs(value) <= _MOST_PLACES and value == int(value):
        return _size(float(f"1e{-int(value)}"))
    return None


def _size(value: Any) -> float | None:
    return float(value) if _is_number(value) and 0 < value <= sys.float_info.max else None


def _time_ns(value_ms: Any) -> int | None:
    """Return a time of ccxt in nanoseconds; exchanges write 0 for a time that they do not have."""
    if not _is_number(value_ms) or not 0 < value_ms <= MAX_TIME_NS // _MS or value_ms != int(value_ms):
        return None
    return int(value_ms) * _MS


def _delisted_ns(info: Any, fact: DelistingFact) -> int | None:
    text = str(info.get(fact.field)) if isinstance(info, Mapping) else ""
    is_time = text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS and text != fact.never
    return _time_ns(int(text)) if is_time else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
