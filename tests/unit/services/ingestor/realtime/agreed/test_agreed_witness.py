"""What a socket's silence and its trades are worth."""

from __future__ import annotations

import pytest

from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.trades import Trade
from dexorder_ingestor.realtime.agreed.witness import MAX_HEARD, TAKE_NS, HeardTrades
from dexorder_ingestor.realtime.sources.socket_health import AliveSocket

SILENCE = 20


def _trade(name: str, second: int) -> Trade:
    return Trade(second * SECOND_NS, 0, name, 1.5, 0.25, "buy", 1, 0)


@pytest.mark.parametrize(
    ("proofs", "alive"),
    [
        ([5], (5, 5)),
        ([5, 5 + SILENCE], (5, 5 + SILENCE)),
        ([5, 6 + SILENCE], (6 + SILENCE, 6 + SILENCE)),
        ([5, 10, 7], (5, 10)),
        ([5, 10, None], None),
        ([5, None, 8], None),
        ([5, None, 11], (11, 11)),
    ],
    ids=["once", "as long as it may be", "too long", "out of order", "lost", "from before the loss", "again"],
)
def test_a_socket_is_alive_while_something_comes(proofs: list[int | None], alive: tuple[int, int] | None) -> None:
    """None is the loss of the connection, at second 10."""
    socket = AliveSocket(SILENCE * SECOND_NS)
    for second in proofs:
        if second is None:
            socket.lost(now_ns=10 * SECOND_NS)
        else:
            socket.proven(second * SECOND_NS)
    seconds = None if socket.from_ns is None else (socket.from_ns // SECOND_NS, socket.until_ns // SECOND_NS)
    assert seconds == alive


def _compare(heard: HeardTrades, second: int, *shown: Trade) -> list[Trade]:
    newest_ns = max((each.time_ns for each in shown), default=0)
    by_id = {each.trade_id: each for each in shown}
    return heard.compare(by_id, newest_ns, clock_ns=second * SECOND_NS, now_ns=second * SECOND_NS)


def test_a_trade_is_taken_once_rest_has_shown_later_ones_for_long() -> None:
    heard, a, b, c = HeardTrades(), _trade("a", 1), _trade("b", 2), _trade("c", 3)
    assert heard.add([a, b], now_ns=3 * SECOND_NS)
    assert _compare(heard, 4, a) == [] and heard.lacking_ns(0, a.time_ns) == b.time_ns
    assert _compare(heard, 500, a) == []  # REST is behind: it shows nothing later
    assert _compare(heard, 510, a, c) == []
    assert _compare(heard, 510 + TAKE_NS // SECOND_NS, a, c) == [b]
    assert heard.lacking_ns(0, c.time_ns) is None and heard.has_all([a, b]) and not heard.has_all([c])


def test_ids_that_rest_never_has_are_another_series() -> None:
    heard = HeardTrades()
    strangers = [_trade(f"socket {n}", 1) for n in range(10)]
    heard.add(strangers, now_ns=SECOND_NS)
    for second in (5, 5 + TAKE_NS // SECOND_NS):
        assert _compare(heard, second, _trade("a", 2)) == []
    assert heard.has_other_ids
    heard.add([_trade("socket 10", 3)], now_ns=20 * SECOND_NS)
    assert heard.lacking_ns(0, 2 * SECOND_NS) == 3 * SECOND_NS  # by its time
    assert heard.lacking_ns(0, 4 * SECOND_NS) is None


def test_the_delay_of_rest_is_learnt_and_forgotten() -> None:
    heard, a, b = HeardTrades(), _trade("a", 1), _trade("b", 2)
    heard.add([a], now_ns=2 * SECOND_NS)
    _compare(heard, 30)
    _compare(heard, 35, a)
    assert heard.delay_ns == 28 * SECOND_NS
    heard.add([b], now_ns=400 * SECOND_NS)
    _compare(heard, 401, a, b)
    assert heard.delay_ns == 0


def test_a_socket_that_floods_is_no_witness_and_fills_no_memory() -> None:
    heard = HeardTrades()
    assert heard.add([_trade(f"n{n}", 1) for n in range(MAX_HEARD)], now_ns=0)
    assert not heard.add([_trade("one more", 1)], now_ns=0)


def test_a_time_of_the_far_future_is_forgotten() -> None:
    heard = HeardTrades()
    heard.add([_trade("x", 10**9), _trade("", 10**9)], now_ns=0)
    _compare(heard, 5, _trade("a", 1))
    assert heard.lacking_ns(0, SECOND_NS) is None
