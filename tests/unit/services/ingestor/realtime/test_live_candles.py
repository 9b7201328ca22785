from __future__ import annotations

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.model.page import Candle
from dexorder_common.model.periods import floor_to_grid
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.trades import Trade
from dexorder_ingestor.realtime.live_candles import ClosedCandles, LiveCandles

_START_NS = 1_700_000_100 * SECOND_NS  # on the grid of 5 minutes
_END_NS = _START_NS + 1_200 * SECOND_NS


@st.composite
def trades(draw: st.DrawFn) -> list[Trade]:
    """Return trades in order, prices and amounts with up to eight decimals."""
    times = sorted(draw(st.lists(st.integers(_START_NS, _END_NS - 1), max_size=40)))
    units = st.integers(1, 10**12).map(lambda lots: float(Decimal(lots).scaleb(-8)))
    return [Trade(t, n, str(n), draw(units), draw(units), "", 1, 0) for n, t in enumerate(times)]


def _oracle(tape: list[Trade], period: int) -> list[Candle]:
    """Return the candles of all trades, computed from the whole lists."""
    found = []
    for open_ns in sorted({floor_to_grid(t.time_ns, period) for t in tape}):
        part = [t for t in tape if floor_to_grid(t.time_ns, period) == open_ns]
        prices = [t.price for t in part]
        amounts = [(Decimal(repr(t.price)), Decimal(repr(t.amount))) for t in part]
        sums = float(sum(a for _, a in amounts)), float(sum(p * a for p, a in amounts))
        found.append(Candle(open_ns, prices[0], max(prices), min(prices), prices[-1], *sums, len(part)))
    return found


