"""Answers of exchanges: values at a place in one, the error of an unusable one, and the attempts to get one. Pure.

Times of attempts are of the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dexorder_common.model.history import Delay
from dexorder_common.model.times import SECOND_NS

MS_NS = 1_000_000
Path = tuple[str | int, ...]
"""Keys and indexes from the top of an answer."""
MARKET = "{market}"
"""Stands in a path for the exchange's id of the queried market."""
SLOW_NS = 5 * SECOND_NS
"""An attempt without an answer for this long is a delay."""


class BadAnswer(Exception):
    """Answer that is not a valid list of rows of the queried window; the query is worth repeating.

    Attributes:
        kind: Kind of fault in one word, for metrics.
        opens: Open times of the faulty candles, if the answer is valid except for these.
    """

    def __init__(self, reason: str, *, kind: str = "shape", opens: Iterable[int] = ()) -> None:
        super().__init__(reason)
        self.kind = kind
        self.opens = tuple(opens)


def at(answer: Any, path: Path) -> Any:
    """Return the value at a path, or None if the answer lacks the place."""
    for key in path:
        if isinstance(key, int):
            answer = answer[key] if isinstance(answer, list) and key < len(answer) else None
        else:
            answer = answer.get(key) if isinstance(answer, dict) else None
    return answer


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
        """Start a query."""
        self.query = query
        self.failures = 0
        self.reason = ""

    def attempt(self, *, now_ns: int) -> None:
        """Start an attempt."""
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
