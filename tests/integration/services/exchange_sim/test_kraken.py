from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, get_args

import ccxt as ccxt_errors
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dexorder_exchange_sim.dialects import binance
from dexorder_exchange_sim.dialects.dialect import SimRefusal
from dexorder_exchange_sim.faults import REPLICAS, Kind
from dexorder_exchange_sim.venue import SimVenue
from tests.fakes.exchange import kraken, kraken_query
from tests.integration.services.exchange_sim.conftest import NOW_NS, Exchange

NOW_S, NOW_MS = NOW_NS // 10**9, NOW_NS // 10**6
VENUE = SimVenue([], seed=9, dark_pools=kraken.DIALECT.dark_pools)
PAIRS = kraken_query.pairs(VENUE)
LIT = [pair for pair in PAIRS.values() if pair.wsname]
SINCE = 1_577_836_800_000
Rows = list[list[Any]]


def ask(path: str, **query: str | int) -> Any:
    found = kraken.DIALECT.answer(
        f"/0/public/{path}", {name: str(value) for name, value in query.items()}, VENUE, NOW_NS
    )
    assert found is not None and found.body["error"] == []
    return found.body["result"]


def trades(key: str, start_ns: int, end_ns: int, count: int = 1000) -> Iterator[list[Any]]:
    """All trades of a range, page after page."""
    since = str(start_ns - 1)
    while (page := ask("Trades", pair=key, since=since, count=count))[key]:
        yield from (row for row in page[key] if row[2] * 1e9 < end_ns)
        if int(page["last"]) >= end_ns:
            return
        since = page["last"]


def klines(id: str, start_s: int, limit: int = 1) -> Rows:
    query = {"symbol": id, "interval": "1m", "startTime": str(start_s * 1000), "limit": str(limit)}
    found = binance.DIALECT.answer("/api/v3/klines", query, VENUE, NOW_NS)
    assert found is not None
    rows: Rows = found.body
    return rows


@given(st.sampled_from(LIT), st.integers(1_546_300_800, NOW_S - 60), st.integers(1, 1000))
@settings(deadline=None, max_examples=60)
def test_trades_add_up_to_the_candles_of_the_other_dialect(pair: kraken_query.Pair, time_s: int, count: int) -> None:
    minute_s = time_s // 60 * 60
    rows = [*trades(pair.key, minute_s * 10**9, (minute_s + 60) * 10**9, max(count, 100))]
    candles = [row for row in klines(pair.source.instrument.id, minute_s) if row[0] == minute_s * 1000]
    if not candles:
        assert rows == []
        return
    [candle] = candles
    prices = [float(row[0]) for row in rows]
    assert [float(value) for value in candle[1:5]] == [prices[0], max(prices), min(prices), prices[-1]]
    assert float(candle[5]) == pytest.approx(sum(float(row[1]) for row in rows), rel=1e-12)
    assert candle[8] == len(rows)
    assert [row[6] for row in rows] == list(range(rows[0][6], rows[0][6] + len(rows)))


@given(st.sampled_from(LIT), st.integers(1_546_300_800, NOW_S))
@settings(deadline=None, max_examples=40)
def test_since_is_exclusive_in_seconds_or_nanoseconds(pair: kraken_query.Pair, since_s: int) -> None:
    page = ask("Trades", pair=pair.altname, since=since_s)
    assert page == ask("Trades", pair=pair.key, since=since_s * 10**9)
    rows = page[pair.key]
    if not rows:
        assert page["last"] == str(since_s * 10**9)
        return
    assert (np.diff([row[2] for row in rows]) > 0).all()
    assert since_s < rows[0][2] and rows[-1][2] <= NOW_S
    assert int(page["last"]) == pytest.approx(rows[-1][2] * 1e9, abs=500)
    again = ask("Trades", pair=pair.key, since=int(page["last"]) - 1, count=1)
    assert again[pair.key] == rows[-1:]
    after = ask("Trades", pair=pair.key, since=page["last"], count=1)[pair.key]
    assert [row[6] for row in after] in ([], [rows[-1][6] + 1])


