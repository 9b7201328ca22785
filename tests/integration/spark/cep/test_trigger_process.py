"""The triggers' process, killed at the points of a batch at which something could be lost, doubled or renamed."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from dexorder_common.rpc.trigger_messages import decode_event
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as pb
from tests.fakes.trigger_rig import Rig, candles_of, rig

TICKERS = ("BTC/USDT.SIM", "ETH/USDT.SIM", "SOL/USDT.SIM")
ABOVE = "SELECT ticker, `close` FROM ohlc WHERE `close` > 100"
MINUTES = 40


def fired(rig: Rig) -> list[tuple[str, str, float]]:
    """Return trigger, ticker and price of the events that a subscriber sees."""
    found = []
    for data in rig.relay.events.values():
        message = pb.ReportedTriggerEvent.FromString(data)
        event = decode_event(message.event)
        row = dict(zip((name for name, _ in event.columns), event.rows[0], strict=True))
        price = row["close"]
        assert isinstance(price, float)
        found.append((event.trigger_id, message.ticker, price))
    return found


@pytest.mark.smoke
def test_every_event_comes_once_by_id_wherever_the_process_is_killed(tmp_path: Path) -> None:
    walks = {ticker: candles_of(ticker, MINUTES, seed=7) for ticker in TICKERS}
    wanted = {
        (f"t{n}", ticker, each.close)
        for n in range(5)
        for ticker, candles in walks.items()
        for each in candles
        if each.close > 100
    }
    with rig(tmp_path) as running:
        for number in range(5):
            running.relay.register(f"t{number}", ABOVE, TICKERS, fire="level")
        running.start()
        running.wait_applied(5)
        for minute in range(MINUTES):
            for ticker, candles in walks.items():
                running.produce(ticker, candles[minute : minute + 1])
            if minute == 1:  # each dies in its second batch; the last one reads on
                running.kill()
        points = ("die_before_journal", "die_after_journal", "die_during_publish")
        for processes, point in enumerate(points, 1):  # their number may change at any restart
            assert running.start(f"{point}:2", processes=processes).wait(60) == -signal.SIGKILL
        running.start(processes=2)
        running.wait(lambda: len(running.relay.events) >= len(wanted))
        running.kill()
        found = fired(running)
        assert len(found) == len(wanted) and set(found) == wanted
        assert not running.relay.renamed
        assert max(running.relay.deliveries.values()) > 1, "nothing was published again: the kills were at other points"


@pytest.mark.smoke
def test_registrations_take_effect_in_order_and_only_new_candles_fire(tmp_path: Path) -> None:
    ticker = TICKERS[0]
    walk = [
        each._replace(close=101.0, high=max(each.high, 102.0), low=min(each.low, 100.5))
        for each in candles_of(ticker, 6, seed=1)
    ]
    with rig(tmp_path) as running:
        running.produce(ticker, walk[:2])  # before anybody watches
        running.start()
        first = running.relay.register("first", ABOVE, [ticker], fire="level")
        running.wait_applied(1)
        running.produce(ticker, walk[2:3])
        running.wait(lambda: len(running.relay.events) == 1)
        running.produce(ticker, walk[2:3], dispatch=2)  # again, by another dispatch
        running.produce(ticker, walk[2:3], amends=True)  # revised
        running.relay.register("second", ABOVE, [ticker], fire="level")
        running.wait_applied(2)
        running.produce(ticker, walk[3:4])
        running.wait(lambda: len(running.relay.events) == 3)
        running.relay.delete(first)
        running.wait_applied(3)
        running.produce(ticker, walk[4:5])
        running.wait(lambda: len(running.relay.events) == 4)
        running.kill()
        assert sorted(each[0] for each in fired(running)) == ["first", "first", "second", "second"]
        running.start()
        running.produce(ticker, walk[5:6])
        running.wait(lambda: len(running.relay.events) == 5)
        assert [each[0] for each in fired(running)].count("second") == 3
