"""Fault switches: which request goes wrong, and how. Pure; the server carries the verdict out, `spoiling` the rows.

Statuses and bodies are what exchanges and the boxes in front of them really send: a 200 with half a JSON text or with a
web page is the kind that loses data silently.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Kind = Literal[
    "slow_down",
    "http_429",
    "http_418",
    "http_403",
    "http_404",
    "http_451",
    "http_500",
    "http_502",
    "http_503",
    "http_504",
    "unavailable",
    "hang",
    "drip",
    "stall",
    "reset",
    "cut_json",
    "html",
    "text",
    "null",
    "empty",
    "other_symbol",
    "short",
    "outside",
    "hole",
    "drop_first",
    "drop_last",
    "duplicate_tail",
    "reversed",
    "null_fields",
    "off_grid",
    "low_above_high",
    "unfinished",
    "running",
    "edited",
]

STATUSES: dict[str, tuple[int, str, str]] = {
    "http_429": (429, "application/json", '{"code":-1003,"msg":"Too much request weight used; please slow down."}'),
    "http_418": (418, "application/json", '{"code":-1003,"msg":"Way too much request weight used; IP banned."}'),
    "http_403": (403, "text/html", "<html><head><title>403 Forbidden</title></head></html>"),
    "http_404": (404, "text/html", "<html><head><title>404 Not Found</title></head></html>"),
    "http_451": (451, "application/json", '{"code":0,"msg":"Service unavailable from a restricted location."}'),
    "http_500": (500, "text/plain", "Internal Server Error"),
    "http_502": (502, "text/html", "<html><head><title>502 Bad Gateway</title></head></html>"),
    "http_503": (503, "text/html", "<html><head><title>503 Service Unavailable</title></head></html>"),
    "http_504": (504, "text/html", "<html><head><title>504 Gateway Time-out</title></head></html>"),
}
"""Kinds that end a request with a status: status, content type, body; a dialect may have a body of its own."""
BODIES: dict[str, tuple[str, str]] = {
    "html": ("text/html", "<!DOCTYPE html><html><body><h1>Down for maintenance</h1></body></html>"),
    "text": ("text/plain", "temporarily unavailable"),
    "null": ("application/json", "null"),
    "empty": ("application/json", "[]"),
}
"""Kinds that answer 200 with something else: content type, body; dialects word ``slow_down`` and ``unavailable``."""
SILENCES = ("hang", "drip", "stall", "reset")
"""Kinds that never give a whole answer: no byte; the answer byte by byte; half of it; a connection reset at once."""
BANS = ("http_429", "http_418")
"""Kinds that carry Retry-After and open a ban window."""
PLACED = ("hole", "null_fields", "off_grid", "low_above_high", "edited")
"""Kinds that touch rows somewhere in an answer."""
HISTORY_PATHS = ("/api/v3/klines", "/0/public/OHLC", "/0/public/Trades")
"""What the path ``history`` means: where each dialect's candles come from."""
Window = tuple[int, int]


