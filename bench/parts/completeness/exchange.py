"""The simulated exchange: its faults, its counters, and its answers without faults."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Sequence
from typing import Any

from bench.parts.completeness.cells import MINUTE_NS, Cell
from bench.parts.completeness.compare import Values
from dexorder_common.model.time_range import TimeRange

PAGE = 1_000
"""Most candles of one answer."""
_MS_NS = 1_000_000
_DATA_PATHS = ("/api/v3/klines", "/api/v3/aggTrades")


class SimulatedExchange:
    """Control of the exchange at ``host:port``."""

    def __init__(self, address: str) -> None:
        self.address = address

    def set_faults(self, rules: Sequence[dict[str, Any]]) -> None:
        """Replace the rules of the exchange and start its count."""
        self._ask("/sim/faults", "POST", json.dumps(rules).encode())

    def reset_counters(self) -> None:
        """Reset the counters."""
        self._ask("/sim/stats", "DELETE")

    def counters(self) -> tuple[int, int, int, float]:
        """Calls for candles and trades, faulty answers, calls inside a ban and the ms after which the latest of them
        came; since the last reset."""
        stats = self._ask("/sim/stats")
        calls = sum(stats["requests"].get(path, 0) for path in _DATA_PATHS)
        latest_ms = max(stats["calls_in_ban_ms"], default=0.0)
        return calls, sum(stats["faults"].values()), stats["calls_in_ban"], latest_ms

    def truth(self, cell: Cell) -> dict[int, Values]:
        """Return the minutes of the cell's range and around it by open time; call it while there are no faults.

        Raises:
            ValueError: There is no minute.
        """
        span, found = cell.wide, dict[int, Values]()
        for start_ns in range(span.start_ns, span.end_ns, PAGE * MINUTE_NS):
            found |= self._page(cell.symbol, TimeRange(start_ns, min(start_ns + PAGE * MINUTE_NS, span.end_ns)))
        if not found:
            raise ValueError(f"{cell.symbol} has no candle in {span}")
        return found

    def _page(self, symbol: str, span: TimeRange) -> dict[int, Values]:
        rows = self._ask(
            f"/api/v3/klines?symbol={symbol.replace('/', '')}&interval=1m&limit={PAGE}"
            f"&startTime={span.start_ns // _MS_NS}&endTime={span.end_ns // _MS_NS - 1}"
        )
        return {row[0] * _MS_NS: tuple(float(value) for value in row[1:6]) for row in rows}

    def _ask(self, path: str, method: str = "GET", body: bytes | None = None) -> Any:
        request = urllib.request.Request(f"http://{self.address}{path}", data=body, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)
