from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dexorder_exchange_sim.candles import CandleRequest, Candles
from dexorder_exchange_sim.instruments import INSTRUMENTS
from dexorder_exchange_sim.market import TRADES_A_SECOND, SyntheticMarket
from dexorder_exchange_sim.periods import DAY, PERIODS, Period
from tests.examples import few

NOW_S = 1_700_000_123
NOW_NS = NOW_S * 1_000_000_000
MARKETS = {instrument.id: SyntheticMarket(instrument, seed=7) for instrument in INSTRUMENTS}
BTC = MARKETS["BTCUSDT"]
LISTED_S = BTC.instrument.listed_s
QUIET, BROKEN, GONE = (MARKETS[name] for name in ("XMRUSD", "ZECUSD", "OMGUSD"))
DENSE = [m for m in MARKETS.values() if m.instrument.busy_seconds == 60 and m not in (BROKEN, GONE)]

markets = st.sampled_from(list(MARKETS.values()))
periods = st.sampled_from(list(PERIODS.values()))
moments = st.integers(min_value=LISTED_S, max_value=NOW_S - 1)


def fetch(
    market: SyntheticMarket,
    period: Period,
    start_s: int | None = None,
    end_s: int | None = None,
    limit: int = 1000,
    now_ns: int = NOW_NS,
) -> Candles:
    start_ms, end_ms = (None if time_s is None else time_s * 1000 for time_s in (start_s, end_s))
    return market.candles(period, CandleRequest(start_ms, end_ms, limit), now_ns=now_ns)


def same(a: Candles, b: Candles) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a.columns(), b.columns(), strict=True))


@given(markets, periods, moments)
def test_candles_are_well_formed_and_joined(market: SyntheticMarket, period: Period, start_s: int) -> None:
    rows = fetch(market, period, start_s, limit=300)
    steps = np.diff(period.indexes(rows.open_s))
    assert (steps >= 1).all() and (market not in DENSE or (steps == 1).all())
    assert (rows.low <= np.minimum(rows.open, rows.close)).all()
    assert (rows.high >= np.maximum(rows.open, rows.close)).all()
    assert (rows.low > 0).all() and (rows.volume > 0).all()
    if market is not BROKEN:
        assert np.array_equal(rows.open[1:], rows.close[:-1])


@given(markets, periods, moments, st.integers(1, 400), st.integers(1, 50))
@settings(deadline=None)
def test_slicing_changes_nothing(market: SyntheticMarket, period: Period, start_s: int, count: int, page: int) -> None:
    fresh = SyntheticMarket(market.instrument, seed=7)
    whole = fetch(market, period, start_s, limit=count)

    def pages() -> Iterator[Candles]:
        since = start_s
        while len(rows := fetch(fresh, period, since, limit=page)):
            yield rows
            since = period.open_s(period.index(int(rows.open_s[-1])) + 1)

    seen = 0
    for rows in pages():
        rows = rows[: count - seen]
        assert same(rows, whole[seen : seen + len(rows)])
        seen += len(rows)
        if seen >= count:
            break
    assert seen == len(whole)


@given(markets, moments, st.sampled_from([(c, f) for c in PERIODS.values() for f in PERIODS.values() if c.nests(f)]))
@settings(deadline=None, max_examples=few(60))
def test_coarse_candle_is_the_sum_of_its_fine_ones(
    market: SyntheticMarket, start_s: int, pair: tuple[Period, Period]
) -> None:
    coarse, fine = pair
    index = coarse.index(max(start_s, market.instrument.listed_s))
    start_s, end_s = coarse.open_s(index), coarse.open_s(index + 1)
    if (end_s - start_s) // fine.step_s > 200_000:
        return  # a month of seconds; the hours between them are compared elsewhere in this test
    parts = fetch(market, fine, start_s, end_s - 1, limit=10**9)
    whole = fetch(market, coarse, start_s, end_s - 1, limit=1)
    assert len(whole) == bool(len(parts))
    if not len(whole):
        return
    [row] = zip(*whole.columns(), strict=True)
    lot = 10 ** (market.instrument.lot_decimals or 0)
    assert row[:5] == (start_s, parts.open[0], parts.high.max(), parts.low.min(), parts.close[-1])
    assert round(row[5] * lot) == np.rint(parts.volume * lot).astype(np.int64).sum()


