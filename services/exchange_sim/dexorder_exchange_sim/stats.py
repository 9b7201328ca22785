"""Statistics of requests and sockets, for tests of a client's rate limits. Pure."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any


class RollingSum:
    """Sum over the last seconds, and its maximum."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._items: deque[tuple[float, int]] = deque()
        self.total = 0
        self.most = 0

    def add(self, amount: int, *, now_s: float) -> int:
        """Add an amount now; return the sum including it."""
        while self._items and self._items[0][0] <= now_s - self._seconds:
            self.total -= self._items.popleft()[1]
        self._items.append((now_s, amount))
        self.total += amount
        self.most = max(self.most, self.total)
        return self.total


class Stats:
    """Counters since the start or the last reset. Times are monotonic seconds unless noted."""

    def __init__(self) -> None:
        self._requests: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()
        self._sockets: Counter[str] = Counter()
        self._ban_start_s = self._ban_end_s = float("-inf")
        self._ban_calls_ms: list[float] = []
        self._calls_in_ban = 0
        self._minute = -1
        self._weight = 0
        self._calls_1s = RollingSum(1)
        self._calls_60s = RollingSum(60)
        self._weight_60s = RollingSum(60)

    def request(self, path: str, *, now_s: float) -> int:
        """Count a request for a path of the exchange; return the number of requests within the last second."""
        self._requests[path] += 1
        self._calls_60s.add(1, now_s=now_s)
        if now_s < self._ban_end_s:
            self._calls_in_ban += 1
            if len(self._ban_calls_ms) < 1000:
                self._ban_calls_ms.append(round((now_s - self._ban_start_s) * 1000, 3))
        return self._calls_1s.add(1, now_s=now_s)

    def fault(self, kind: str) -> None:
        """Count a fault."""
        self._faults[kind] += 1

    def socket(self, what: str, number: int = 1) -> None:
        """Count events at WebSockets: ``opened``, ``closed``, ``messages`` sent, ``commands`` received."""
        self._sockets[what] += number

    def ban(self, retry_after_s: float, *, now_s: float) -> None:
        """Start a ban: calls before its end are counted."""
        self._ban_start_s, self._ban_end_s = now_s, max(self._ban_end_s, now_s + retry_after_s)

    def weigh(self, weight: int, *, now_s: float) -> int:
        """Add a request's weight; return the sum of the current minute. The time is the wall clock's."""
        self._weight_60s.add(weight, now_s=now_s)
        minute = int(now_s // 60)
        if minute != self._minute:
            self._minute = minute
            self._weight = 0
        self._weight += weight
        return self._weight

    def snapshot(self) -> dict[str, Any]:
        """Return the counters as JSON types.

        ``calls_in_ban_ms`` are the times of the first 1000 calls after the answer that started the ban; ``most_…`` are
        the largest sums in any window of that length.
        """
        return {
            "requests": dict(self._requests),
            "faults": dict(self._faults),
            "sockets": dict(self._sockets),
            "calls_in_ban": self._calls_in_ban,
            "calls_in_ban_ms": self._ban_calls_ms,
            "weight_this_minute": self._weight,
            "most_calls_1s": self._calls_1s.most,
            "most_calls_60s": self._calls_60s.most,
            "most_weight_60s": self._weight_60s.most,
        }