def test_trades_without_since_are_the_newest_and_since_0_the_first() -> None:
    newest = ask("Trades", pair="XETHZUSD", count=5)["XETHZUSD"]
    assert len(newest) == 5 and NOW_S - 2 < newest[-1][2] <= NOW_S
    assert [row[6] for row in ask("Trades", pair="XETHZUSD", since=0, count=3)["XETHZUSD"]] == [0, 1, 2]
    assert len(ask("Trades", pair="XETHZUSD", since=0, count=5000)["XETHZUSD"]) == 1000


@pytest.mark.parametrize("interval", [1, 5, 15, 30, 60, 240, 1440, 10_080, 21_600])
def test_candles_are_the_newest_whatever_is_asked(interval: int) -> None:
    page = ask("OHLC", pair="XBT/USD", interval=interval)
    rows, step_s = page["XXBTZUSD"], interval * 60
    opens = [row[0] for row in rows]
    assert opens == list(range(opens[0], opens[-1] + 1, step_s)) and opens[-1] == NOW_S // step_s * step_s
    assert len(rows) == 721 or opens[0] <= VENUE.sources["BTCUSD"].instrument.listed_s
    assert page["last"] == opens[-2]
    assert ask("OHLC", pair="XBTUSD", interval=interval, since=min(1_577_836_800, opens[0]) - step_s) == page
    recent = ask("OHLC", pair="XBTUSD", interval=interval, since=opens[-4])
    assert recent == {"XXBTZUSD": rows[-3:], "last": page["last"]}
    assert ask("OHLC", pair="XBTUSD", interval=interval, since=NOW_S + 9)["XXBTZUSD"] == rows[-1:]