@given(moments, st.sampled_from(["1m", "5m", "1h", "1d", "1w", "1M"]))
@settings(deadline=None, max_examples=50)
def test_running_candle_holds_the_seconds_so_far(now_s: int, name: str) -> None:
    period = PERIODS[name]
    if period.index(now_s) == period.index(LISTED_S):
        return
    [last] = zip(*fetch(BTC, period, limit=1, now_ns=now_s * 10**9).columns(), strict=True)
    whole = fetch(BTC, period, last[0], limit=1)
    hour = PERIODS["1h"]
    split_s = max(last[0], hour.open_s(hour.index(now_s)))
    seconds = fetch(BTC, PERIODS["1s"], split_s, now_s, limit=10**9)
    before = fetch(BTC, hour, last[0], split_s - 1, limit=10**9) if split_s > last[0] else seconds[:0]
    assert last[0] <= now_s < period.open_s(period.index(now_s) + 1)
    assert last[1] == whole.open[0]
    assert last[2] == max([*before.high, *seconds.high])
    assert last[3] == min([*before.low, *seconds.low])
    assert last[4] == seconds.close[-1]
    assert last[5] == pytest.approx(before.volume.sum() + seconds.volume.sum(), rel=1e-12)


def test_nothing_before_the_listing_or_after_now() -> None:
    day = PERIODS["1d"]
    everything = fetch(BTC, day, 0, limit=10**6)
    assert everything.open_s[0] == LISTED_S
    assert everything.open_s[-1] == NOW_S // DAY * DAY
    assert not len(fetch(BTC, day, NOW_S + 1))
    assert not len(fetch(BTC, day, 0, LISTED_S - 1))
    assert not len(fetch(BTC, day, now_ns=(LISTED_S - 1) * 10**9))
    assert fetch(BTC, PERIODS["1w"], 0, limit=1).open_s[0] == LISTED_S - 3 * DAY
    first_week = fetch(BTC, PERIODS["1w"], 0, limit=1)
    assert first_week.open[0] == everything.open[0]


