"""Funding rates of perpetual futures: the times at which they are paid, and their values. Pure."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

_HOUR = 3_600


@dataclass(frozen=True, slots=True)
class Funding:
    """Funding of one market.

    Attributes:
        changes: From which second on, and every how many hours it is paid; ascending.
    """

    market: str
    changes: Sequence[tuple[int, int]]

    def times_s(self, start_s: int, end_s: int) -> list[int]:
        """Return the times in [start, end), ascending."""
        found: list[int] = []
        ends_s = [*(since_s for since_s, _ in self.changes[1:]), end_s]
        for (since_s, hours), until_s in zip(self.changes, ends_s, strict=True):
            step_s = hours * _HOUR
            first = max(0, -(-(start_s - since_s) // step_s))
            found += range(since_s + first * step_s, min(until_s, end_s), step_s)
        return found

    def next_s(self, now_s: int) -> int:
        """Return the next time after now."""
        place = max(0, bisect_right(self.changes, now_s, key=lambda change: change[0]) - 1)
        return self.times_s(now_s + 1, now_s + 2 + 2 * self.changes[place][1] * _HOUR)[0]

    def rate(self, time_s: int) -> str:
        """Return the rate of a time, as exchanges print it."""
        return f"{self._number(time_s) % 20_001 / 1e7 - 1e-3:.8f}"

    def mark_price(self, time_s: int) -> str:
        """Return the mark price of a time."""
        return f"{30_000 + self._number(time_s) % 1_000_000 / 100:.8f}"

    def _number(self, time_s: int) -> int:
        return int.from_bytes(hashlib.blake2b(f"{self.market}/{time_s}".encode(), digest_size=8).digest(), "big")