def test_both_dialects_omit_silent_minutes() -> None:
    rows = ask("OHLC", pair="XMRUSD")["XXMRZUSD"]
    assert len(rows) in (720, 721)
    assert rows[-1][0] - rows[0][0] > 1000 * 60
    assert [row[0] for row in rows] == [row[0] // 1000 for row in klines("XMRUSD", rows[0][0], 1000)]


def test_a_gone_market_ends() -> None:
    end_s = VENUE.sources["OMGUSD"].instrument.delisted_s or 0
    page = ask("OHLC", pair="OMGUSD")
    assert (len(page["OMGUSD"]), page["OMGUSD"][-1][0], page["last"]) == (720, end_s - 60, end_s - 60)
    assert ask("Trades", pair="OMGUSD", since=end_s) == {"OMGUSD": [], "last": str(end_s * 10**9)}
    newest = ask("Trades", pair="OMGUSD")["OMGUSD"]
    assert len(newest) == 1000 and end_s - 1 <= newest[-1][2] < end_s
    assert ask("AssetPairs")["OMGUSD"]["status"] == "cancel_only"
    assert ask("Ticker", pair="OMGUSD")["OMGUSD"]["c"][0] == page["OMGUSD"][-1][4]


def test_a_dark_pool_has_prices_of_its_own() -> None:
    lit, dark = (ask("Trades", pair=f"XXBTZUSD{suffix}", since=1_600_000_000) for suffix in ("", ".d"))
    assert lit["XXBTZUSD"][0][:3] != dark["XXBTZUSD.d"][0][:3]
    assert list(PAIRS).index("XXBTZUSD.d") == list(PAIRS).index("XXBTZUSD") + 1
    assert "wsname" not in ask("AssetPairs")["XXBTZUSD.d"]


@pytest.mark.parametrize(
    ("coins", "names"),
    [
        ("BTC/USD", ("XXBTZUSD", "XBTUSD", "XBT/USD", "XXBT", "ZUSD")),
        ("BTC/USDT", ("XBTUSDT", "XBTUSDT", "XBT/USDT", "XXBT", "USDT")),
        ("ETH/BTC", ("XETHXXBT", "ETHXBT", "ETH/XBT", "XETH", "XXBT")),
        ("DOGE/USD", ("XDGUSD", "XDGUSD", "XDG/USD", "XXDG", "ZUSD")),
        ("ETH2.S/ETH", ("ETH2.SETH", "ETH2.SETH", "ETH2.S/ETH", "ETH2.S", "XETH")),
    ],
)
def test_names(coins: str, names: tuple[str, ...]) -> None:
    [pair] = [pair for pair in LIT if pair.source.instrument.symbol == coins]
    assert (pair.key, pair.altname, pair.wsname, pair.base, pair.quote) == names
    assert {kraken_query.find(name, VENUE) for name in names[:3]} == {pair}


@pytest.mark.parametrize(
    ("path", "query", "error"),
    [
        ("OHLC", {"pair": "NOPE"}, "EQuery:Unknown asset pair"),
        ("OHLC", {}, "EGeneral:Invalid arguments"),
        ("OHLC", {"pair": "XBTUSD", "interval": "3"}, "EGeneral:Invalid arguments:interval"),
        ("OHLC", {"pair": "XBTUSD", "interval": "1m"}, "EGeneral:Invalid arguments:interval"),
        ("Trades", {"pair": "XBTUSD", "since": "yesterday"}, "EGeneral:Invalid arguments:since"),
        ("Trades", {"pair": "XBTUSD", "count": "0"}, "EGeneral:Invalid arguments:count"),
        ("Ticker", {"pair": "XBTUSD,NOPE"}, "EQuery:Unknown asset pair"),
    ],
)
def test_refusals(path: str, query: dict[str, str], error: str) -> None:
    with pytest.raises(SimRefusal) as refused:
        kraken.DIALECT.answer(f"/0/public/{path}", query, VENUE, NOW_NS)
    assert (refused.value.answer.status, refused.value.answer.body) == (200, {"error": [error]})


# Unmodified ccxt


async def test_ccxt_loads_the_markets(exchange: Exchange) -> None:
    client = exchange.kraken
    markets = await client.load_markets()
    assert {pair.source.instrument.symbol for pair in LIT} == set(markets)
    assert {"BTC/USD", "DOGE/USD", "LUNA/USDT", "ETH2.S/ETH"} <= set(markets)
    assert [symbol for symbol, market in markets.items() if not market["active"]] == ["LUNA/USDT", "OMG/USD"]
    assert markets["ETH/USD"]["precision"]["price"] == 0.01
    # ccxt knows two markets by one symbol and takes the last, so whoever asks by symbol gets the dark pool.
    assert [client.markets_by_id[id][0]["symbol"] for id in ("XXBTZUSD", "XXBTZUSD.d")] == ["BTC/USD"] * 2
    assert markets["BTC/USD"]["id"] == "XXBTZUSD.d"


async def test_ccxt_calls(exchange: Exchange) -> None:
    client = exchange.kraken
    assert await client.fetch_time() == NOW_S * 1000
    assert (await client.fetch_status())["status"] == "ok"
    candles = await client.fetch_ohlcv("DOGE/USD", "1m")
    assert candles == await exchange.client.fetch_ohlcv("DOGE/USD", "1m", candles[0][0], 1000)
    assert len(candles) == 721
    old = await client.fetch_ohlcv("DOGE/USD", "1m", SINCE, 1000)
    assert old == candles  # no error, and nothing of what was asked
    ticker = await client.fetch_ticker("DOGE/USD")
    assert ticker["last"] == candles[-1][4]
    assert ticker["low"] <= ticker["vwap"] <= ticker["high"]
    assert len(await client.fetch_tickers()) == len(client.markets)


async def test_ccxt_trades_are_the_ones_of_the_other_dialect(exchange: Exchange) -> None:
    ours = await exchange.kraken.fetch_trades("ETH/USD", SINCE, 500)
    theirs = await exchange.client.fetch_trades("ETH/USD", SINCE, 500)
    same = ("timestamp", "price", "amount", "side")
    assert [[trade[name] for name in same] for trade in ours] == [[trade[name] for name in same] for trade in theirs]
    assert [trade["id"] for trade in ours] == [str(trade["info"]["f"]) for trade in theirs]


Spoiled = Callable[[Rows], Rows]


def at(place: int, values: dict[int, Any]) -> Spoiled:
    return lambda rows: [
        *rows[:place],
        [values.get(key, value) for key, value in enumerate(rows[place])],
        *rows[place + 1 :],
    ]


def nothing(rows: Rows) -> Rows:
    return []


FAULTS: dict[Kind, Spoiled | type[Exception]] = {
    "slow_down": ccxt_errors.DDoSProtection,
    "unavailable": ccxt_errors.ExchangeNotAvailable,
    "http_429": ccxt_errors.RateLimitExceeded,
    "http_418": ccxt_errors.DDoSProtection,
    "http_403": ccxt_errors.ExchangeNotAvailable,
    "http_404": ccxt_errors.ExchangeNotAvailable,
    "delisted": ccxt_errors.ExchangeNotAvailable,  # in the words of Binance
    "http_451": ccxt_errors.ExchangeNotAvailable,
    "http_500": ccxt_errors.ExchangeNotAvailable,
    "http_502": ccxt_errors.ExchangeNotAvailable,
    "http_503": ccxt_errors.ExchangeNotAvailable,
    "http_504": ccxt_errors.RequestTimeout,
    "hang": ccxt_errors.NetworkError,
    "stall": ccxt_errors.ExchangeError,  # not one of ccxt's errors that are worth another try
    "reset": ccxt_errors.NetworkError,
    "drip": list,
    "cut_json": nothing,
    "html": nothing,
    "text": nothing,
    "null": nothing,
    "empty": nothing,
    "other_symbol": nothing,
    "short": lambda rows: rows[:361],
    "outside": lambda rows: rows,
    "hole": lambda rows: rows[:355] + rows[365:],
    "drop_first": lambda rows: rows[1:],
    "drop_last": lambda rows: rows[:-1],
    "duplicate_tail": lambda rows: sorted(rows + rows[-2:]),
    "reversed": list,  # ccxt sorts
    "null_fields": at(360, {4: None, 5: None}),
    "off_grid": lambda rows: at(360, {0: rows[360][0] + 1000})(rows),
    "low_above_high": lambda rows: at(360, {3: round(rows[360][2] * 1.01, 8)})(rows),
    "unfinished": lambda rows: [*rows, rows[-1]],
    "double": lambda rows: rows[:361] + rows[360:],
    "double_other": lambda rows: rows[:361] + at(0, {4: rows[360][2]})(rows[360:]),
    "unreadable": lambda rows: [[None] * 6, *rows[:360], *rows[361:]],  # ccxt sorts
    "newest": lambda rows: rows[360:],
    "exclusive": lambda rows: rows[1:],
    "running": list,  # the last candle is not half over
    "edited": lambda rows: at(360, {4: rows[360][2]})(rows),
}


def test_every_fault_is_in_the_table() -> None:
    assert set(FAULTS) == set(get_args(Kind)) - set(REPLICAS), "those of replicas are in test_outages.py"


@pytest.mark.parametrize(("kind", "outcome"), FAULTS.items())
async def test_faults_reach_ccxt(exchange: Exchange, kind: Kind, outcome: Any) -> None:
    client = exchange.kraken
    good = await client.fetch_ohlcv("ETH/USD", "1m")
    await exchange.faults({"kind": kind, "hang_s": 0, "drip_s": 1e-9})
    if isinstance(outcome, type) and issubclass(outcome, Exception):
        with pytest.raises(outcome):
            await client.fetch_ohlcv("ETH/USD", "1m")
    elif kind == "drip":  # a small answer: it comes byte by byte
        await exchange.faults({"kind": kind, "drip_s": 1e-9})
        assert len(await client.fetch_trades("ETH/USD", None, 1)) == 1
    else:
        bad = await client.fetch_ohlcv("ETH/USD", "1m")
        if kind == "outside":
            assert [row[0] for row in bad[:2]] == [good[0][0] - 120_000, good[0][0] - 60_000]
            bad = bad[2:]
        assert bad == outcome(good)
    assert list((await exchange.stats())["faults"]) == [kind]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("slow_down", {"error": ["EAPI:Rate limit exceeded"], "result": {}}),
        ("unavailable", {"error": ["EService:Unavailable"]}),
        ("empty", {"error": [], "result": {"XETHZUSD": [], "last": "1577836800000000000"}}),
    ],
)
async def test_bodies_in_its_own_words(exchange: Exchange, kind: str, body: Any) -> None:
    await exchange.faults({"kind": kind})
    async with exchange.http.get(f"{exchange.url}/0/public/Trades?pair=ETHUSD&since=1577836800") as answer:
        assert (answer.status, await answer.json()) == (200, body)


