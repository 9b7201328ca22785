"""Limits of comparisons of trades, for all markets of a venue: calls, so that refills come first, and memory. Pure.

Over the limits less is compared: calls are rarer and cover more trades each, and markets with compared candles are
queried only while calls are left over. Trades that wait too long are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from dexorder_common.model.times import SECOND_NS

SHARE = 0.2
"""Share of the venue's rate that one ingestor may use for comparisons."""
_BURST = 20
"""Calls that can be saved up."""
_KEPT = 10
"""Calls of these that are kept for markets without candles."""


@dataclass(slots=True)
class Room:
    """Room for trades that wait for their comparison; each takes about 450 bytes."""

    left: int = 200_000


class ComparisonLimits:
    """Limits of one venue. ``now_ns`` is of the monotonic clock."""

    def __init__(self, per_second: float, *, now_ns: int) -> None:
        """Take the venue's rate of calls; no call is available at the start."""
        self.room = Room()
        self._ns_per_call = max(1.0, SECOND_NS / (SHARE * per_second))
        self._full_ns = now_ns + int(_BURST * self._ns_per_call)
        """Time at which `_BURST` calls are saved up, unless one is made before."""

    def take(self, *, now_ns: int, can_wait: bool) -> bool:
        """Use a call if there is one.

        Args:
            can_wait: Leave the last calls to other markets.
        """
        full_ns = max(self._full_ns, now_ns)
        calls = _BURST - (full_ns - now_ns) / self._ns_per_call
        if calls < 1 + (_KEPT if can_wait else 0):
            return False
        self._full_ns = full_ns + int(self._ns_per_call)
        return True
