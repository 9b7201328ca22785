"""Instruments of ccxt's markets: its own parsers read raw markets of several exchanges, others are in its structure."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import ccxt
import pytest
from ccxt.base.decimal_to_precision import DECIMAL_PLACES, SIGNIFICANT_DIGITS, TICK_SIZE
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.model.instrument import InstrumentKind, InstrumentList, ListedInstrument
from dexorder_common.model.times import MAX_TIME_NS
from dexorder_common.rpc.history_messages import decode_instrument, encode_instrument
from dexorder_ingestor.exchange.dialect import DelistingFact
from dexorder_ingestor.exchange.dialects import DIALECTS, dialect_of
from dexorder_ingestor.exchange.listing import list_instruments
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as pb
from dexorder_relay.requests.instruments import check

SPOT, SWAP, FUTURE, OPTION = InstrumentKind
MS = 1_000_000
EXPIRY_MS, LISTED_MS, DELISTED_MS = 1_766_736_000_000, 1_569_398_400_000, 1_686_819_600_000


@cache
def client(ccxt_id: str) -> Any:
    pairs: dict[str, Any] = {
        "crossMarginPairsData": [],
        "isolatedMarginPairsData": [],
    }  # which Binance's client fetches first
    return getattr(ccxt, ccxt_id)({"options": pairs})


def listed(ccxt_id: str, market: Any, *, mode: int | None = None) -> ListedInstrument:
    mode = client(ccxt_id).precisionMode if mode is None else mode
    (found,) = list_instruments("X", [market], mode, dialect_of(ccxt_id).quirks.delisting)
    return found


def binance(symbol: str, base: str, quote: str, tick: str, lot: str, **more: Any) -> Any:
    filters = [
        {"filterType": "PRICE_FILTER", "minPrice": tick, "maxPrice": "1000000", "tickSize": tick},
        {"filterType": "LOT_SIZE", "minQty": lot, "maxQty": "9000", "stepSize": lot},
    ]
    raw = {"symbol": symbol, "status": "TRADING", "baseAsset": base, "quoteAsset": quote, "filters": filters, **more}
    return client("binance").parse_market(raw)


def binance_future(symbol: str, base: str, quote: str, tick: str, lot: str, margin: str, **more: Any) -> Any:
    fields = {"marginAsset": margin, "contractType": "PERPETUAL", "onboardDate": LISTED_MS, **more}
    return binance(symbol, base, quote, tick, lot, **fields)


def okx(**more: Any) -> Any:
    raw = {"baseCcy": "", "quoteCcy": "", "settleCcy": "", "ctVal": "", "expTime": "", "lever": "", "state": "live"}
    return client("okx").parse_market({**raw, "uly": "", "stk": "", "optType": "", **more})


def gate(**more: Any) -> Any:
    raw = {"name": "BTC_USDT", "quanto_multiplier": "0.0001", "order_price_round": "0.1", "create_time": 1_546_905_600}
    return client("gate").parse_contract_market({**raw, "order_size_min": 1, "leverage_max": "100", **more}, "usdt")


def structure(symbol: str, **more: Any) -> Any:
    """Return a market in ccxt's structure."""
    base, _, rest = symbol.partition("/")
    return {"id": symbol, "symbol": symbol, "base": base, "quote": rest.partition(":")[0], "type": "spot", **more}


def expected(ticker: str, kind: InstrumentKind | None, exchange_id: str, **more: Any) -> ListedInstrument:
    base, _, rest = ticker.partition(".")[0].partition("/")
    return ListedInstrument(
        ticker, more.pop("active", True), kind, base, rest.partition(":")[0], exchange_id=exchange_id, **more
    )