class FaultRule(BaseModel):
    """When one kind of fault strikes: every matching request is numbered from 1, the fields below pick some of them."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    kind: Kind
    """What goes wrong."""
    path: str = "history"
    """The request path it strikes; ``history`` is any of `HISTORY_PATHS`, ``*`` any path of the exchange."""
    symbol: str | None = None
    """Only requests for this exchange id (``BTCUSDT``; in Kraken's dialect the pair's key, ``XXBTZUSD``)."""
    span: Window | None = None
    """Only requests whose asked window touches [start, end), nanoseconds; kinds in `PLACED` touch the rows of it."""
    after: int = Field(default=0, ge=0)
    """Leave this many matching requests alone first."""
    every: int | None = Field(default=None, ge=1)
    """Strike each n-th request."""
    probability: float = Field(default=1.0, gt=0, le=1)
    """Strike with this chance, decided by seed, rule and request number."""
    count: int | None = Field(default=None, ge=1)
    """Strike at most this often."""
    retry_after_s: int = Field(default=1, ge=0)
    """Retry-After of http_429 and http_418, seconds."""
    hang_s: float = Field(default=3600, ge=0)
    """How long ``hang`` and ``stall`` keep silent before they close the connection, seconds."""
    drip_s: float = Field(default=1, gt=0)
    """Time between two bytes of ``drip``, seconds."""
    size: int = Field(default=0, ge=0)
    """Rows that ``hole`` (10), ``duplicate_tail`` and ``outside`` (2) touch, or ``short`` leaves (half); 0: as said."""
    place: Literal["middle", "random"] = "middle"
    """Where in the answer kinds in `PLACED` touch rows; at random is decided by seed, rule and request number."""
    other: str | None = None
    """Exchange id of the market whose answer ``other_symbol`` gives; without it ETH, or BTC where ETH was asked."""

    @model_validator(mode="after")
    def _one_cadence(self) -> FaultRule:
        if self.every is not None and "probability" in self.model_fields_set:
            raise ValueError("every and probability exclude each other")
        return self

    @model_validator(mode="after")
    def _fields_that_mean_something(self) -> FaultRule:
        if self.span is not None and not 0 <= self.span[0] < self.span[1] < 2**63:
            raise ValueError(f"span {self.span} is not start < end, nanoseconds since the epoch")
        if "place" in self.model_fields_set and self.kind not in PLACED:
            raise ValueError(f"place means nothing for {self.kind}, only for {', '.join(PLACED)}")
        if "place" in self.model_fields_set and self.span is not None:
            raise ValueError("span and place exclude each other")
        if self.other is not None and self.kind != "other_symbol":
            raise ValueError(f"other means nothing for {self.kind}, only for other_symbol")
        return self


@dataclass(frozen=True, slots=True)
class Strike:
    """A rule that strikes, and 64 random bits of its own."""

    rule: FaultRule
    roll: int = 0


class FaultPlan:
    """The rules in force and how far each has come. The first rule that strikes wins; all of them count on."""

    def __init__(self, rules: Sequence[FaultRule], *, seed: int) -> None:
        self.rules = tuple(rules)
        self._seed = seed
        self._seen = [0] * len(self.rules)
        self._struck = [0] * len(self.rules)

    def pick(self, path: str, symbol: str | None, window_ns: Window | None = None) -> Strike | None:
        """Count one request and say what goes wrong with it, if anything.

        Args:
            path: The request's path.
            symbol: The exchange's id of the market it is about, if any.
            window_ns: The time it asks about, half open, if any.
        """
        chosen: int | None = None
        for number, rule in enumerate(self.rules):
            if not (_on_path(rule.path, path) and rule.symbol in (None, symbol) and _touches(rule.span, window_ns)):
                continue
            self._seen[number] += 1
            if chosen is None and self._strikes(number, rule):
                chosen = number
        if chosen is None:
            return None
        self._struck[chosen] += 1
        return Strike(self.rules[chosen], self._roll(f"{chosen}/{self._seen[chosen]}/place"))

    def _strikes(self, number: int, rule: FaultRule) -> bool:
        turn = self._seen[number] - rule.after
        if turn <= 0 or (rule.count is not None and self._struck[number] >= rule.count):
            return False
        if rule.every is not None:
            return turn % rule.every == 0
        return self._roll(f"{number}/{turn}") < rule.probability * 2**64

    def _roll(self, what: str) -> int:
        return int.from_bytes(hashlib.blake2b(f"{self._seed}/{what}".encode(), digest_size=8).digest(), "big")


def _on_path(wanted: str, path: str) -> bool:
    return wanted in ("*", path) or (wanted == "history" and path in HISTORY_PATHS)


def _touches(span: Window | None, window_ns: Window | None) -> bool:
    if span is None:
        return True
    return window_ns is not None and span[0] < window_ns[1] and window_ns[0] < span[1]
