"""Which closed candles are compared with the exchange's own, when, and what equal ones prove."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dexorder_common.model.page import Candle
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.realtime.candle_checks import DELAYS_NS, CandleChecks, Group
from dexorder_ingestor.realtime.live_candles import ClosedCandles

MINUTE_NS = 60 * SECOND_NS
BEGIN_NS = 28_333_333 * MINUTE_NS


def _at(minute: int) -> int:
    return BEGIN_NS + minute * MINUTE_NS


def _candle(minute: int, volume: float = 2.0, count: int | None = 4, price: float = 1.5) -> Candle:
    return Candle(_at(minute), price, price, price, price, volume, trade_count=count)


def _closed(*candles: Candle, first: int = 0, end: int = 1, amends: bool = False) -> ClosedCandles:
    return ClosedCandles(60, TimeRange(_at(first), _at(end)), candles, amends)


def _checks(*candles: Candle, first: int = 0, end: int = 1) -> CandleChecks:
    checks = CandleChecks([60])
    checks.add(_closed(*candles, first=first, end=end))
    return checks


def _due(checks: CandleChecks, seconds: float) -> list[TimeRange]:
    return [each.span for each in checks.due(_at(1) + int(seconds * SECOND_NS))]


def test_a_candle_is_compared_after_each_delay_and_then_no_more() -> None:
    checks = _checks(_candle(0))
    for delay_ns in DELAYS_NS:
        assert not _due(checks, delay_ns / SECOND_NS - 1)
        assert _due(checks, delay_ns / SECOND_NS) == [TimeRange(_at(0), _at(1))]
        (group,) = checks.due(_at(1) + delay_ns)
        checks.confirm(group)
    assert not checks.unchecked() and not _due(checks, 1e9)


def test_a_candle_that_differs_is_compared_ever_more_seldom_until_it_is_given_up() -> None:
    checks, now_ns, waits = _checks(_candle(0)), _at(1) + DELAYS_NS[0], list[int]()
    while due := checks.due(now_ns):
        checks.postpone(due[0], now_ns)
        after = next((s for s in range(1, 3_601) if checks.due(now_ns + s * SECOND_NS)), 0)
        waits.append(after)
        now_ns += after * SECOND_NS
    assert waits[:9] == [30, 60, 120, 240, 480, 960, 1_920, 3_600, 3_600]
    assert checks.given_up == 1 and not checks.unchecked() and now_ns - _at(1) > 2 * 86_400 * SECOND_NS


def test_an_amended_candle_is_compared_from_the_start_and_the_others_of_its_group_are_not() -> None:
    checks = CandleChecks([60])
    for minute in range(3):
        checks.add(_closed(_candle(minute), first=minute, end=minute + 1))
    for group in checks.due(_at(3) + DELAYS_NS[0]):
        checks.confirm(group)
    assert [(each.span, each.comparisons) for each in checks.unchecked()] == [(TimeRange(_at(0), _at(3)), 1)]
    checks.add(_closed(_candle(1, volume=9.0), first=1, end=2, amends=True))
    found = [(each.span.start_ns, each.comparisons, each.candle and each.candle.volume) for each in checks.unchecked()]
    assert found == [(_at(0), 1, 2.0), (_at(1), 0, 9.0), (_at(2), 1, 2.0)]


def test_a_confirmed_group_that_was_amended_meanwhile_stays_to_be_compared() -> None:
    checks = _checks(_candle(0))
    (before,) = checks.due(_at(1) + DELAYS_NS[0])
    checks.add(_closed(_candle(0, volume=9.0), amends=True))
    checks.confirm(before)
    checks.postpone(before, _at(2))
    assert [(each.comparisons, each.candle and each.candle.volume) for each in checks.unchecked()] == [(0, 9.0)]


def test_candles_of_an_earlier_dispatch_go_on_and_those_of_other_periods_are_forgotten() -> None:
    earlier = _checks(_candle(0))
    earlier.confirm(earlier.due(_at(1) + DELAYS_NS[0])[0])
    assert CandleChecks([60], earlier.unchecked()).unchecked() == earlier.unchecked()
    assert not CandleChecks([300], earlier.unchecked()).unchecked()


@pytest.mark.parametrize(
    ("ours", "theirs", "differ"),
    [
        ([_candle(0), _candle(1)], [_candle(0), _candle(1)], []),
        ([_candle(0)], [_candle(0), _candle(1, 0.0, 0)], []),
        ([], [_candle(0, 0.0, 0)], []),
        ([_candle(0)], [_candle(0), _candle(1)], [1]),
        ([_candle(0), _candle(1)], [_candle(1)], [0]),
        ([_candle(0), _candle(1)], [_candle(0), _candle(1, price=1.6)], [1]),
        ([_candle(0), _candle(1)], [_candle(0), _candle(1, 2.0 + 1e-12)], []),
        ([_candle(0), _candle(1)], [_candle(0), _candle(1, 2.1), _candle(2)], [1]),
    ],
)
def test_what_differs(ours: list[Candle], theirs: list[Candle], differ: list[int]) -> None:
    checks = CandleChecks([60])
    checks.add(_closed(*ours, end=2))
    for group in checks.due(_at(2) + DELAYS_NS[0]):
        checks.confirm(group)
    (group,) = checks.due(_at(2) + DELAYS_NS[1])
    assert checks.differing(group, theirs) == [_at(minute) for minute in differ]


@pytest.mark.parametrize(
    ("ours", "theirs", "comparisons", "proven"),
    [
        ([], [_candle(0, 0.0, 0)], 1, True),
        ([], [_candle(0, 0.0, None)], 1, True),  # of an exchange that does not count trades
        ([], [_candle(0, 0.0, 0)], 0, False),  # the replica may lack what we lack, the first time
        ([], [], 1, False),  # an exchange that leaves candles out may lack them
        ([_candle(0)], [_candle(0)], 1, True),
        ([_candle(0)], [_candle(0, count=5)], 1, False),  # a trade more, too small to show in the volume
        ([_candle(0, count=None)], [_candle(0)], 1, True),
        ([_candle(0)], [_candle(1)], 1, False),  # of another minute
    ],
)
def test_which_candles_of_the_exchange_are_a_witness(
    ours: list[Candle], theirs: list[Candle], comparisons: int, proven: bool
) -> None:
    checks = _checks(*ours)
    (group,) = checks.due(_at(1) + DELAYS_NS[0])
    again: Group = replace(group, known=group.known._replace(comparisons=comparisons))
    assert checks.are_witnessed(again, theirs) == proven


def test_a_price_that_changes_nothing_but_the_quote_volume_differs_where_the_exchange_has_the_sum() -> None:
    ours = [_candle(minute)._replace(quote_volume=3.0) for minute in range(2)]
    for theirs, has_quotes, differ in (
        ((3.0, 3.0), True, []),
        ((3.0, 3.0 + 1e-6), True, [_at(1)]),
        ((3.0, 3.0 + 1e-6), False, []),
        ((3.0, 3.0 * (1 + 1e-9)), True, []),
        ((3.0, 0.0), True, []),
        ((3.0, None), True, []),
    ):
        checks = CandleChecks([60], has_quotes=has_quotes)
        checks.add(_closed(*ours, end=2))
        for group in checks.due(_at(10)):
            checks.confirm(group)
        (group,) = checks.due(_at(20))
        assert group.span == TimeRange(_at(0), _at(2)), "both as one"
        found = [_candle(minute)._replace(quote_volume=quote) for minute, quote in enumerate(theirs)]
        assert checks.differing(group, found) == differ
        earlier = CandleChecks([60], checks.unchecked(), has_quotes=has_quotes)
        (group,) = earlier.due(_at(20))
        both = [_at(0), _at(1)] if differ else []
        assert earlier.differing(group, found) == both, "the relay knows their sum alone"
