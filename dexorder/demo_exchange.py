"""The demo's exchange: made to answer badly, asked how often it did, and then asked for the truth."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from typing import Any

from dexorder.errors import SuiteFailed
from services.common.model.time_range import TimeRange

Values = tuple[float, ...]
"""Open, high, low, close, volume."""
FAULTS: Mapping[str, str] = {
    "http_502": "HTTP 502 with a web page",
    "http_429": "HTTP 429, too many requests",
    "html": "HTTP 200 with a web page",
    "cut_json": "JSON that breaks off",
    "empty": "an empty list",
    "hole": "ten candles missing in the middle",
    "drop_last": "the last candle missing",
    "duplicate_tail": "two candles twice",
    "null_fields": "a candle without values",
    "reset": "connection reset",
}
"""What goes wrong in the demo, by the simulated exchange's name for it."""
SHARE = 0.2
"""Of the answers about candles, how many are spoiled."""
_CANDLES = "/api/v3/klines"
_MOST_CANDLES = 1_000
_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True)
class Mischief:
    """What the exchange did: answers about candles, and how many of them were spoiled, by fault."""

    answers: int
    faults: Mapping[str, int]

    @property
    def spoiled(self) -> int:
        """All faults together."""
        return sum(self.faults.values())

    def lines(self) -> list[str]:
        """For people, most frequent first."""
        kinds = sorted(self.faults.items(), key=lambda kind: (-kind[1], kind[0]))
        head = f"the exchange spoiled {self.spoiled} of its {self.answers} answers about candles:"
        return [head, *(f"  {count} × {FAULTS.get(kind, kind)}" for kind, count in kinds)]


@dataclass(frozen=True)
class Comparison:
    """Rows of the table beside the candles of the exchange, in numbers of candles."""

    rows: int
    lost: int
    doubled: int
    invented: int
    different: int

    @property
    def equal(self) -> bool:
        """Whether the rows are the exchange's candles, each once."""
        return not (self.lost or self.doubled or self.invented or self.different)

    def line(self) -> str:
        """For people."""
        return (
            f"beside the exchange's own candles: {self.rows:,} rows, {self.lost} lost, {self.doubled} doubled, "
            f"{self.invented} invented, {self.different} with other values"
        )


def compare(rows: Iterable[tuple[int, Values]], truth: Mapping[int, Values]) -> Comparison:
    """Compare rows (open time in ns, values) with the exchange's candles. Pure."""
    found = list(rows)
    times = Counter(open_ns for open_ns, _ in found)
    return Comparison(
        rows=len(found),
        lost=sum(open_ns not in times for open_ns in truth),
        doubled=sum(count - 1 for count in times.values()),
        invented=sum(open_ns not in truth for open_ns in times),
        different=sum(truth.get(open_ns, values) != values for open_ns, values in found),
    )


class DemoExchange:
    """The suite's simulated exchange, at ``host:port``."""

    def __init__(self, address: str) -> None:
        self._address = address

    def misbehave(self) -> None:
        """Spoil answers about candles from now on, and count from here."""
        self._call("DELETE", "/sim/stats")
        each = 1 - (1 - SHARE) ** (1 / len(FAULTS))
        self._call("POST", "/sim/faults", [{"kind": kind, "probability": each} for kind in FAULTS])

    def behave(self) -> Mischief:
        """Spoil no more; what was done since `misbehave`."""
        self._call("POST", "/sim/faults", [])
        stats = self._call("GET", "/sim/stats")
        return Mischief(int(stats["requests"].get(_CANDLES, 0)), dict(stats["faults"]))

    def candles(self, market_id: str, interval: str, span: TimeRange) -> dict[int, Values]:
        """The exchange's own candles that open in a span, by open time in ns; only while it behaves."""
        found: dict[int, Values] = {}
        first_ms, last_ms = span.start_ns // 1_000_000, (span.end_ns - 1) // 1_000_000
        while rows := self._call(
            "GET",
            f"{_CANDLES}?symbol={market_id}&interval={interval}&limit={_MOST_CANDLES}"
            f"&startTime={first_ms}&endTime={last_ms}",
        ):
            found.update((row[0] * 1_000_000, tuple(map(float, row[1:6]))) for row in rows)
            first_ms = rows[-1][0] + 1
        return found

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        """One call; the JSON it answers."""
        connection = HTTPConnection(self._address, timeout=_TIMEOUT_SECONDS)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            content = answer.read()
            if answer.status != 200:
                raise SuiteFailed(f"the simulated exchange answers {answer.status} to {path}: {content[:200]!r}")
            return json.loads(content)
        except (OSError, HTTPException, ValueError) as error:
            raise SuiteFailed(f"the simulated exchange does not answer {path}: {error}") from error
        finally:
            connection.close()
