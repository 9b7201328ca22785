"""Messages on their way to a WebSocket's client, and the effects of faults on them. Pure.

| kind | |
| --- | --- |
| ``ws_close``, ``ws_abort`` | the message is lost; a close frame with code 1001; a TCP reset |
| ``ws_half`` | the first half of the message's frame, then a TCP reset |
| ``ws_silence``, ``ws_freeze`` | no message and no pong is sent for ``hang_s``; that time's messages are lost |
| ``ws_lag`` | the message and all after it wait until ``lag_s`` have passed |
| ``ws_garbage``, ``ws_cut`` | malformed text or binary data, or half of the text, instead of the message |
| ``ws_drop``, ``ws_double`` | the message is lost; is sent again at once |
| ``ws_edited`` | the price of a trade of Binance has another first digit than REST's |
| ``ws_shuffle`` | the message and the next ones, ``size`` together, in another order |
"""

from __future__ import annotations

import hashlib
import re
from collections import deque
from dataclasses import dataclass

from dexorder_exchange_sim.faults import AT_ONCE, FaultRule, Strike

GARBAGE: tuple[str | bytes, ...] = (
    '{"e":"trade","s":',
    "<html><body>502 Bad Gateway</body></html>",
    "[[[",
    "null",
    b"\x00\xff\xfe\x80",
    '{"e":"trade"}',
    '{"channel":"trade","data":[{}]}',
)
"""Malformed JSON, another text, JSON of another type, bytes that are not UTF-8, messages without their fields."""
_NO_MESSAGE = '{"e":"trade"}'
_PRICE = re.compile(r'(?<="p":")[0-9]')
_SHUFFLED = 5
_HELD_S = 1.0
"""Longest wait of a message for others to change places with."""


@dataclass(frozen=True, slots=True)
class Send:
    """A frame with text or binary data."""

    data: str | bytes


@dataclass(frozen=True, slots=True)
class SendHalf:
    """The first half of a text frame; later bytes would be read as its rest."""

    text: str


@dataclass(frozen=True, slots=True)
class Close:
    """The end of the connection: with a close frame, or with a TCP reset."""

    clean: bool


Action = Send | SendHalf | Close


class SocketOutbox:
    """Messages of one connection. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._queue: deque[tuple[float, Action]] = deque()
        self._held: list[str] = []
        self._held_size = 0
        self._held_s = 0.0
        self._roll = 0
        self._silent_until_s = self._frozen_until_s = self._not_before_s = float("-inf")

    def put(self, text: str, strike: Strike | None, *, now_s: float) -> None:
        """Add a message, and the fault that strikes it."""
        if now_s < self._silent_until_s:
            return
        kind = strike.rule.kind if strike else None
        if strike and kind in AT_ONCE:
            self.strike(strike.rule, now_s=now_s, roll=strike.roll, text=text)
        elif kind == "ws_cut":
            self._send(text[: len(text) // 2], now_s)
        elif kind == "ws_edited":
            self._send(_PRICE.sub(_other_digit, text, count=1), now_s)
        elif kind == "ws_double":
            self._send(text, now_s)
            self._send(text, now_s)
        elif strike and kind == "ws_shuffle" and not self._held:
            self._held = [text]
            self._held_size = strike.rule.size or _SHUFFLED
            self._held_s = now_s
            self._roll = strike.roll
        elif self._held and kind is None:
            self._held.append(text)
        elif kind != "ws_drop":
            self._send(text, now_s)
        if self._held and len(self._held) >= self._held_size:
            self._let_go(now_s)

    def strike(self, rule: FaultRule, *, now_s: float, roll: int = 0, text: str | None = None) -> None:
        """Start a fault of `AT_ONCE`, for all later messages or in place of one."""
        if rule.kind in ("ws_silence", "ws_freeze"):
            self._silent_until_s = now_s + rule.hang_s
            if rule.kind == "ws_freeze":
                self._frozen_until_s = self._silent_until_s
        elif rule.kind == "ws_lag":
            self._not_before_s = max(self._not_before_s, now_s + rule.lag_s)
            if text is not None:
                self._send(text, now_s)
        elif rule.kind == "ws_garbage":
            self._send(GARBAGE[roll % len(GARBAGE)], now_s)
        elif rule.kind == "ws_half":
            self._add(SendHalf(text or _NO_MESSAGE), now_s)
            self._add(Close(clean=False), now_s)
        else:
            self._add(Close(clean=rule.kind == "ws_close"), now_s)

    def due(self, *, now_s: float) -> list[Action]:
        """Return the actions that are due, in order."""
        if self._held and now_s >= self._held_s + _HELD_S:
            self._let_go(now_s)
        found = []
        while self._queue and self._queue[0][0] <= now_s:
            found.append(self._queue.popleft()[1])
        return found

    def answers(self, *, now_s: float) -> bool:
        """Return whether the server answers a ping."""
        return now_s >= self._frozen_until_s

    def _let_go(self, now_s: float) -> None:
        held, self._held = self._held, []
        for place in shuffled(len(held), self._roll):
            self._send(held[place], now_s)

    def _send(self, data: str | bytes, now_s: float) -> None:
        self._add(Send(data), now_s)

    def _add(self, action: Action, now_s: float) -> None:
        self._queue.append((max(now_s, self._not_before_s), action))


def shuffled(size: int, roll: int) -> list[int]:
    """Return the places of some messages in an order that 64 random bits decide, never the original one."""
    order = sorted(range(size), key=lambda place: hashlib.blake2b(f"{roll}/{place}".encode()).digest())
    return order if order != sorted(order) else order[::-1]


def _other_digit(digit: re.Match[str]) -> str:
    """Return another digit, which is not 0."""
    return str(int(digit[0]) % 9 + 1)
