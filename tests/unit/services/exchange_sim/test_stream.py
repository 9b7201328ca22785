from __future__ import annotations

from itertools import islice, takewhile
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dexorder_exchange_sim.candles import CandleRequest, Candles
from dexorder_exchange_sim.instruments import INSTRUMENTS, SimInstrument
from dexorder_exchange_sim.market import SyntheticMarket
from dexorder_exchange_sim.periods import PERIODS, Period
from dexorder_exchange_sim.stream import Merge, Tape, TapeTrade
from dexorder_exchange_sim.trades import RecordedTrades, Trades, TradeSource
from tests.fakes.exchange.filled import Filled
from tests.fakes.exchange.klines import Kline, Sample, klines

NS = 1_000_000_000
START_S = 1_700_000_123
MARKETS = {instrument.id: SyntheticMarket(instrument, seed=7) for instrument in INSTRUMENTS}
QUIET = MARKETS["XMRUSD"]
periods = st.sampled_from([PERIODS[name] for name in ("1s", "1m", "3m", "1h")])


def recorded(random: np.random.Generator, count: int = 300) -> RecordedTrades:
    """Trades of which several share a millisecond, with minutes without any."""
    time_ms = START_S * 1000 + np.cumsum(random.choice([0, 0, 3, 900, 150_000], count))
    ids = 5_000 + np.arange(count)
    price, amount = random.integers(1, 1000, count) / 1e5, random.integers(1, 1000, count) / 1e3
    maker = random.integers(0, 2, count).astype(np.bool_)
    micros = np.ones(count, np.int64)
    return RecordedTrades(SimInstrument("A", "B", listed_s=START_S), Trades(ids, time_ms, micros, price, amount, maker))


RECORDED = recorded(np.random.default_rng(3))
sources = st.sampled_from([MARKETS["BTCUSDT"], MARKETS["DOGEUSD"], QUIET, RECORDED, Filled(QUIET), Filled(RECORDED)])


def rest(source: TradeSource, period: Period, start_s: int, end_s: int) -> list[tuple[Any, ...]]:
    """Candles that open in [start_s, end_s), as REST gives them once they are over."""
    query = CandleRequest(start_s * 1000, end_s * 1000 - 1, 100_000)
    rows = source.candles(period, query, now_ns=(end_s + period.step_s) * NS)
    return list(zip(*(column.tolist() for column in rows.columns()), strict=True))


