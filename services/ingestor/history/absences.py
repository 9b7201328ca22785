"""Long ranges without candles that one dispatch has proven, for the other dispatches of the market. Pure.

The relay divides a request for years into many dispatches. What is before a listing is one range to all of them: the
first one proves it with coarse candles, and each of the others queries its own ends only.
"""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary

from services.common.model.proof import Proof
from services.common.model.time_range import TimeRange
from services.common.model.times import SECOND_NS

MAX_AGE_NS = 300 * SECOND_NS
"""Less than the time after which the relay queries an absence again, so that this is never its own confirmation."""


class KnownAbsences:
    """Absences that were proven in the last minutes, and whose turn it is to prove one."""

    def __init__(self) -> None:
        self._proofs: dict[str, list[Proof]] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def turn(self, symbol: str) -> asyncio.Lock:
        """Return a lock to hold until it is known whether the start of a dispatch is absent."""
        lock = self._turns.get(symbol)
        if lock is None:
            lock = self._turns[symbol] = asyncio.Lock()
        return lock

    def note(self, symbol: str, proof: Proof) -> None:
        """Add a proof that a range of a market has no candle."""
        self._forget(proof.last_ns)
        self._proofs.setdefault(symbol, []).append(proof)

    def at_start(self, symbol: str, span: TimeRange, *, now_ns: int) -> Proof | None:
        """Return the proof that reaches furthest into a range from its start, cut to it."""
        self._forget(now_ns)
        found = [p for p in self._proofs.get(symbol, ()) if p.span.start_ns <= span.start_ns < p.span.end_ns]
        longest = max(found, key=lambda p: p.span.end_ns, default=None)
        inside = longest.span.intersect(span) if longest else None
        return longest._replace(span=inside) if longest and inside else None

    def _forget(self, now_ns: int) -> None:
        for symbol, proofs in list(self._proofs.items()):
            self._proofs[symbol] = [p for p in proofs if abs(now_ns - p.last_ns) < MAX_AGE_NS]
            if not self._proofs[symbol]:
                del self._proofs[symbol]