REAL = [
    pytest.param(
        "binance",
        lambda: binance("BTCUSDT", "BTC", "USDT", "0.01000000", "0.00001000"),
        expected("BTC/USDT.X", SPOT, "BTCUSDT", tick_size=0.01, lot_size=1e-5),
        id="Binance spot, which tells no times",
    ),
    pytest.param(
        "binance",
        lambda: binance_future("BTCUSDT", "BTC", "USDT", "0.10", "0.001", "USDT", deliveryDate=4133404800000),
        expected(
            *("BTC/USDT:USDT.X", SWAP, "BTCUSDT"),
            settle="USDT",
            tick_size=0.1,
            lot_size=0.001,
            contract_size=1.0,
            listed_ns=LISTED_MS * MS,
        ),
        id="Binance perpetual, whose date of delivery in 2100 is none",
    ),
    pytest.param(
        "binance",
        lambda: binance_future(
            *("OMGUSDT", "OMG", "USDT", "0.001", "0.1", "USDT"), deliveryDate=DELISTED_MS, status="SETTLING"
        ),
        expected(
            *("OMG/USDT:USDT.X", SWAP, "OMGUSDT"),
            settle="USDT",
            tick_size=0.001,
            lot_size=0.1,
            contract_size=1.0,
            active=False,
            listed_ns=LISTED_MS * MS,
            delisted_ns=DELISTED_MS * MS,
        ),
        id="Binance perpetual that was delisted",
    ),
    pytest.param(
        "binance",
        lambda: binance_future(
            *("BTCUSD_251226", "BTC", "USD", "0.1", "1", "BTC"),
            contractType="CURRENT_QUARTER",
            deliveryDate=EXPIRY_MS,
            contractSize=100,
        ),
        expected(
            *("BTC/USD:BTC-251226.X", FUTURE, "BTCUSD_251226"),
            settle="BTC",
            tick_size=0.1,
            lot_size=1.0,
            contract_size=100.0,
            expiry_ns=EXPIRY_MS * MS,
            listed_ns=LISTED_MS * MS,
        ),
        id="Binance inverse dated future: an expiry, and no delisting",
    ),
    pytest.param(
        "okx",
        lambda: okx(
            instId="BTC-USDT",
            instType="SPOT",
            baseCcy="BTC",
            quoteCcy="USDT",
            tickSz="0.1",
            lotSz="0.00000001",
            listTime="1548133413000",
            expTime=str(DELISTED_MS),
        ),
        expected(
            *("BTC/USDT.X", SPOT, "BTC-USDT"),
            tick_size=0.1,
            lot_size=1e-8,
            listed_ns=1_548_133_413_000 * MS,
            delisted_ns=DELISTED_MS * MS,
        ),
        id="OKX spot market with a scheduled delisting",
    ),
    pytest.param(
        "okx",
        lambda: okx(
            instId="BTC-USD-SWAP",
            instType="SWAP",
            uly="BTC-USD",
            settleCcy="BTC",
            ctVal="100",
            tickSz="0.1",
            lotSz="1",
            listTime="1540978980000",
        ),
        expected(
            *("BTC/USD:BTC.X", SWAP, "BTC-USD-SWAP"),
            settle="BTC",
            tick_size=0.1,
            lot_size=1.0,
            contract_size=100.0,
            listed_ns=1_540_978_980_000 * MS,
        ),
        id="OKX inverse swap",
    ),
    pytest.param(
        "okx",
        lambda: okx(
            instId="BTC-USD-251226-50000-C",
            instType="OPTION",
            uly="BTC-USD",
            settleCcy="BTC",
            ctVal="1",
            tickSz="0.0005",
            lotSz="1",
            stk="50000",
            optType="C",
            expTime=str(EXPIRY_MS),
            listTime="1631262612280",
            contTdSwTime="1631262812280",
        ),
        expected(
            *("BTC/USD:BTC-251226-50000-C.X", OPTION, "BTC-USD-251226-50000-C"),
            settle="BTC",
            tick_size=0.0005,
            lot_size=1.0,
            contract_size=1.0,
            expiry_ns=EXPIRY_MS * MS,
            listed_ns=1_631_262_812_280 * MS,
        ),
        id="OKX option",
    ),
    pytest.param(
        "gate",
        gate,
        expected(
            *("BTC/USDT:USDT.X", SWAP, "BTC_USDT"),
            settle="USDT",
            tick_size=0.1,
            lot_size=1.0,
            contract_size=0.0001,
            listed_ns=1_546_905_600_000 * MS,
        ),
        id="Gate perpetual, of whose end its module knows nothing",
    ),
    pytest.param(
        "bybit",
        lambda: structure(
            "OMG/USDT:USDT",
            id="OMGUSDT",
            type="swap",
            settle="USDT",
            contractSize=1,
            active=False,
            precision={"price": 0.0005, "amount": 0.1},
            created=LISTED_MS,
            expiry=None,
            info={"symbol": "OMGUSDT", "status": "Closed", "deliveryTime": str(DELISTED_MS)},
        ),
        expected(
            *("OMG/USDT:USDT.X", SWAP, "OMGUSDT"),
            settle="USDT",
            tick_size=0.0005,
            lot_size=0.1,
            contract_size=1.0,
            active=False,
            listed_ns=LISTED_MS * MS,
            delisted_ns=DELISTED_MS * MS,
        ),
        id="Bybit swap that was delisted",
    ),
    pytest.param(
        "bybit",
        lambda: structure(
            "BTC/USDT:USDT",
            id="BTCUSDT",
            type="swap",
            settle="USDT",
            contractSize=1,
            precision={"price": 0.1, "amount": 0.001},
            created=1_584_230_400_000,
            info={"symbol": "BTCUSDT", "status": "Trading", "deliveryTime": "0"},
        ),
        expected(
            *("BTC/USDT:USDT.X", SWAP, "BTCUSDT"),
            settle="USDT",
            tick_size=0.1,
            lot_size=0.001,
            contract_size=1.0,
            listed_ns=1_584_230_400_000 * MS,
        ),
        id="Bybit swap, whose time of delivery is 0",
    ),
    pytest.param(
        "kraken",
        lambda: structure(
            "BTC/USD",
            id="XXBTZUSD",
            contractSize=None,
            expiry=None,
            created=None,
            precision={"price": 0.1, "amount": 1e-8},
            info={"altname": "XBTUSD", "status": "online"},
        ),
        expected("BTC/USD.X", SPOT, "XXBTZUSD", tick_size=0.1, lot_size=1e-8),
        id="Kraken spot",
    ),
    pytest.param(
        "bitfinex",
        lambda: structure(
            "BTC/USDT:USDT",
            id="tBTCF0:USTF0",
            type="swap",
            settle="USDT",
            contractSize=1.0,
            precision={"price": 5, "amount": 8},
            info=["BTCF0:USTF0", [None, None]],
        ),
        expected("BTC/USDT:USDT.X", SWAP, "tBTCF0:USTF0", settle="USDT", contract_size=1.0),
        id="Bitfinex: significant digits are no steps",
    ),
]


