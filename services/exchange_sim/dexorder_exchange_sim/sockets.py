"""WebSockets of the exchange: connections, the pump of each one's messages, and their faults."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from typing import Any, Protocol

from aiohttp import WSMsgType, web

from dexorder_exchange_sim.dialects.dialect import SimDialect, SocketSession, Tapes
from dexorder_exchange_sim.faults import AT_ONCE, MESSAGE, FaultPlan, FaultRule
from dexorder_exchange_sim.socket_faults import Action, Close, Send, SocketOutbox
from dexorder_exchange_sim.stats import Stats
from dexorder_exchange_sim.venue import SimClock

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_BATCH = 256
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.02
_GOING_AWAY = 1001


class Switches(Protocol):
    """Fault rules and statistics in force, which the control paths replace."""

    plan: FaultPlan
    stats: Stats


class Sockets:
    """Open WebSockets of the exchange."""

    def __init__(self, tapes: Tapes, switches: Switches) -> None:
        self._tapes = tapes
        self._clock = tapes.clock
        self._switches = switches
        self._open: dict[int, _Connection] = {}
        self._opened = 0

    async def serve(self, request: web.Request, dialect: SimDialect) -> web.StreamResponse:
        """Serve one connection until it ends; 404 for a path without WebSocket."""
        session = dialect.connect(self._tapes, request.path, request.query, self._clock.now_ns())
        if session is None:
            return web.Response(status=404)
        ws = web.WebSocketResponse(autoping=False, compress=False)
        await ws.prepare(request)
        number, self._opened = self._opened, self._opened + 1
        connection = self._open[number] = _Connection(ws, request.transport, session, self._clock, self._switches)
        self._switches.stats.socket("opened")
        pump = asyncio.create_task(connection.pump())
        try:
            await connection.receive()
        finally:
            del self._open[number]
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)
            self._switches.stats.socket("closed")
        return ws

    def strike(self, rule: FaultRule) -> int:
        """Apply a fault to all open sockets now; return their number.

        Raises:
            ValueError: The kind needs a message to apply to.
        """
        if rule.kind not in AT_ONCE:
            raise ValueError(f"kind {rule.kind!r} applies to no open socket; use one of {', '.join(AT_ONCE)}")
        for connection in self._open.values():
            connection.outbox.strike(rule, now_s=time.monotonic())
            self._switches.stats.fault(rule.kind)
        return len(self._open)

    def describe(self) -> list[dict[str, Any]]:
        """Return the open connections as JSON types."""
        return [
            {"number": number, "subscriptions": [str(key) for key in connection.session.subscriptions]}
            for number, connection in self._open.items()
        ]


class _Connection:
    """One WebSocket: reads commands, and sends messages when they are due by the exchange's clock."""

    def __init__(
        self,
        ws: web.WebSocketResponse,
        transport: asyncio.Transport | None,
        session: SocketSession,
        clock: SimClock,
        switches: Switches,
    ) -> None:
        self.session = session
        self.outbox = SocketOutbox()
        self._ws = ws
        self._transport = transport
        self._clock = clock
        self._switches = switches

    async def receive(self) -> None:
        """Apply the client's commands until the connection ends."""
        async for message in self._ws:
            if message.type == WSMsgType.PING:
                if self.outbox.answers(now_s=time.monotonic()):
                    await self._ws.pong(message.data)
            elif message.type == WSMsgType.TEXT:
                self._switches.stats.socket("commands")
                self._put(self.session.receive(message.data, self._clock.now_ns()))

    async def pump(self) -> None:
        """Send messages until the connection ends."""
        self._put(self.session.greeting(self._clock.now_ns()))
        jumps, beat_s = self._clock.jumps, time.monotonic()
        try:
            while not self._ws.closed:
                now_ns, now_s = self._clock.now_ns(), time.monotonic()
                if jumps != self._clock.jumps:
                    jumps = self._clock.jumps
                    self.session.restart(now_ns)
                if now_s - beat_s >= self.session.beat_s:
                    beat_s = now_s
                    await self._beat(now_s)
                count = self._take(now_ns, now_s)
                for action in self.outbox.due(now_s=now_s):
                    await self._perform(action)
                await asyncio.sleep(0 if count == _BATCH else self._pause_s(now_ns))
        except ConnectionError:
            pass  # the client is gone; `receive` ends too

    def _put(self, texts: list[str]) -> None:
        for text in texts:
            self.outbox.put(text, None, now_s=time.monotonic())

    def _take(self, now_ns: int, now_s: float) -> int:
        messages = self.session.take(now_ns, _BATCH)
        for message in messages:
            window_ns = (message.time_ns, message.time_ns + 1)
            strike = self._switches.plan.pick(MESSAGE, message.market, window_ns, now_ns=now_ns)
            if strike is not None:
                self._switches.stats.fault(strike.rule.kind)
            self.outbox.put(message.text, strike, now_s=now_s)
        self._switches.stats.socket("messages", len(messages))
        return len(messages)

    async def _beat(self, now_s: float) -> None:
        if self.session.beat is not None:
            self._put([self.session.beat])
        elif self.outbox.answers(now_s=now_s):
            await self._ws.ping()

    async def _perform(self, action: Action) -> None:
        if isinstance(action, Send):
            await (self._ws.send_str(action.data) if isinstance(action.data, str) else self._ws.send_bytes(action.data))
        elif isinstance(action, Close) and action.clean:
            await self._ws.close(code=_GOING_AWAY)
        elif self._transport is not None:
            if isinstance(action, Close):
                end(self._transport, reset=True)
            else:
                self._transport.write(_first_half(action.text.encode()))
                await asyncio.sleep(0.05)  # or the reset would overtake it

    def _pause_s(self, now_ns: int) -> float:
        """Return the time until the next message, bounded, as commands and the clock may change it."""
        next_ns, speed = self.session.next_ns(), self._clock.speed
        if next_ns is None or not speed:
            return _LONGEST_PAUSE_S
        return min(max((next_ns - now_ns) / 1e9 / speed, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)


def _first_half(payload: bytes) -> bytes:
    """Return the head of a text frame and half of its payload."""
    size = len(payload)
    head = bytes([0x81, size]) if size < 126 else b"\x81\x7e" + size.to_bytes(2, "big")
    return head + payload[: size // 2]


def end(transport: asyncio.Transport, *, reset: bool) -> None:
    """End a connection at once, with a TCP reset or with a FIN."""
    if reset:
        own: socket.socket = transport.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    transport.abort()
