"""Unmodified ccxt, through a venue, against answers in each exchange's real shape."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dexorder_common.model.page import Candle
from dexorder_common.model.periods import MONTH_SECONDS
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS, parse_time
from dexorder_ingestor.exchange.failures import ExchangeFailure, ImpossibleCandle
from dexorder_ingestor.exchange.venue import CcxtSession
from tests.unit.services.ingestor.conftest import MINUTE_NS, minutes
from tests.unit.services.ingestor.exchange.dialects import shapes
from tests.unit.services.ingestor.exchange.dialects.shapes import (
    CANDLES,
    START_MS,
    Desk,
    Query,
    Shape,
    desk,
    kraken_trades,
)
from tests.unit.services.ingestor.exchange.test_venue import Bench

SPAN = minutes(0, 10)
ROWS = [[START_MS + n * 60_000, 2.0 + n, 4.0 + n, 1.0 + n, 3.0 + n, 5.0] for n in range(10)]


@asynccontextmanager
async def opened(url: str, ccxt_id: str, **settings: Any) -> AsyncIterator[tuple[Bench, CcxtSession]]:
    bench = Bench(url, settings, ccxt_id=ccxt_id)
    try:
        async with bench.venue.session() as session:
            yield bench, session
    finally:
        await bench.venue.close()
        bench.close()


@asynccontextmanager
async def exchange(shape: Shape, **settings: Any) -> AsyncIterator[tuple[Desk, Bench, CcxtSession]]:
    async with (
        desk(shape.path, {**shape.fixed, shape.path: shape.body(ROWS)}) as at,
        opened(at.url, shape.ccxt, **settings) as (bench, session),
    ):
        yield at, bench, session


async def candles(bench: Bench, session: CcxtSession, symbol: str = "BTC/USDT") -> list[Candle]:
    timeframe = await bench.venue.timeframe(session, symbol, 60)
    found, fetched_ns = await session.candles(symbol, timeframe, 60, SPAN)
    assert fetched_ns == bench.clock.wall_ns()
    return found


def numbers(found: list[Candle]) -> list[list[float]]:
    return [[c.open_ns // 1_000_000, c.open, c.high, c.low, c.close, c.volume] for c in found]


@pytest.mark.parametrize("shape", CANDLES, ids=lambda s: s.ccxt)
async def test_candles_come_through_and_the_window_is_asked_for_exactly(shape: Shape) -> None:
    async with exchange(shape) as (at, bench, session):
        assert numbers(await candles(bench, session)) == ROWS
        assert at.asked == [shape.asked]


BAD: list[Any] = [
    "",
    "null",
    "7",
    '"text"',
    "<html><title>Down</title></html>",
    '{"code":"0","data":[["16987',
    "{}",
    (502, {"message": "upstream"}),
    (503, "<html></html>"),
]


@pytest.mark.parametrize("shape", CANDLES, ids=lambda s: s.ccxt)
async def test_what_is_no_answer_is_asked_for_again(shape: Shape) -> None:
    bad = BAD if shape in (shapes.BINANCE, shapes.GATE) else [*BAD, "[]"]  # these mean it
    async with exchange(shape) as (at, bench, session):
        for body in bad:
            at.first.append(body)
            at.asked.clear()
            assert numbers(await candles(bench, session)) == ROWS, body
            assert len(at.asked) == 2, body


@pytest.mark.parametrize("shape", [s for s in CANDLES if s is not shapes.BITGET], ids=lambda s: s.ccxt)
async def test_rows_ccxt_would_drop_in_silence_make_a_bad_answer(shape: Shape) -> None:
    before = [START_MS - 60_000, *ROWS[0][1:]]
    async with exchange(shape) as (at, bench, session):
        at.first.append(shape.body([before, *ROWS]))
        assert numbers(await candles(bench, session)) == ROWS
        assert bench.count("bad_answers", kind="window") == 1


async def test_rows_before_the_window_are_left_out_where_ccxt_queries_them_and_none_before_them() -> None:
    async with exchange(shapes.BITGET) as (at, bench, session):
        earlier = [[START_MS - n * 60_000, *ROWS[0][1:]] for n in range(190, 0, -1)]
        at.first.append(shapes.BITGET.body([*earlier, *ROWS]))
        assert numbers(await candles(bench, session)) == ROWS
        assert bench.count("bad_answers", kind="window") == 0
        for row in ([START_MS - 191 * 60_000, *ROWS[0][1:]], [START_MS + 600_000, *ROWS[0][1:]]):
            at.first.append(shapes.BITGET.body([row]))
            assert numbers(await candles(bench, session)) == ROWS
        assert bench.count("bad_answers", kind="window") == 2


async def test_answer_for_another_market_is_not_taken() -> None:
    async with exchange(shapes.BYBIT) as (at, bench, session):
        at.first.append(shapes.BYBIT.answer(ROWS, "ETHUSDT"))
        assert numbers(await candles(bench, session)) == ROWS
        assert bench.count("bad_answers", kind="other_symbol") == 1
        assert bench.venue.limits.names_symbol


CODES: list[tuple[Shape, Any, float]] = [
    (shapes.BINANCE, (503, {"code": -1008, "msg": "Server is currently overloaded with other requests."}), 5),
    (shapes.BINANCE, (400, {"code": -1016, "msg": "This service is no longer available."}), 0),
    (shapes.OKX, (503, {"code": "50001", "msg": "Service temporarily unavailable", "data": []}), 0),
    (shapes.OKX, {"code": "50011", "msg": "Too Many Requests", "data": []}, 5),
    (shapes.BYBIT, {"retCode": 10006, "retMsg": "Too many visits!", "result": {}}, 5),
    (shapes.BYBIT, {"retCode": 10016, "retMsg": "System error. Please try again later.", "result": {}}, 0),
    (shapes.BITGET, {"code": "40015", "msg": "System is abnormal, please try again later", "data": None}, 0),
    (shapes.COINBASE, (500, {"error": "internal_server_error", "error_description": "sorry"}), 0),
]


@pytest.mark.parametrize(("shape", "body", "pause"), CODES, ids=lambda v: v.ccxt if isinstance(v, Shape) else "")
async def test_code_that_heals_is_asked_again_after_its_pause(shape: Shape, body: Any, pause: float) -> None:
    async with exchange(shape, ban_seconds=5) as (at, bench, session):
        at.first.append(body)
        assert numbers(await candles(bench, session)) == ROWS
        assert sum(bench.slept) == pytest.approx(pause, abs=0.1)


@pytest.mark.parametrize("status", [403, 404, 451])
@pytest.mark.parametrize("shape", CANDLES, ids=lambda s: s.ccxt)
async def test_status_that_rarely_heals_is_tried_a_few_times(shape: Shape, status: int) -> None:
    async with exchange(shape, refused_attempts=2) as (at, bench, session):
        at.first.extend([(status, "<html></html>")] * 3)
        with pytest.raises(ExchangeFailure, match=f"in 2 attempts.* {status} "):
            await candles(bench, session)


async def test_refusal_of_each_exchange_is_not_repeated() -> None:
    for shape, body in (
        (shapes.OKX, {"code": "51001", "msg": "Instrument ID does not exist", "data": []}),
        (shapes.BYBIT, {"retCode": 10001, "retMsg": "params error: symbol invalid", "result": {}}),
        (shapes.BINANCE, (400, {"code": -1121, "msg": "Invalid symbol."})),
    ):
        async with exchange(shape) as (at, bench, session):
            at.first.append(body)
            with pytest.raises(ExchangeFailure, match="refuses"):
                await candles(bench, session)


async def test_exchange_without_candles_is_refused_before_any_call() -> None:
    async with opened("http://127.0.0.1:9", "coinspot") as (bench, session):
        with pytest.raises(
            ExchangeFailure, match="SIM does not offer candle history: ccxt's coinspot can't fetch candles"
        ):
            await bench.venue.timeframe(session, "BTC/AUD", 60)


# ---- Kraken

START_S = START_MS // 1000
MARKET, SYMBOL = "XXBTZUSD", "BTC/USD"


def trade(at_s: float, number: int, price: str = "30243.40000", amount: str = "0.34507674") -> list[Any]:
    return [price, amount, START_S + at_s, "b", "m", "", number]


TRADES = [
    trade(-3.5, 1),
    trade(0.0, 2, "10.0", "1.0"),
    trade(59.9999, 3, "12.0", "0.5"),
    *(trade(60.125, 4 + n, "11.0", "0.001") for n in range(1500)),
    trade(61.25, 1504, "11.5", "1.0"),
    trade(599.0, 1505, "9.0", "0.25"),
    trade(600.0, 1506),
]
MADE = [
    [START_MS, 10.0, 12.0, 10.0, 12.0, 1.5],
    [START_MS + 60_000, 11.0, 11.5, 11.0, 11.5, 2.5],
    [START_MS + 540_000, 9.0, 9.0, 9.0, 9.0, 0.25],
]
CROWDED = TRADES
SPREAD = [[*r[:2], r[2] + (n - 3) * 1e-5 if 3 <= n < 1503 else r[2], *r[3:]] for n, r in enumerate(TRADES)]


@asynccontextmanager
async def kraken(rows: list[list[Any]], **settings: Any) -> AsyncIterator[tuple[Desk, Bench, CcxtSession]]:
    def answer(query: Query) -> Any:
        assert query["pair"] == MARKET, "the dark pool is another market"
        return kraken_trades(rows, query)

    async with (
        desk(shapes.KRAKEN_TRADES, {**shapes.KRAKEN_FIXED, shapes.KRAKEN_TRADES: answer}) as at,
        opened(at.url, "kraken", **settings) as (bench, session),
    ):
        yield at, bench, session


async def test_kraken_history_is_made_from_trades_page_by_page() -> None:
    async with kraken(SPREAD) as (at, bench, session):
        found = await candles(bench, session, SYMBOL)
        assert numbers(found) == MADE
        assert [c.trade_count for c in found] == [2, 1501, 1]
        assert [q["count"] for q in at.asked] == ["1000"] * 2
        assert int(at.asked[0]["since"]) == SPAN.start_ns - MINUTE_NS
        assert int(at.asked[1]["since"]) == pytest.approx(int(SPREAD[999][2] * 1e6) * 1000, abs=2_000)
        assert await candles(bench, session, SYMBOL) == found
        assert bench.count("bad_answers", kind="hole") == 0


async def test_kraken_moment_with_more_trades_than_an_answer_is_an_error() -> None:
    async with kraken(CROWDED, attempts=3) as (at, bench, session):
        with pytest.raises(ExchangeFailure, match="1000 trades or more at 2023-11-01T00:01:00Z"):
            await candles(bench, session, SYMBOL)
        assert len(at.asked) < 10


KRAKEN_BAD: list[Any] = [
    *BAD,
    "[]",
    {"error": [], "result": {}},
    {"error": [], "result": {MARKET: [], "last": "0"}},
    {"error": [], "result": {"XETHZUSD": TRADES[:3], "last": "1698796859999900000"}},
    {"error": [], "result": {MARKET: "none", "last": "1698796859999900000"}},
    {"error": [], "result": {MARKET: [["x"]], "last": "1698796859999900000"}},
    {"error": ["EService:Unavailable"]},
    {"error": ["EService:Throttled"]},
    {"error": ["EAPI:Rate limit exceeded"]},
]


async def test_kraken_answer_that_is_none_is_asked_for_again() -> None:
    async with kraken(SPREAD) as (at, bench, session):
        for place, body in enumerate(KRAKEN_BAD):
            at.first.extend([*[at.answers[at.path]] * (place % 2), body])
            at.asked.clear()
            assert numbers(await candles(bench, session, SYMBOL)) == MADE, body
            assert len(at.asked) == 3, body


async def test_kraken_tells_how_long_to_stay_away() -> None:
    async with kraken(SPREAD) as (at, bench, session):
        await bench.venue.timeframe(session, SYMBOL, 60)
        until_s = bench.clock.wall_ns() // SECOND_NS + 9
        at.first.append({"error": [f"EService: Throttled: {until_s}"]})
        assert numbers(await candles(bench, session, SYMBOL)) == MADE
        assert sum(bench.slept) == pytest.approx(9, abs=1)


async def test_kraken_page_that_goes_on_too_late_or_ends_too_early_loses_nothing() -> None:
    def late(query: Query) -> Any:
        answer = kraken_trades(SPREAD, query)
        del answer["result"][MARKET][:2]
        return answer

    def early(query: Query) -> Any:
        answer = kraken_trades(SPREAD, query)
        del answer["result"][MARKET][3:]
        return answer

    async with kraken(SPREAD) as (at, bench, session):
        for bodies in ([early], [early, late], [early, late, early, late, early]):
            at.first.extend(bodies)
            assert numbers(await candles(bench, session, SYMBOL)) == MADE


async def test_kraken_trades_that_always_end_too_early_are_no_candles() -> None:
    def early(query: Query) -> Any:
        return kraken_trades([r for r in SPREAD if r[6] <= 1000 or int(query["since"]) >= SPAN.end_ns], query)

    async with kraken(SPREAD, attempts=4) as (at, bench, session):
        at.answers[shapes.KRAKEN_TRADES] = early
        with pytest.raises(ExchangeFailure, match="although later trades exist"):
            await candles(bench, session, SYMBOL)


async def test_kraken_newest_trades_are_believed_after_answers_that_agree() -> None:
    rows = SPREAD[:-1]
    async with kraken(rows, hole_answers=3, hole_spacing_seconds=2) as (at, bench, session):
        assert numbers(await candles(bench, session, SYMBOL)) == MADE
        assert [int(q["since"]) == SPAN.end_ns for q in at.asked] == [False, False, False, True, False, False]
        assert bench.slept == [2, 2, 2]


async def test_kraken_impossible_trade_spoils_one_candle() -> None:
    rows = [[*r] for r in SPREAD]
    rows[2][0] = "0.00000"
    async with kraken(rows) as (_, bench, session):
        with pytest.raises(
            ImpossibleCandle, match=r"keeps answering trade \['0\.00000', .* at 2023-11-01T00:00:59Z"
        ) as e:
            await candles(bench, session, SYMBOL)
        assert e.value.opens == (SPAN.start_ns,)
        found, _ = await session.candles(SYMBOL, "1m", 60, SPAN, e.value.opens)
        assert numbers(found) == MADE[1:]


async def test_kraken_has_every_period_months_too() -> None:
    days = ["2023-08-31T23:59:59", "2023-09-01", "2023-09-30T23:59:59", "2023-10-01", "2023-11-01"]
    rows = [["1.0", "1.0", parse_time(day) / SECOND_NS, "b", "m", "", n] for n, day in enumerate(days)]
    async with kraken(rows) as (_, bench, session):
        timeframe = await bench.venue.timeframe(session, SYMBOL, MONTH_SECONDS)
        window = TimeRange(parse_time("2023-09-01"), parse_time("2023-11-01"))
        found, _ = await session.candles(SYMBOL, timeframe, MONTH_SECONDS, window)
        opens = [(c.open_ns, c.trade_count) for c in found]
        assert opens == [(parse_time("2023-09-01"), 2), (parse_time("2023-10-01"), 1)]
