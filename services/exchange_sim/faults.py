"""Fault switches: which request goes wrong, and how. Pure; the server carries the verdict out.

Statuses and bodies are what exchanges and the boxes in front of them really send: a 200 with half a JSON text or with a
web page is the kind that loses data silently.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Kind = Literal[
    "slow_down", "http_429", "http_418", "http_403", "http_500", "http_502", "http_503",
    "hang", "drip", "stall", "reset", "cut_json", "html", "text", "null", "empty",
    "hole", "drop_first", "drop_last", "duplicate_tail", "reversed", "null_fields", "off_grid", "low_above_high",
    "unfinished", "edited",
]  # fmt: skip
Rows = list[list[Any]]

STATUSES: dict[str, tuple[int, str, str]] = {
    "http_429": (429, "application/json", '{"code":-1003,"msg":"Too much request weight used; please slow down."}'),
    "http_418": (418, "application/json", '{"code":-1003,"msg":"Way too much request weight used; IP banned."}'),
    "http_403": (403, "text/html", "<html><head><title>403 Forbidden</title></head></html>"),
    "http_500": (500, "text/plain", "Internal Server Error"),
    "http_502": (502, "text/html", "<html><head><title>502 Bad Gateway</title></head></html>"),
    "http_503": (503, "text/html", "<html><head><title>503 Service Unavailable</title></head></html>"),
}
"""Kinds that end a request with a status: status, content type, body."""
BODIES: dict[str, tuple[str, str]] = {
    "slow_down": ("application/json", '{"code":-1003,"msg":"Too many requests."}'),
    "html": ("text/html", "<!DOCTYPE html><html><body><h1>Down for maintenance</h1></body></html>"),
    "text": ("text/plain", "temporarily unavailable"),
    "null": ("application/json", "null"),
    "empty": ("application/json", "[]"),
}
"""Kinds that answer 200 with something else: content type, body."""
SILENCES = ("hang", "drip", "stall", "reset")
"""Kinds that never give a whole answer: no byte; the answer byte by byte; half of it; a connection reset at once."""
BANS = ("http_429", "http_418")
"""Kinds that carry Retry-After and open a ban window."""


class FaultRule(BaseModel):
    """When one kind of fault strikes: every matching request is numbered from 1, the fields below pick some of them."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    kind: Kind
    """What goes wrong."""
    path: str = "/api/v3/klines"
    """The request path it strikes; ``*`` is any path of the exchange."""
    symbol: str | None = None
    """Only requests for this exchange id (``BTCUSDT``)."""
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
    """Candles that ``hole`` (10) and ``duplicate_tail`` (2) touch; 0 means that default."""

    @model_validator(mode="after")
    def _one_cadence(self) -> FaultRule:
        if self.every is not None and "probability" in self.model_fields_set:
            raise ValueError("every and probability exclude each other")
        return self


class FaultPlan:
    """The rules in force and how far each has come. The first rule that strikes wins; all of them count on."""

    def __init__(self, rules: Sequence[FaultRule], *, seed: int) -> None:
        self.rules = tuple(rules)
        self._seed = seed
        self._seen = [0] * len(self.rules)
        self._struck = [0] * len(self.rules)

    def pick(self, path: str, symbol: str | None) -> FaultRule | None:
        """Count one request and say what goes wrong with it, if anything."""
        chosen: int | None = None
        for number, rule in enumerate(self.rules):
            if rule.path not in ("*", path) or rule.symbol not in (None, symbol):
                continue
            self._seen[number] += 1
            if chosen is None and self._strikes(number, rule):
                chosen = number
        if chosen is None:
            return None
        self._struck[chosen] += 1
        return self.rules[chosen]

    def _strikes(self, number: int, rule: FaultRule) -> bool:
        turn = self._seen[number] - rule.after
        if turn <= 0 or (rule.count is not None and self._struck[number] >= rule.count):
            return False
        if rule.every is not None:
            return turn % rule.every == 0
        digest = hashlib.blake2b(f"{self._seed}/{number}/{turn}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") < rule.probability * 2**64


def spoil(rule: FaultRule, rows: Rows, *, running_ms: int) -> Rows:
    """Give the rows a kline answer carries when one of the row faults strikes.

    Args:
        rule: The rule that struck; kinds that are not about rows leave them as they are.
        rows: Kline rows (open time in milliseconds, open, high, low, close as text, ...); not changed.
        running_ms: Open time of the candle that is still running.
    """
    middle = len(rows) // 2
    if not rows:
        return rows
    if rule.kind == "hole":
        size = rule.size or 10
        start = max(0, middle - size // 2)
        return rows[:start] + rows[start + size :]
    if rule.kind == "drop_first":
        return rows[1:]
    if rule.kind == "drop_last":
        return rows[:-1]
    if rule.kind == "duplicate_tail":
        return rows + rows[-(rule.size or 2) :]
    if rule.kind == "reversed":
        return rows[::-1]
    if rule.kind == "unfinished":
        return [*rows, [running_ms, *rows[-1][1:]]]
    return [*rows[:middle], _spoil_row(rule.kind, rows[middle]), *rows[middle + 1 :]]


def _spoil_row(kind: str, row: list[Any]) -> list[Any]:
    time, opened, high, low, close, *rest = row
    if kind == "edited":  # sound in itself, but not what was answered before
        return [time, opened, high, low, high, *rest]
    if kind == "null_fields":
        return [time, opened, high, low, None, None, *rest[1:]]
    if kind == "off_grid":
        return [time + 500, opened, high, low, close, *rest]
    if kind == "low_above_high":
        return [time, opened, high, f"{float(high) * 1.01:.8f}", close, *rest]
    return row