@pytest.mark.parametrize(("ccxt_id", "market", "found"), REAL)
def test_markets_of_real_exchanges(ccxt_id: str, market: Any, found: ListedInstrument) -> None:
    assert listed(ccxt_id, market()) == found


@pytest.mark.parametrize(
    ("mode", "price", "tick"),
    [
        (TICK_SIZE, 0.25, 0.25),
        (TICK_SIZE, 5, 5.0),
        *((TICK_SIZE, bad, None) for bad in (0, 0.0, -1, -0.1, math.nan, math.inf, 10**400, None, True, "0.1", [1])),
        (DECIMAL_PLACES, 2, 0.01),
        (DECIMAL_PLACES, 8.0, 1e-8),
        (DECIMAL_PLACES, 0, 1.0),
        (DECIMAL_PLACES, -2, 100.0),
        *((DECIMAL_PLACES, bad, None) for bad in (2.5, math.nan, math.inf, 10**400, 400, None, True, "2")),
        *((SIGNIFICANT_DIGITS, digits, None) for digits in (5, 0.1, None)),
        (99, 0.1, None),
    ],
)
def test_steps_by_precision_mode(mode: int, price: Any, tick: float | None) -> None:
    market = structure("A/B", precision={"price": price, "amount": price})
    found = listed("kraken", market, mode=mode)
    assert (found.tick_size, found.lot_size) == (tick, tick)