def test_query_edges_are_inclusive() -> None:
    minute, start_s = PERIODS["1m"], LISTED_S + DAY
    assert fetch(BTC, minute, start_s, start_s + 3600).open_s.tolist() == list(range(start_s, start_s + 3601, 60))
    assert fetch(BTC, minute, start_s + 1, limit=1).open_s[0] == start_s + 60
    assert fetch(BTC, minute, end_s=start_s, limit=3).open_s.tolist() == [start_s - 120, start_s - 60, start_s]
    assert fetch(BTC, minute, start_s, limit=2).open_s.tolist() == [start_s, start_s + 60]
    assert fetch(BTC, minute, limit=2).open_s.tolist() == [NOW_S // 60 * 60 - 60, NOW_S // 60 * 60]
    assert not len(fetch(BTC, minute, start_s, start_s - 1))


def test_values_for_ever() -> None:
    """The market must not change between releases: recorded expectations elsewhere depend on it."""
    [row] = zip(*fetch(BTC, PERIODS["1m"], 1_577_836_800, limit=1).columns(), strict=True)
    assert row == (1577836800, 17615.94, 17626.57, 17615.9, 17624.42, 6.99264)


def test_all_markets_for_ever() -> None:
    """One number for the candles of all periods and the trades of the markets that were always there."""
    digest = hashlib.sha256()
    for instrument in INSTRUMENTS[:22]:
        market = MARKETS[instrument.id]
        for period in PERIODS.values():
            for column in fetch(market, period, 1_640_995_200, limit=30).columns():
                digest.update(column.tobytes())
        trades = market.trades(market.first_trade_at(1_640_995_212_345, now_ns=NOW_NS), 100, now_ns=NOW_NS)
        for column in (trades.id, trades.time_ms, trades.price, trades.amount, trades.buyer_is_maker):
            digest.update(column.tobytes())
    assert digest.hexdigest() == "6f5254f650d84a1cbf3481bf2e9912bc4ae402ece763c02f551ebbe1b43936cd"


@given(markets, moments, st.integers(1, 30))
@example(QUIET, NOW_S - 12, 1)
@settings(deadline=None, max_examples=50)
def test_trades_add_up_to_the_seconds(market: SyntheticMarket, start_s: int, count: int) -> None:
    start_s = max(start_s, market.instrument.listed_s)
    seconds = fetch(market, PERIODS["1s"], start_s, limit=count)
    first_id = market.first_trade_at(start_s * 1000, now_ns=NOW_NS)
    trades = market.trades(first_id, TRADES_A_SECOND * len(seconds), now_ns=NOW_NS + 10**9)
    if market in DENSE:
        assert first_id == (start_s - market.instrument.listed_s) * TRADES_A_SECOND
    assert (np.diff(trades.id) == 1).all()
    assert (np.diff(trades.time_ms) > 0).all() and (trades.amount > 0).all()
    price = trades.price.reshape(-1, TRADES_A_SECOND)
    lot = 10 ** (market.instrument.lot_decimals or 0)
    lots = np.rint(trades.amount * lot).astype(np.int64).reshape(-1, TRADES_A_SECOND)
    assert np.array_equal(trades.time_ms[::TRADES_A_SECOND] // 1000, seconds.open_s)
    assert np.array_equal(price[:, 0], seconds.open) and np.array_equal(price[:, -1], seconds.close)
    assert np.array_equal(price.max(axis=1), seconds.high) and np.array_equal(price.min(axis=1), seconds.low)
    assert np.array_equal(lots.sum(axis=1), np.rint(seconds.volume * lot).astype(np.int64))


@given(markets, st.integers(LISTED_S * 1000 + 10_000, NOW_S * 1000))
@settings(deadline=None)
def test_first_trade_at_a_time(market: SyntheticMarket, time_ms: int) -> None:
    """Ids go on across silent minutes and an outage, so two neighbours show that nothing lies between them."""
    first_id = market.first_trade_at(time_ms, now_ns=NOW_NS)
    before = market.trades(first_id - 1, 1, now_ns=NOW_NS + 10**9).time_ms if first_id else np.array([])
    after = market.trades(first_id, 1, now_ns=NOW_NS + 10**9).time_ms
    assert (before < time_ms).all() and (time_ms <= after).all()
    assert len(before) == (first_id > 0)
    assert len(after) or time_ms >= market.newest_s(now_ns=NOW_NS) * 1000 - 3_600_000


@given(st.integers(QUIET.instrument.listed_s, NOW_S - 7200))
@settings(deadline=None)
def test_a_quiet_market_lacks_minutes_and_a_page_is_full_all_the_same(start_s: int) -> None:
    minute, hour_s = PERIODS["1m"], start_s // 3600 * 3600
    assert len(fetch(QUIET, minute, hour_s, hour_s + 3599)) == 42
    next_hour = fetch(QUIET, minute, hour_s + 3600, hour_s + 7199)
    assert not np.array_equal(fetch(QUIET, minute, hour_s, hour_s + 3599).open_s, next_hour.open_s - 3600)
    assert len(fetch(QUIET, minute, min(start_s, NOW_S - 2 * DAY), limit=1000)) == 1000
    assert len(fetch(QUIET, minute, end_s=max(start_s, QUIET.instrument.listed_s + 2 * DAY), limit=1000)) == 1000


def test_an_outage_is_three_days_without_anything() -> None:
    start_s, end_s = BROKEN.instrument.outage_s or (0, 0)
    assert end_s - start_s == 3 * DAY
    for name in ("1s", "1m", "1h", "1d"):
        assert not len(fetch(BROKEN, PERIODS[name], start_s, end_s - 1, limit=10**6))
        rows = fetch(BROKEN, PERIODS[name], start_s - DAY, limit=DAY // PERIODS[name].step_s + 1)
        assert rows.open_s[-2:].tolist() == [start_s - PERIODS[name].step_s, end_s]
        back = fetch(BROKEN, PERIODS[name], end_s=end_s, limit=2)
        assert back.open_s.tolist() == [start_s - PERIODS[name].step_s, end_s]


def test_nothing_from_the_delisting_on() -> None:
    end_s = GONE.instrument.delisted_s or 0
    assert not len(fetch(GONE, PERIODS["1m"], end_s))
    assert fetch(GONE, PERIODS["1m"], limit=3).open_s.tolist() == [end_s - 180, end_s - 120, end_s - 60]
    assert GONE.newest_s(now_ns=NOW_NS) == end_s
    newest = GONE.first_trade_at(NOW_S * 1000, now_ns=NOW_NS)
    assert not len(GONE.trades(newest, 10, now_ns=NOW_NS).id)
    assert GONE.trades(newest - 1, 10, now_ns=NOW_NS).time_ms[0] // 1000 == end_s - 1
    assert (GONE.instrument.is_active(end_s - 1), GONE.instrument.is_active(end_s)) == (True, False)


def test_seeds_and_symbols_differ() -> None:
    other = SyntheticMarket(BTC.instrument, seed=8)
    assert not np.array_equal(fetch(BTC, PERIODS["1h"]).close, fetch(other, PERIODS["1h"]).close)
    assert len({float(fetch(market, PERIODS["1h"]).close[-1]) for market in MARKETS.values()}) == len(MARKETS)
