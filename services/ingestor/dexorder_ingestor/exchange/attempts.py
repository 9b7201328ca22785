"""Attempts of a session's current query, and the delay that they show. Pure; times are of the monotonic clock."""

from __future__ import annotations

from dataclasses import dataclass

from dexorder_common.model.history import Delay
from dexorder_common.model.times import SECOND_NS

SLOW_NS = 5 * SECOND_NS
"""An attempt without an answer for this long is a delay."""


@dataclass(slots=True)
class Attempts:
    """Attempts of the current query.

    Attributes:
        query: The query, as errors name it; empty between two queries.
        started_ns: Start of the attempt under way, its wait for the rate limit included; 0 during a pause.
        failures: Failed attempts so far.
        reason: Failure of the last one.
        next_ns: Time of the next attempt; 0 while one is under way.
    """

    query: str = ""
    started_ns: int = 0
    failures: int = 0
    reason: str = ""
    next_ns: int = 0

    def begin(self, query: str) -> None:
        """Begin a query."""
        self.query = query
        self.failures = 0
        self.reason = ""

    def attempt(self, *, now_ns: int) -> None:
        """Begin an attempt."""
        self.started_ns = now_ns
        self.next_ns = 0

    def fail(self, reason: str, *, next_ns: int) -> None:
        """Record a failure and the time of the next attempt."""
        self.failures += 1
        self.started_ns = 0
        self.reason = reason
        self.next_ns = next_ns

    def end(self) -> None:
        """End the query."""
        self.query = ""

    def delay(self, venue: str, *, ban_ns: int, now_ns: int, wall_ns: int) -> Delay | None:
        """Return the reason for which the query waits, with times of the wall clock; None if it goes well.

        Args:
            ban_ns: End of the exchange's last ban.
        """
        is_banned = ban_ns > now_ns
        if not self.query or not (is_banned or self.failures or now_ns - self.started_ns >= SLOW_NS):
            return None
        reason = self.reason or (
            f"{venue} has banned this address" if is_banned else f"{venue} has not answered {self.query}"
        )
        next_ns = max(self.next_ns, ban_ns) if is_banned else self.next_ns
        to_wall_ns = wall_ns - now_ns
        return Delay(
            reason,
            self.failures,
            next_ns + to_wall_ns if next_ns > now_ns else 0,
            ban_ns + to_wall_ns if is_banned else 0,
        )
