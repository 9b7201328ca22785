"""Which sockets carry a market, and how long they have been silent."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import ccxt.pro
import pytest

from dexorder_ingestor.exchange.live_sockets import LiveSockets
from dexorder_ingestor.exchange.venue import CcxtVenue

SECOND_NS = 1_000_000_000


def _socket(*subscriptions: str, heard_seconds_ago: float | None = None) -> Any:
    return SimpleNamespace(subscriptions=dict.fromkeys(subscriptions, True), heard_seconds_ago=heard_seconds_ago)


def _sockets(clients: dict[str, Any], *, pumped: str = "BTC/USDT") -> LiveSockets:
    now_ms = int(time.time() * 1_000)
    for socket in clients.values():
        if socket.heard_seconds_ago is not None:
            socket.last_message_at = now_ms - socket.heard_seconds_ago * 1_000  # as ccxt.pro has it, pongs included
    sockets = LiveSockets(cast(CcxtVenue, SimpleNamespace()))
    sockets._client = SimpleNamespace(clients=clients, markets={"BTC/USDT": {"id": "BTCUSDT"}})
    sockets._pumps = {pumped: cast(Any, None)}
    return sockets


@pytest.mark.parametrize(
    ("clients", "seconds"),
    [
        ({}, None),
        ({"wss://one": _socket("trade:BTC/USDT")}, None),
        ({"wss://one": _socket("trade:BTC/USDT", heard_seconds_ago=40)}, 40),
        ({"wss://one": _socket("trade::BTCUSDT", heard_seconds_ago=40)}, 40),
        ({"wss://one": _socket("orders", heard_seconds_ago=40)}, 40),
        (
            {
                "wss://one": _socket("trade:ETH/USDT", heard_seconds_ago=1),
                "wss://two": _socket("trade:BTC/USDT", heard_seconds_ago=90),
            },
            90,
        ),
        ({"wss://one": _socket("a", heard_seconds_ago=1), "wss://two": _socket("b", heard_seconds_ago=1)}, None),
    ],
    ids=["no socket", "nothing came", "by symbol", "by id", "the only one", "not another's", "neither names it"],
)
def test_the_silence_is_that_of_the_socket_with_the_market(clients: dict[str, Any], seconds: float | None) -> None:
    found = _sockets(clients).silence_ns("BTC/USDT")
    assert (found is None) == (seconds is None)
    if found is not None and seconds is not None:
        assert abs(found - seconds * SECOND_NS) < 20 * SECOND_NS


def test_a_socket_that_was_opened_again_has_a_silence_of_its_own() -> None:
    clients = {"wss://one": _socket("trade:BTC/USDT", heard_seconds_ago=90)}
    sockets = _sockets(clients)
    assert sockets.silence_ns("BTC/USDT")
    clients["wss://one"] = _socket("trade:BTC/USDT")
    assert sockets.silence_ns("BTC/USDT") is None


def test_a_market_that_nobody_reads_has_no_socket() -> None:
    clients = {"wss://one": _socket("trade:BTC/USDT", heard_seconds_ago=1)}
    assert _sockets(clients, pumped="ETH/USDT").silence_ns("BTC/USDT") is None


@pytest.mark.parametrize("name", ["binance", "bybit", "deribit", "kraken"])
async def test_sockets_are_pinged_every_two_seconds_and_closed_as_late_as_ccxt_would(name: str) -> None:
    def new_client(package: Any, **options: Any) -> Any:
        return getattr(package, name)()

    own = getattr(ccxt.pro, name)().streaming.copy()
    venue = SimpleNamespace(new_client=new_client, rate_limiter=None)
    client = LiveSockets(cast(CcxtVenue, venue)).client()
    assert client.streaming["keepAlive"] == 2_000
    late_ms = client.streaming["keepAlive"] * client.streaming["maxPingPongMisses"]
    assert late_ms == own["keepAlive"] * own["maxPingPongMisses"]
    others = getattr(ccxt.pro, name)().streaming
    assert others["keepAlive"] == own["keepAlive"], "clients of others are as they were"
    await client.close()
