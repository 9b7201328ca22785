"""Tickers by tables and properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.instrument import CandleOffer, Instrument, InstrumentKind, Series, similar_symbols


@pytest.mark.parametrize(
    ("text", "symbol", "venue"),
    [
        ("BTC/USDT.BINANCE", "BTC/USDT", "BINANCE"),
        ("BTC/USDT:USDT.BINANCE", "BTC/USDT:USDT", "BINANCE"),  # swap
        ("BTC/USD:BTC.BYBIT", "BTC/USD:BTC", "BYBIT"),  # inverse swap
        ("BTC/USDT:USDT-251226.OKX", "BTC/USDT:USDT-251226", "OKX"),  # dated future
        ("BTC/USD:BTC-251226.OKX", "BTC/USD:BTC-251226", "OKX"),
        ("BTC/USDT:USDT-251226-50000-C.BINANCE", "BTC/USDT:USDT-251226-50000-C", "BINANCE"),  # option
        ("XRP/USDT:USDT-251226-2.25-P.BINANCE", "XRP/USDT:USDT-251226-2.25-P", "BINANCE"),  # with a dot in its strike
        ("ETH2.S/ETH.KRAKEN", "ETH2.S/ETH", "KRAKEN"),
        ("USD.HOLD/EUR.M.KRAKEN", "USD.HOLD/EUR.M", "KRAKEN"),
        ("1000SATS/USDT.BINANCE", "1000SATS/USDT", "BINANCE"),
        ("币安人生/USDT.BINANCE", "币安人生/USDT", "BINANCE"),
        ("A B/USDT.SIM", "A B/USDT", "SIM"),
        ("kPEPE/USDC:USDC.HYPERLIQUID", "kPEPE/USDC:USDC", "HYPERLIQUID"),  # case is kept
        ("BTC-USDT.SIM", "BTC-USDT", "SIM"),  # no unified symbol; only the exchange's list of markets can tell
    ],
)
def test_ticker_splits_at_the_last_dot(text: str, symbol: str, venue: str) -> None:
    assert Instrument.parse(text) == Instrument(symbol, venue)
    assert str(Instrument.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "BTC/USDT",
        ".BINANCE",
        "BTC/USDT.",
        "BTC/USDT.BÖRSE",
        "BTC/USDT.SIM\n",
        "BTC\n/USDT.SIM",
        " BTC/USDT.SIM",
        "BTC/USDT.SIM ",
        "BTC/US\x00DT.SIM",
        "BTC/\ud800.SIM",
        "BTC/USDT\u202e.SIM",
    ],
)
def test_invalid_ticker_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="ticker"):
        Instrument.parse(text)


@given(st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=30), st.sampled_from(["SIM", "X:1"]))
def test_any_symbol_survives_the_ticker(symbol: str, venue: str) -> None:
    assert Instrument.parse(str(Instrument(symbol, venue))) == Instrument(symbol, venue)


def test_an_asterisk_stands_for_all_instruments_of_a_venue() -> None:
    assert Instrument.parse("*.SIM").is_whole_exchange
    assert not Instrument.parse("BTC/USDT.SIM").is_whole_exchange
    assert not Instrument.parse("**.SIM").is_whole_exchange


LISTED = ("BTC/USDT", "BTC/USD", "LTC/USDT", "ETH/USDT", "DOGE/USDT", "XRP/USDT", "SOL/USDT", "ETH2.S/ETH", "wBTC/USDT")


@pytest.mark.parametrize(
    ("symbol", "similar"),
    [
        ("NOPE/USDT", []),
        ("BCT/USDT", ["BTC/USDT", "BTC/USD"]),
        ("BTC/USTD", ["BTC/USD", "BTC/USDT", "wBTC/USDT"]),
        ("btc-usdt", ["BTC/USDT", "wBTC/USDT", "BTC/USD"]),
        ("DOG/USDT", ["DOGE/USDT"]),
        ("WBTC/USDT", ["wBTC/USDT", "BTC/USDT", "BTC/USD"]),
        ("ETH2/ETH", ["ETH2.S/ETH"]),
        ("", []),
    ],
)
def test_suggested_symbols_are_alike_in_their_base_currency(symbol: str, similar: list[str]) -> None:
    assert similar_symbols(symbol, LISTED) == similar


def test_texts_of_series_and_offers_name_what_they_have() -> None:
    assert [str(Series("BTC/USDT.SIM", period)) for period in (60, 0)] == [
        f"{Series('BTC/USDT.SIM', 60).dataset} of BTC/USDT.SIM, 60 s",
        f"{Series('BTC/USDT.SIM', 0).dataset} of BTC/USDT.SIM",
    ]
    assert str(CandleOffer((60,), 1_000)) == "1,000 candles a call"
    assert str(CandleOffer((60,), 500, learnt=True, newest_first=True, excludes_since=True, excludes_until=True)) == (
        "500 candles a call (learnt), newest candles first (learnt), the start of a window is excluded (learnt), "
        "the end of a window is excluded (learnt)"
    )


def test_futures_and_options_expire() -> None:
    assert [each.name for each in InstrumentKind if each.expires] == ["FUTURE", "OPTION"]