async def test_row_faults_leave_the_word_where_to_go_on(exchange: Exchange) -> None:
    """``last`` is that of the whole page, so whoever trusts it loses the trades that lack before it."""

    async def page() -> Any:
        return (await exchange.get("/0/public/Trades", pair="XETHZUSD", since="1577836800", count=100))["result"]

    good = await page()
    rows, last = good["XETHZUSD"], good["last"]
    expected = {
        "short": rows[:50],
        "hole": rows[:45] + rows[55:],
        "drop_last": rows[:-1],
        "null_fields": [*rows[:50], [None, None, *rows[50][2:]], *rows[51:]],
        "off_grid": rows,
    }
    for kind, left in expected.items():
        await exchange.faults({"kind": kind})
        assert await page() == {"XETHZUSD": left, "last": last}, kind


async def test_rows_before_the_asked_start_are_real_ones(exchange: Exchange) -> None:
    await exchange.faults({"kind": "outside", "size": 3, "count": 1})
    odd, good = [await exchange.get("/0/public/Trades", pair="XETHZUSD", since="1577836800") for _ in range(2)]
    assert odd["result"]["XETHZUSD"][3:] == good["result"]["XETHZUSD"]
    first = good["result"]["XETHZUSD"][0][6]
    assert [row[6] for row in odd["result"]["XETHZUSD"][:3]] == [first - 3, first - 2, first - 1]
    assert odd["result"]["XETHZUSD"][2][2] < 1_577_836_800


