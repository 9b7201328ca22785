"""Long ranges without candles that one dispatch of a request has proven, for the request's other dispatches. Pure.

The relay divides a request for years into many dispatches. The time before a listing is one range to all of them, so
one proves it and the others use the proof. Other requests never do: the relay's own queries about an absence must query
the exchange.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from dexorder_common.model.proof import Proof
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS

_MAX_AGE_NS = 300 * SECOND_NS
"""Age from which a proof is not used, because the range may have been retracted since."""
_MAX_REQUESTS = 64
"""Requests that are remembered."""


class ProvenAbsence(NamedTuple):
    """Range without candles, and its proof."""

    span: TimeRange
    proofs: tuple[Proof, ...]

    def part(self, span: TimeRange) -> ProvenAbsence | None:
        """Return the part inside a range, or None."""
        inside = self.span.intersect(span)
        proofs = (p._replace(span=part) for p in self.proofs if inside and (part := p.span.intersect(inside)))
        return ProvenAbsence(inside, tuple(proofs)) if inside else None


class RequestAbsences:
    """Absences that the dispatches of one request have proven."""

    def __init__(self) -> None:
        self._found: list[ProvenAbsence] = []
        self.turn = asyncio.Lock()
        """Held by the dispatch that looks for one, so that the others wait for its result."""

    def note(self, absence: ProvenAbsence) -> None:
        """Add an absence."""
        self._found.append(absence)

    def at(self, time_ns: int, *, now_ns: int) -> ProvenAbsence | None:
        """Return the rest, after a time, of the absence that contains the time and was proven recently."""
        for absence in self._found:
            is_new = abs(now_ns - absence.proofs[-1].last_ns) < _MAX_AGE_NS
            if is_new and absence.span.start_ns <= time_ns < absence.span.end_ns:
                return absence.part(TimeRange(time_ns, absence.span.end_ns))
        return None


class KnownAbsences:
    """Absences of the latest requests."""

    def __init__(self) -> None:
        self._by_request: dict[str, RequestAbsences] = {}

    def of(self, request_id: str) -> RequestAbsences:
        """Return the absences of a request; the least recently used ones are forgotten."""
        found = self._by_request.pop(request_id, None) or RequestAbsences()
        self._by_request[request_id] = found
        while len(self._by_request) > _MAX_REQUESTS:
            del self._by_request[next(iter(self._by_request))]
        return found
