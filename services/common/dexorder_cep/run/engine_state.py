"""State of an engine between batches, in parts by ticker, so that tickers can be moved between engines. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from dexorder_common.model.errors import InvalidRequest

STATE_VERSION = 3
_DECIMAL_KEY = "$decimal"
_NUMBER, _TICKERS = 1, 5


class EngineState(NamedTuple):
    """Triggers, and their state for each ticker. The parts are JSON."""

    triggers: bytes
    tickers: Mapping[str, bytes]

    @staticmethod
    def of(registrations: Sequence[Any], tickers: Mapping[str, bytes]) -> EngineState:
        """Return the state with registrations: each trigger id, number, text, parameters, time, tickers or None."""
        return EngineState(to_json({"version": STATE_VERSION, "triggers": registrations}), tickers)

    def registrations(self) -> list[Any]:
        """Return the registrations.

        Raises:
            InvalidRequest: The state has another version.
        """
        found = json.loads(self.triggers)
        if found.get("version") != STATE_VERSION:
            raise InvalidRequest(f"state of triggers has version {found.get('version')!r}; this is {STATE_VERSION}")
        return list(found["triggers"])

    def part(self, holds: Callable[[str], bool]) -> EngineState:
        """Return the state of the tickers for which ``holds``, with the triggers that watch one of them."""
        chosen = [each for each in self.registrations() if each[_TICKERS] is None or any(map(holds, each[_TICKERS]))]
        return EngineState.of(chosen, {ticker: part for ticker, part in self.tickers.items() if holds(ticker)})

    @staticmethod
    def joined(parts: Iterable[EngineState]) -> EngineState:
        """Return the state of which the others are parts."""
        registrations: dict[int, Any] = {}
        tickers: dict[str, bytes] = {}
        for each in parts:
            registrations |= {registration[_NUMBER]: registration for registration in each.registrations()}
            tickers |= each.tickers
        return EngineState.of(
            [registrations[number] for number in sorted(registrations)], dict(sorted(tickers.items()))
        )


def to_json(value: Any) -> bytes:
    """Return JSON, in which a DECIMAL is an object of its text."""
    return json.dumps(value, separators=(",", ":"), default=_encode).encode()


def from_json(data: bytes) -> Any:
    """Return what ``to_json`` was given, with lists for tuples."""
    return json.loads(data, object_hook=_decode)


def _encode(value: Any) -> dict[str, str]:
    if not isinstance(value, Decimal):
        raise TypeError(f"{type(value).__name__} in the state of triggers")
    return {_DECIMAL_KEY: str(value)}


def _decode(value: dict[str, Any]) -> Any:
    return Decimal(value[_DECIMAL_KEY]) if len(value) == 1 and _DECIMAL_KEY in value else value