@given(trades(), st.randoms(use_true_random=False))
def test_candles_equal_the_oracle_in_whatever_order_trades_come_and_however_often_candles_are_closed(
    tape: list[Trade], order: object
) -> None:
    shuffled = list(tape)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    builder = LiveCandles({60: _START_NS, 300: _START_NS})
    candles: dict[int, dict[int, Candle]] = {60: {}, 300: {}}
    covered: dict[int, int] = {60: _START_NS, 300: _START_NS}

    amended_ns: dict[tuple[int, int], int] = {}

    def take(found: list[ClosedCandles], now_ns: int) -> None:
        for each in found:
            if each.amends:
                place = each.period_seconds, each.span.start_ns
                assert now_ns - amended_ns.get(place, -SECOND_NS) >= SECOND_NS
                amended_ns[place] = now_ns
            for candle in each.candles:
                assert each.amends or candle.open_ns not in candles[each.period_seconds]
                candles[each.period_seconds][candle.open_ns] = candle
            if not each.amends:
                assert each.span.start_ns == covered[each.period_seconds]
                covered[each.period_seconds] = each.span.end_ns

    for i, trade in enumerate(shuffled):
        builder.add([trade])
        if i % 3 == 0:  # close no further than late trades may amend
            take(builder.close(_START_NS + 120 * SECOND_NS, now_ns=i * SECOND_NS // 6), i * SECOND_NS // 6)
    take(builder.close(_END_NS, now_ns=100 * SECOND_NS), 100 * SECOND_NS)
    assert covered == {60: _END_NS, 300: _END_NS}
    for period, found in candles.items():
        assert [found[open_ns] for open_ns in sorted(found)] == _oracle(tape, period)


def test_a_candle_closes_without_a_trade_and_an_empty_period_has_none() -> None:
    builder = LiveCandles({60: _START_NS})
    minute_ns = 60 * SECOND_NS
    assert builder.next_close_ns() == _START_NS + minute_ns
    builder.add([Trade(_START_NS, 1, "1", 2.0, 3.0, "", 1, 0)])
    assert builder.close(_START_NS + minute_ns - 1, now_ns=0) == []
    assert builder.running() == [(60, Candle(_START_NS, 2.0, 2.0, 2.0, 2.0, 3.0, 6.0, 1))]
    (closed,) = builder.close(_START_NS + 2 * minute_ns, now_ns=0)
    assert closed.span == TimeRange(_START_NS, _START_NS + 2 * minute_ns)
    assert [c.open_ns for c in closed.candles] == [_START_NS]


def test_a_forgotten_candle_of_a_late_trade_is_doubtful_and_closed_again_once_it_is_rebuilt() -> None:
    builder, late = LiveCandles({60: _START_NS}), Trade(_START_NS, 1, "1", 2.0, 3.0, "", 1, 0)
    builder.close(_START_NS + 600 * SECOND_NS, now_ns=0)
    builder.add([late], lambda trade: False)
    assert not builder.doubtful, "an earlier dispatch has counted it"
    builder.add([late])
    assert [*builder.doubtful] == [(60, _START_NS)]
    assert builder.close(_START_NS + 600 * SECOND_NS, now_ns=0) == []
    builder.rebuild(60, _START_NS, [late])
    (closed,) = builder.close(_START_NS + 600 * SECOND_NS, now_ns=0)
    assert closed.amends and [candle.volume for candle in closed.candles] == [3.0]
    assert builder.close(_START_NS + 600 * SECOND_NS, now_ns=0) == []


def test_the_newest_candle_is_forgotten_too_when_no_trade_comes_for_long() -> None:
    builder = LiveCandles({60: _START_NS})
    builder.add([Trade(_START_NS, 1, "1", 2.0, 3.0, "", 1, 0)])
    builder.close(_START_NS + 600 * SECOND_NS, now_ns=0)
    builder.add([Trade(_START_NS + 1, 2, "2", 2.0, 3.0, "", 1, 0)])
    assert [*builder.doubtful] == [(60, _START_NS)]
    assert builder.close(_START_NS + 600 * SECOND_NS, now_ns=0) == []


def test_a_trade_that_comes_again_after_its_candle_was_rebuilt_is_counted_once() -> None:
    builder, late = LiveCandles({60: _START_NS}), Trade(_START_NS, 1, "1", 2.0, 3.0, "", 1, 0)
    builder.close(_START_NS + 60 * SECOND_NS, now_ns=0)
    builder.rebuild(60, _START_NS, [late])
    builder.add([late])
    (closed,) = builder.close(_START_NS + 60 * SECOND_NS, now_ns=0)
    assert [candle.volume for candle in closed.candles] == [3.0]


def test_a_much_later_trade_with_the_number_of_a_rebuilt_one_is_another_trade() -> None:
    """Numbers have begun again within the candle."""
    builder = LiveCandles({60: _START_NS})
    one, copy, other = (Trade(_START_NS + ms * 1_000_000, 1, "1", 2.0, 3.0, "", 1, 0) for ms in (0, 400, 13_000))
    builder.close(_START_NS + 60 * SECOND_NS, now_ns=0)
    builder.rebuild(60, _START_NS, [one])
    builder.add([copy, other])
    (closed,) = builder.close(_START_NS + 60 * SECOND_NS, now_ns=0)
    assert [candle.volume for candle in closed.candles] == [6.0]


def test_late_trades_amend_a_candle_at_most_once_a_second_and_none_of_them_is_lost_when_it_is_forgotten() -> None:
    """A trade of a closed minute comes each tenth of a second; then its candle is forgotten."""
    builder = LiveCandles({60: _START_NS})
    builder.close(_START_NS + 60 * SECOND_NS, now_ns=0)
    told: list[tuple[int, float]] = []
    for number in range(1, 36):
        now_ns = number * SECOND_NS // 10
        builder.add([Trade(_START_NS, number, str(number), 2.0, 1.0, "", 1, 0)])
        told += [
            (now_ns, candle.volume)
            for each in builder.close(_START_NS + 60 * SECOND_NS, now_ns=now_ns)
            for candle in each.candles
        ]
    assert told == [(n * SECOND_NS // 10, float(n)) for n in (1, 11, 21, 31)]
    builder.close(_START_NS + 3600 * SECOND_NS, now_ns=36 * SECOND_NS // 10)
    (last,) = builder.close(_START_NS + 3600 * SECOND_NS, now_ns=41 * SECOND_NS // 10)
    assert last.amends and [candle.volume for candle in last.candles] == [35.0]
    assert builder.close(_START_NS + 3600 * SECOND_NS, now_ns=100 * SECOND_NS) == []


def test_an_amendment_that_waits_is_told_at_the_end_of_a_dispatch_and_outlives_a_hole() -> None:
    for flush in (True, False):
        builder = LiveCandles({60: _START_NS})
        builder.close(_START_NS + 60 * SECOND_NS, now_ns=0)
        for number in (1, 2):
            builder.add([Trade(_START_NS, number, str(number), 2.0, 1.0, "", 1, 0)])
            builder.close(_START_NS + 60 * SECOND_NS, now_ns=1)
        builder.skip(_START_NS + 600 * SECOND_NS)
        (waiting,) = builder.close(_START_NS + 600 * SECOND_NS, now_ns=2 if flush else SECOND_NS + 1, flush=flush)
        assert waiting.amends and [candle.volume for candle in waiting.candles] == [2.0]


def test_the_oldest_kept_candle_is_rebuilt_in_its_place_and_a_later_trade_amends_it() -> None:
    builder = LiveCandles({60: _START_NS})
    first, second, third = (Trade(_START_NS, n, str(n), 2.0, 1.0, "", 1, 0) for n in (1, 2, 3))
    builder.add([first])
    end_ns = _START_NS + 300 * SECOND_NS  # five periods are kept
    builder.close(end_ns, now_ns=0)
    builder.rebuild(60, _START_NS, [first, second])
    builder.add([third])
    assert not builder.doubtful
    (closed,) = builder.close(end_ns, now_ns=0)
    assert [candle.volume for candle in closed.candles] == [3.0]
