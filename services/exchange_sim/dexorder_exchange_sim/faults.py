"""Fault rules: the requests that fail, and how. Pure; the server applies them to answers, `spoiling` to rows.

Exchanges and their proxies really send these statuses and bodies: a 200 with half a JSON text or with a web page is the
kind that loses data silently.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dexorder_exchange_sim.absent import Coarser

Ban = Literal["http_429", "http_418"]
"""Kinds that send Retry-After and start a ban."""
Refusal = Literal["delisted", "http_403", "http_404", "http_451", "http_500", "http_502", "http_503", "http_504"]
Silence = Literal["hang", "drip", "stall", "reset"]
"""Kinds without a complete answer: no byte; byte by byte; half of it; an immediate connection reset."""
Body = Literal["slow_down", "unavailable", "cut_json", "html", "text", "null", "empty", "other_symbol"]
"""Kinds that answer with another body."""
Less = Literal["short", "newest", "exclusive", "drop_first", "drop_last"]
"""Kinds that leave out rows at one end."""
Changed = Literal["outside", "duplicate_tail", "reversed", "unfinished", "running"]
"""Kinds that add rows, or change their order or the last one."""
Placed = Literal["hole", "null_fields", "off_grid", "double", "double_other", "unreadable", "low_above_high", "edited"]
"""Kinds that change some rows of an answer."""
Replica = Literal["absent", "behind"]
"""Kinds that answer as a replica does that lacks the rows of some time, or is some seconds behind."""
Kind = Literal[Ban, Refusal, Silence, Body, Less, Changed, Placed, Replica]
AtOnce = Literal["ws_close", "ws_abort", "ws_half", "ws_silence", "ws_freeze", "ws_lag", "ws_garbage"]
"""Kinds that need no message, so that a command can order them."""
SocketKind = Literal[AtOnce, "ws_cut", "ws_drop", "ws_double", "ws_shuffle", "ws_edited"]
"""Kinds that strike a message of a WebSocket, and its connection; see `socket_faults`."""
BANS, SILENCES, PLACED, REPLICAS = map(get_args, (Ban, Silence, Placed, Replica))
SOCKET_KINDS, AT_ONCE = get_args(SocketKind), get_args(AtOnce)

STATUSES: dict[str, tuple[int, str, str]] = {
    "http_429": (429, "application/json", '{"code":-1003,"msg":"Too much request weight used; please slow down."}'),
    "http_418": (418, "application/json", '{"code":-1003,"msg":"Way too much request weight used; IP banned."}'),
    "delisted": (400, "application/json", '{"code":-1121,"msg":"Invalid symbol."}'),
    "http_403": (403, "text/html", "<html><head><title>403 Forbidden</title></head></html>"),
    "http_404": (404, "text/html", "<html><head><title>404 Not Found</title></head></html>"),
    "http_451": (451, "application/json", '{"code":0,"msg":"Service unavailable from a restricted location."}'),
    "http_500": (500, "text/plain", "Internal Server Error"),
    "http_502": (502, "text/html", "<html><head><title>502 Bad Gateway</title></head></html>"),
    "http_503": (503, "text/html", "<html><head><title>503 Service Unavailable</title></head></html>"),
    "http_504": (504, "text/html", "<html><head><title>504 Gateway Time-out</title></head></html>"),
}
"""Kinds that answer with an error status: status, content type, body; a dialect may have its own body."""
BODIES: dict[str, tuple[str, str]] = {
    "html": ("text/html", "<!DOCTYPE html><html><body><h1>Down for maintenance</h1></body></html>"),
    "text": ("text/plain", "temporarily unavailable"),
    "null": ("application/json", "null"),
    "empty": ("application/json", "[]"),
}
"""Kinds that answer 200 with another body: content type, body; dialects define ``slow_down`` and ``unavailable``."""
MESSAGE = "message"
"""Path of a message to a WebSocket, which only `SOCKET_KINDS` strike."""
Window = tuple[int, int]


class FaultRule(BaseModel):
    """Requests, or messages of WebSockets, that fail in one way.

    Matching ones are numbered from 1, and the fields below select some of them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    kind: Kind | SocketKind
    """Kind of the fault."""
    path: str = "history"
    """Path of the requests; ``history`` is any that has candles or trades, ``*`` any path of the exchange.
    `SOCKET_KINDS` strike messages instead; the opening request of a WebSocket has a path like any other."""
    symbol: str | None = None
    """Only requests for this exchange id (``BTCUSDT``)."""
    span: Window | None = None
    """Only requests with a window that overlaps [start, end), nanoseconds; kinds in `PLACED` change the rows in it."""
    after: int = Field(default=0, ge=0)
    """Matching requests that succeed before the first fault."""
    every: int | None = Field(default=None, ge=1)
    """Fail each n-th request."""
    probability: float = Field(default=1.0, gt=0, le=1)
    """Probability of a fault, decided by seed, rule and request number."""
    count: int | None = Field(default=None, ge=1)
    """Maximum number of faults."""
    lasts_s: float | None = Field(default=None, gt=0)
    """The fault ends this long after the first request that it applies to, by the exchange's clock, seconds."""
    replicas: int | None = Field(default=None, ge=2)
    """The exchange has this many replicas, one of them faulty; each connection stays at one of them."""
    retry_after_s: int = Field(default=1, ge=0)
    """Retry-After of http_429 and http_418, seconds."""
    hang_s: float = Field(default=3600, ge=0)
    """Silence of ``hang`` and ``stall`` before they close the connection, and of ``ws_silence``, seconds."""
    lag_s: float = Field(default=5, ge=0)
    """Delay of the message that ``ws_lag`` strikes, and of all after it; and how old the answer of ``behind`` is,
    seconds."""
    drip_s: float = Field(default=1, gt=0)
    """Time between two bytes of ``drip``, seconds."""
    size: int = Field(default=0, ge=0)
    """Rows that ``hole`` (10), ``duplicate_tail`` and ``outside`` (2) change, or ``short`` and ``newest`` keep (half);
    messages that ``ws_shuffle`` (5) puts into another order. 0: default."""
    place: Literal["middle", "random"] = "middle"
    """Position of the rows that kinds in `PLACED` change; ``random`` is decided by seed, rule and request number."""
    coarser: Coarser = "absent"
    """Candles longer than a minute in an answer of ``absent``: ``kept``; ``absent`` where they open in the span;
    ``computed`` from the minutes that are left."""
    other: str | None = None
    """Exchange id of the market that ``other_symbol`` answers for; by default ETH, or BTC where ETH was requested."""

    @model_validator(mode="after")
    def _fields_that_mean_something(self) -> FaultRule:
        if self.every is not None and "probability" in self.model_fields_set:
            raise ValueError("every and probability exclude each other; set one of them")
        if self.span is not None and not 0 <= self.span[0] < self.span[1] < 2**63:
            raise ValueError(f"span {self.span} is not start < end, nanoseconds since the epoch")
        if "place" in self.model_fields_set and self.kind not in PLACED:
            raise ValueError(f"place has no effect on {self.kind}, only on {', '.join(PLACED)}")
        if "place" in self.model_fields_set and self.span is not None:
            raise ValueError("span and place exclude each other; set one of them")
        if self.kind in SOCKET_KINDS and ("path" in self.model_fields_set or self.replicas is not None):
            raise ValueError(f"path and replicas have no effect on {self.kind}, which strikes messages of WebSockets")
        if self.kind == "absent" and self.span is None:
            raise ValueError("absent needs a span, the time without rows")
        if "coarser" in self.model_fields_set and self.kind != "absent":
            raise ValueError(f"coarser has no effect on {self.kind}, only on absent")
        if self.other is not None and self.kind != "other_symbol":
            raise ValueError(f"other has no effect on {self.kind}, only on other_symbol")
        return self