@pytest.mark.parametrize(
    ("given_ms", "time_ns"),
    [
        (1, MS),
        (1_766_736_000_000.0, EXPIRY_MS * MS),
        (MAX_TIME_NS // MS, MAX_TIME_NS // MS * MS),
        *((bad, None) for bad in (MAX_TIME_NS // MS + 1, 0, -1, 1.5, math.nan, math.inf, None, True, "1", 10**400)),
    ],
)
def test_times_are_within_64_bits(given_ms: Any, time_ns: int | None) -> None:
    dated = listed("kraken", structure("A/B:B-251226", type="future", expiry=given_ms, created=given_ms))
    assert (dated.expiry_ns, dated.listed_ns) == (time_ns, time_ns)


@pytest.mark.parametrize(
    ("raw", "time_ns"),
    [
        (DELISTED_MS, DELISTED_MS * MS),
        (str(DELISTED_MS), DELISTED_MS * MS),
        *((bad, None) for bad in ("7", 7, "0", "-1", "", None, "soon", "9" * 19, "9" * 9_999, "١٢", True, 1.5, [1])),
    ],
)
def test_time_of_a_delisting(raw: Any, time_ns: int | None) -> None:
    fact = DelistingFact("ends", never="7")
    (found,) = list_instruments("X", [structure("A/B", info={"ends": raw})], TICK_SIZE, fact)
    assert found.delisted_ns == time_ns


@pytest.mark.parametrize("info", [None, [], {}, "ends"])
def test_raw_markets_without_a_time_of_delisting(info: Any) -> None:
    (found,) = list_instruments("X", [structure("A/B", info=info)], TICK_SIZE, DelistingFact("ends"))
    assert found.delisted_ns is None


@pytest.mark.parametrize(
    ("kind", "expiry_ns", "contract_size"),
    [("swap", None, 10.0), ("spot", None, None), ("future", MS, 10.0), ("option", MS, 10.0), ("index", None, 10.0)],
)
def test_what_a_kind_can_not_have_is_left_out(kind: str, expiry_ns: int | None, contract_size: float | None) -> None:
    found = listed("kraken", structure("A/B:B", type=kind, expiry=1, contractSize=10))
    assert (found.expiry_ns, found.contract_size) == (expiry_ns, contract_size)
    assert found.kind == (None if kind == "index" else kind)


def test_bare_markets_and_those_that_no_request_can_name() -> None:
    markets: list[dict[str, Any]] = [
        {"symbol": "ETH2.S/ETH", "active": None, "type": None, "precision": None},
        {"symbol": ""},
        {"symbol": "A/B", "id": 7, "base": "", "settle": "x" * 257, "quote": "B", "active": False},
    ]
    assert list_instruments("X", markets, TICK_SIZE) == [
        ListedInstrument("ETH2.S/ETH.X", True),
        ListedInstrument("A/B.X", False, quote="B"),
    ]


def test_kinds_are_those_of_the_wire() -> None:
    names = [f"INSTRUMENT_KIND_{each.name}" for each in InstrumentKind]
    assert pb.InstrumentKind.keys() == ["INSTRUMENT_KIND_UNSPECIFIED", *names]


def test_kind_of_a_newer_relay_is_unknown() -> None:
    newer = pb.Instrument(ticker="A/B.X", kind=99)  # type: ignore[arg-type]
    assert decode_instrument(newer) == ListedInstrument("A/B.X", False)


ANYTHING = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=300) | st.lists(st.none())
FIELDS = ("id", "base", "quote", "settle", "type", "active", "contractSize", "expiry", "created")


@given(
    st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, ANYTHING)),
    st.fixed_dictionaries({}, optional=dict.fromkeys(("price", "amount"), ANYTHING)),
    ANYTHING,
    st.sampled_from([*DIALECTS, "gate"]),
    st.sampled_from([TICK_SIZE, DECIMAL_PLACES, SIGNIFICANT_DIGITS]),
)
def test_whatever_ccxt_says_the_relay_accepts_the_report(
    fields: Any, precision: Any, end: Any, ccxt_id: str, mode: int
) -> None:
    info = dict.fromkeys(("deliveryDate", "deliveryTime", "expTime"), end)
    found = listed(ccxt_id, {**fields, "symbol": "A/B", "precision": precision, "info": info}, mode=mode)
    assert decode_instrument(encode_instrument(found)) == found
    assert check(InstrumentList("X", (found,), 1), now_ns=1).markets == (found,)