async def test_another_markets_answer_says_whose_it_is(exchange: Exchange) -> None:
    eth, btc = [await exchange.get("/0/public/Trades", pair=pair, since="1577836800") for pair in ("ETHUSD", "XBTUSD")]
    await exchange.faults({"kind": "other_symbol"})
    assert await exchange.get("/0/public/Trades", pair="XBTUSD", since="1577836800") == eth
    assert await exchange.get("/0/public/Trades", pair="ETHUSD", since="1577836800") == btc
    await exchange.faults({"kind": "other_symbol", "other": "XBTUSDT", "symbol": "XETHZUSD"})
    assert "XBTUSDT" in (await exchange.get("/0/public/Trades", pair="ETHUSD", since="1577836800"))["result"]
    assert await exchange.get("/0/public/Trades", pair="XBTUSD", since="1577836800") == btc


async def test_a_span_spoils_the_trades_of_its_time(exchange: Exchange) -> None:
    start_ns = SINCE * 10**6
    await exchange.faults({"kind": "hole", "span": [start_ns + 60 * 10**9, start_ns + 120 * 10**9]})

    async def minutes(since: int) -> set[int]:
        page = await exchange.get("/0/public/Trades", pair="XETHZUSD", since=str(since))
        return {int(row[2] // 60) - SINCE // 60_000 for row in page["result"]["XETHZUSD"]}

    assert await minutes(start_ns) == {0, 2, 3, 4}
    assert await minutes(start_ns + 90 * 10**9) == {2, 3, 4, 5}
    assert await minutes(start_ns + 120 * 10**9) == {2, 3, 4, 5, 6}