@dataclass(frozen=True, slots=True)
class Strike:
    """Rule that applies to a request, and 64 random bits."""

    rule: FaultRule
    roll: int = 0


class FaultPlan:
    """Active rules and their counters. The first rule that applies wins; all of them count the request."""

    def __init__(
        self, rules: Sequence[FaultRule], *, seed: int, history: Collection[str] = ("/api/v3/klines",)
    ) -> None:
        """Take the rules; ``history`` are the paths that they mean by this word."""
        self.rules = tuple(rules)
        self._history = history
        self._seed = seed
        self._seen = [0] * len(self.rules)
        self._struck = [0] * len(self.rules)
        self._began_ns: dict[int, int] = {}

    def pick(
        self, path: str, symbol: str | None, window_ns: Window | None = None, *, connection: int = 0, now_ns: int = 0
    ) -> Strike | None:
        """Count a request for a market, by exchange id, and a half-open window; return the fault that applies to it."""
        chosen: int | None = None
        for number, rule in enumerate(self.rules):
            if not (self._on_path(rule, path) and rule.symbol in (None, symbol) and _touches(rule.span, window_ns)):
                continue
            if rule.replicas is not None and connection % rule.replicas:
                continue
            self._seen[number] += 1
            if chosen is None and self._strikes(number, rule) and self._lasts(number, rule, now_ns):
                chosen = number
        if chosen is None:
            return None
        self._struck[chosen] += 1
        return Strike(self.rules[chosen], self._roll(f"{chosen}/{self._seen[chosen]}/place"))

    def _on_path(self, rule: FaultRule, path: str) -> bool:
        if path == MESSAGE or rule.kind in SOCKET_KINDS:
            return path == MESSAGE and rule.kind in SOCKET_KINDS
        return rule.path in ("*", path) or (rule.path == "history" and path in self._history)

    def _strikes(self, number: int, rule: FaultRule) -> bool:
        turn = self._seen[number] - rule.after
        if turn <= 0 or (rule.count is not None and self._struck[number] >= rule.count):
            return False
        if rule.every is not None:
            return turn % rule.every == 0
        return self._roll(f"{number}/{turn}") < rule.probability * 2**64

    def _lasts(self, number: int, rule: FaultRule, now_ns: int) -> bool:
        began_ns = self._began_ns.setdefault(number, now_ns)
        return rule.lasts_s is None or now_ns - began_ns < rule.lasts_s * 1e9

    def _roll(self, what: str) -> int:
        return int.from_bytes(hashlib.blake2b(f"{self._seed}/{what}".encode(), digest_size=8).digest(), "big")


def _touches(span: Window | None, window_ns: Window | None) -> bool:
    if span is None:
        return True
    return window_ns is not None and span[0] < window_ns[1] and window_ns[0] < span[1]
