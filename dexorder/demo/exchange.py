"""Simulated exchange of the demonstration: corrupts responses, counts them, and serves the true candles."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from typing import Any

from dexorder.errors import SuiteFailed
from dexorder_common.model.time_range import TimeRange

Values = tuple[float, ...]
"""Open, high, low, close, volume."""
FAULTS: Mapping[str, str] = {
    "http_502": "HTTP 502 with a web page",
    "http_429": "HTTP 429, too many requests",
    "html": "HTTP 200 with a web page",
    "cut_json": "truncated JSON",
    "empty": "an empty list",
    "hole": "ten candles missing in the middle",
    "drop_last": "the last candle missing",
    "duplicate_tail": "two duplicate candles",
    "null_fields": "a candle without values",
    "reset": "connection reset",
}
"""Faults of the demonstration by their name at the simulated exchange."""
FAULT_SHARE = 0.2
"""Share of corrupted candle responses."""
_CANDLES = "/api/v3/klines"
_MAX_CANDLES = 1_000
_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True)
class FaultCounts:
    """Number of candle responses, and of corrupted ones by fault."""

    responses: int
    faults: Mapping[str, int]

    @property
    def total(self) -> int:
        """Return the number of all faults."""
        return sum(self.faults.values())

    def lines(self) -> list[str]:
        """Return lines for people, most frequent fault first."""
        kinds = sorted(self.faults.items(), key=lambda kind: (-kind[1], kind[0]))
        head = f"the exchange corrupted {self.total} of its {self.responses} candle responses:"
        return [head, *(f"  {count} × {FAULTS.get(kind, kind)}" for kind, count in kinds)]


@dataclass(frozen=True)
class DemoComparison:
    """Comparison of table rows with the exchange's candles, as numbers of candles."""

    rows: int
    lost: int
    duplicate: int
    unknown: int
    different: int

    @property
    def equal(self) -> bool:
        """Return whether the rows are exactly the exchange's candles, each once."""
        return not (self.lost or self.duplicate or self.unknown or self.different)

    def line(self) -> str:
        """Return a line for people."""
        return (
            f"compared with the exchange's candles: {self.rows:,} rows, {self.lost} lost, {self.duplicate} duplicate, "
            f"{self.unknown} unknown, {self.different} with other values"
        )


def compare(rows: Iterable[tuple[int, Values]], truth: Mapping[int, Values]) -> DemoComparison:
    """Compare rows (open time in ns, values) with the exchange's candles. Pure."""
    found = list(rows)
    times = Counter(open_ns for open_ns, _ in found)
    return DemoComparison(
        rows=len(found),
        lost=sum(open_ns not in times for open_ns in truth),
        duplicate=sum(count - 1 for count in times.values()),
        unknown=sum(open_ns not in truth for open_ns in times),
        different=sum(truth.get(open_ns, values) != values for open_ns, values in found),
    )


class DemoExchange:
    """Client of the suite's simulated exchange at ``host:port``."""

    def __init__(self, address: str) -> None:
        self.address = address

    def start_faults(self) -> None:
        """Start to corrupt candle responses, and reset the counts."""
        self._call("DELETE", "/sim/stats")
        each = 1 - (1 - FAULT_SHARE) ** (1 / len(FAULTS))
        self._call("POST", "/sim/faults", [{"kind": kind, "probability": each} for kind in FAULTS])

    def stop_faults(self) -> FaultCounts:
        """Stop the faults and return their counts since `start_faults`."""
        self._call("POST", "/sim/faults", [])
        stats = self._call("GET", "/sim/stats")
        return FaultCounts(int(stats["requests"].get(_CANDLES, 0)), dict(stats["faults"]))

    def candles(self, market_id: str, interval: str, span: TimeRange) -> dict[int, Values]:
        """Return the exchange's candles that open in a span, by open time in ns; call it without faults."""
        found: dict[int, Values] = {}
        first_ms, last_ms = span.start_ns // 1_000_000, (span.end_ns - 1) // 1_000_000
        while rows := self._call(
            "GET",
            f"{_CANDLES}?symbol={market_id}&interval={interval}&limit={_MAX_CANDLES}"
            f"&startTime={first_ms}&endTime={last_ms}",
        ):
            found.update((row[0] * 1_000_000, tuple(map(float, row[1:6]))) for row in rows)
            first_ms = rows[-1][0] + 1
        return found

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        """Make one HTTP call and return the JSON of its response."""
        connection = HTTPConnection(self.address, timeout=_TIMEOUT_SECONDS)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            content = response.read()
            if response.status != 200:
                raise SuiteFailed(f"the simulated exchange answered {response.status} to {path}: {content[:200]!r}")
            return json.loads(content)
        except (OSError, HTTPException, ValueError) as error:
            raise SuiteFailed(f"the simulated exchange does not answer {path}: {error}") from error
        finally:
            connection.close()
