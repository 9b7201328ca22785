"""Lists of Binance's futures: the linear ones of ``/fapi`` and the inverse ones of ``/dapi``. Pure."""

from __future__ import annotations

from typing import Any

from dexorder_exchange_sim.dialects.dialect import Query, SimAnswer
from dexorder_exchange_sim.futures import SimFuture
from dexorder_exchange_sim.instruments import SimInstrument
from dexorder_exchange_sim.venue import SimVenue

_MS = 1_000_000
_NEVER_MS = 4133404800000
"""Binance's date of delivery of a perpetual future, 2100-12-25."""
_FUNDED_LISTED_MS = 1569398400000


def linear_futures(query: Query, venue: SimVenue, now_ns: int) -> SimAnswer:
    """Answer /fapi/v1/exchangeInfo: the futures with funding rates, and the linear ones that are only listed."""
    funded = [_funded(venue.sources[id].instrument) for id in venue.funding]
    listed = [_listed(each, now_ns) for each in venue.futures if each.is_linear and each.id not in venue.funding]
    return _info([*funded, *listed], now_ns)


def inverse_futures(query: Query, venue: SimVenue, now_ns: int) -> SimAnswer:
    """Answer /dapi/v1/exchangeInfo: the inverse futures, which are only listed."""
    return _info([_listed(each, now_ns) for each in venue.futures if not each.is_linear], now_ns)


def _info(symbols: list[dict[str, Any]], now_ns: int) -> SimAnswer:
    return SimAnswer({"timezone": "UTC", "serverTime": now_ns // _MS, "rateLimits": [], "symbols": symbols})


def _funded(instrument: SimInstrument) -> dict[str, Any]:
    times = {"contractType": "PERPETUAL", "deliveryDate": _NEVER_MS, "onboardDate": _FUNDED_LISTED_MS}
    return {
        **_market(instrument.id, (instrument.base, instrument.quote, instrument.quote), tick="0.01", lot="0.001"),
        **times,
        "status": "TRADING",
    }


def _listed(future: SimFuture, now_ns: int) -> dict[str, Any]:
    end_s = future.delisted_s if future.expiry_s is None else future.expiry_s
    size = {} if future.contract_size is None else {"contractSize": future.contract_size}
    return {
        **_market(future.id, (future.base, future.quote, future.settle), tick=future.tick, lot=future.lot),
        **size,
        "contractType": "PERPETUAL" if future.expiry_s is None else "CURRENT_QUARTER",
        "deliveryDate": _NEVER_MS if end_s is None else end_s * 1000,
        "onboardDate": future.listed_s * 1000,
        ("status" if future.is_linear else "contractStatus"): (
            "TRADING" if future.is_active(now_ns // 1_000_000_000) else "SETTLING"
        ),
    }


def _market(id: str, currencies: tuple[str, str, str], *, tick: str, lot: str) -> dict[str, Any]:
    base, quote, settle = currencies
    return {
        "symbol": id,
        "pair": id.partition("_")[0],
        "baseAsset": base,
        "quoteAsset": quote,
        "marginAsset": settle,
        "pricePrecision": 2,
        "quantityPrecision": 3,
        "baseAssetPrecision": 8,
        "quotePrecision": 8,
        "underlyingType": "COIN",
        "filters": [
            {"filterType": "PRICE_FILTER", "minPrice": tick, "maxPrice": "1000000", "tickSize": tick},
            {"filterType": "LOT_SIZE", "minQty": lot, "maxQty": "1000", "stepSize": lot},
        ],
        "orderTypes": ["LIMIT", "MARKET"],
        "timeInForce": ["GTC"],
    }


ROUTES = {"/fapi/v1/exchangeInfo": linear_futures, "/dapi/v1/exchangeInfo": inverse_futures}