@given(sources, periods, st.integers(START_S * NS, (START_S + 40_000) * NS))
@example(QUIET, PERIODS["1m"], START_S * NS)
@settings(deadline=None, max_examples=25)
def test_closed_klines_are_the_candles_of_rest_on_time(source: TradeSource, period: Period, after_ns: int) -> None:
    end_s = period.open_s(period.index(after_ns // NS + 40 * min(period.step_s, 600)) + 2)
    found = list(takewhile(lambda event: event[0] <= end_s * NS, klines(Tape(source), period, after_ns)))
    closed = [one for _, one in found if isinstance(one, Kline) and one.closed]
    first_s = period.open_s(period.index(after_ns // NS))
    assert [(k.open_s, k.open, k.high, k.low, k.close, pytest.approx(k.volume, rel=1e-12)) for k in closed] == rest(
        source, period, first_s, end_s
    )
    for due_ns, kline in found:
        assert isinstance(kline, Kline) and after_ns < due_ns and kline.open_s * NS < due_ns <= kline.end_s * NS
        assert kline.closed == (due_ns == kline.end_s * NS)
    assert [due_ns for due_ns, _ in found] == sorted(due_ns for due_ns, _ in found)


@given(sources, st.integers(START_S * NS, (START_S + 7200) * NS))
@settings(deadline=None, max_examples=10)
def test_a_running_kline_is_the_candle_so_far(source: TradeSource, after_ns: int) -> None:
    period = PERIODS["1m"]
    for due_ns, kline in islice(klines(Tape(source), period, after_ns), 20):
        assert isinstance(kline, Kline)
        query = CandleRequest(kline.open_s * 1000, kline.open_s * 1000, 1)
        rows = source.candles(period, query, now_ns=due_ns - 1)
        o, h, low, c, volume = (column.tolist()[0] for column in rows.columns()[1:])
        assert (kline.open, kline.high, kline.low, kline.close) == (o, h, low, c)
        assert kline.volume == pytest.approx(volume, rel=1e-12)
        first, last = (source.first_trade_at(s * 1000, now_ns=2**62) for s in (kline.open_s, due_ns // NS))
        assert kline.trades == last - first


def test_a_gone_market_ends() -> None:
    gone = MARKETS["OMGUSD"]
    end_s = gone.instrument.delisted_s or 0
    for source in (gone, Filled(gone)):
        found = list(klines(Tape(source), PERIODS["1m"], (end_s - 90) * NS))
        closed = [kline.open_s for _, kline in found if isinstance(kline, Kline) and kline.closed]
        assert closed == [end_s - 120, end_s - 60]


@given(st.integers(START_S + 600, START_S + 30_000), st.integers(1, 200), periods)
@settings(deadline=None, max_examples=15)
def test_filled_candles_have_no_gaps(start_s: int, limit: int, period: Period) -> None:
    now_ns = (START_S + 40_000) * NS
    for source in (QUIET, RECORDED):

        def fetch(start_ms: int | None, source: TradeSource) -> Candles:
            return source.candles(period, CandleRequest(start_ms, None, limit), now_ns=now_ns)

        rows = fetch(start_s * 1000, Filled(source))
        assert (np.diff(rows.open_s) == period.step_s).all()
        assert rows.open_s[0] == period.open_s(period.first_index(start_s * 1000))
        assert len(rows) == limit or rows.open_s[-1] == period.open_s(period.index(START_S + 40_000))
        real = {row[0]: row for row in rest(source, period, start_s, START_S + 40_000)}
        before = None
        for row in zip(*(column.tolist() for column in rows.columns()), strict=True):
            if row[0] in real and row[0] + period.step_s <= START_S + 40_000:
                assert row == real[row[0]]
            elif row[0] not in real and before is not None:
                assert row[1:] == (before[4],) * 4 + (0.0,)
            before = row
        newest = fetch(None, Filled(source))
        assert (
            newest.open_s[-1] == period.open_s(period.index(START_S + 40_000))
            and (np.diff(newest.open_s) == period.step_s).all()
        )


@given(sources, st.integers(START_S * NS, (START_S + 7200) * NS))
@settings(deadline=None, max_examples=10)
def test_a_tape_has_every_trade_after_a_time(source: TradeSource, after_ns: int) -> None:
    found = list(islice(Tape(source).after(after_ns), 3000))
    first_id = source.first_trade_at(after_ns // 1_000_000 + 1, now_ns=2**62)
    assert [trade.id for trade in found] == list(range(first_id, first_id + len(found)))
    real = source.trades(first_id, len(found), now_ns=2**62)
    assert [trade.time_ms for trade in found] == real.time_ms.tolist()
    assert [float(trade.price_text) for trade in found] == real.price.tolist() == [trade.price for trade in found]
    assert [float(trade.amount_text) for trade in found] == real.amount.tolist()


def test_merged_feeds_wait_for_their_time() -> None:
    def every(step: int) -> Any:
        return ((time, Sample(time)) for time in range(step, 100, step))

    merge = Merge()
    merge.add("three", every(3))
    merge.add("five", every(5))
    assert merge.take(2, 10) == [] and merge.next_ns() == 3
    assert merge.take(10, 3) == [("three", Sample(3)), ("five", Sample(5)), ("three", Sample(6))]
    merge.remove("three")
    merge.add("five", every(7))
    assert merge.take(20, 10) == [("five", Sample(7)), ("five", Sample(14))]


def test_events_do_not_depend_on_how_often_they_are_asked_for() -> None:
    def ids(step_ns: int) -> list[int]:
        merge, now_ns, found = Merge(), START_S * NS, list[int]()
        merge.add("trades", ((t.time_ns, t) for t in Tape(QUIET).after(now_ns)))
        while now_ns < (START_S + 600) * NS:
            now_ns = min(now_ns + step_ns, (START_S + 600) * NS)
            found += [event.id for _, event in merge.take(now_ns, 100_000) if isinstance(event, TapeTrade)]
        return found

    assert ids(NS) == ids(97 * NS + 1) == ids(3600 * NS)
