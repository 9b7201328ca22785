"""What the exchange has seen, for tests that judge a client's manners. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Any


class Stats:
    """Counters since the start or the last reset. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._requests: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()
        self._ban_start_s = self._ban_end_s = float("-inf")
        self._ban_calls_ms: list[float] = []
        self._calls_in_ban = 0
        self._minute = -1
        self._weight = 0

    def request(self, path: str, *, now_s: float) -> None:
        """Count a request for a path of the exchange."""
        self._requests[path] += 1
        if now_s < self._ban_end_s:
            self._calls_in_ban += 1
            if len(self._ban_calls_ms) < 1000:
                self._ban_calls_ms.append(round((now_s - self._ban_start_s) * 1000, 3))

    def fault(self, kind: str) -> None:
        """Count a fault."""
        self._faults[kind] += 1

    def ban(self, retry_after_s: float, *, now_s: float) -> None:
        """Open a ban window: calls before it ends are counted."""
        self._ban_start_s, self._ban_end_s = now_s, max(self._ban_end_s, now_s + retry_after_s)

    def weigh(self, weight: int, *, now_s: float) -> int:
        """Add a request's weight and give the sum of the current minute."""
        minute = int(now_s // 60)
        if minute != self._minute:
            self._minute, self._weight = minute, 0
        self._weight += weight
        return self._weight

    def snapshot(self) -> dict[str, Any]:
        """Counts as JSON types; ``calls_in_ban_ms`` says how long after the ban's answer the first 1000 calls came."""
        return {
            "requests": dict(self._requests),
            "faults": dict(self._faults),
            "calls_in_ban": self._calls_in_ban,
            "calls_in_ban_ms": self._ban_calls_ms,
            "weight_this_minute": self._weight,
        }
