"""State of an engine between batches, in parts by ticker, so that tickers can be moved between engines. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from itertools import islice
from typing import Any, NamedTuple

from dexorder_common.model.errors import InvalidRequest

STATE_VERSION = 3
_DECIMAL_KEY = "$decimal"
_NUMBER, _TICKERS = 1, 5
_BEFORE, _AFTER = f'{{"version":{STATE_VERSION},"triggers":['.encode(), b"]}"
_DECODER = json.JSONDecoder()
_TOGETHER = 1_000
"""Registrations that are made to JSON together."""
_CHUNK = 1 << 20
"""Bytes that are read together."""


class EngineState(NamedTuple):
    """Triggers, and their state for each ticker. The parts are JSON."""

    triggers: bytes
    tickers: Mapping[str, bytes]

    @staticmethod
    def of(registrations: Iterable[Any], tickers: Mapping[str, bytes]) -> EngineState:
        """Return the state with registrations: each trigger id, number, text, parameters, time, tickers or None."""
        waiting = iter(registrations)
        parts = iter(lambda: to_json([*islice(waiting, _TOGETHER)])[1:-1], b"")  # as one JSON text of all would be
        return EngineState(b"".join([_BEFORE, b",".join(parts), _AFTER]), tickers)

    def registrations(self) -> Iterator[Any]:
        """Yield the registrations. Few of them are in memory at a time, because there may be a million.

        Raises:
            InvalidRequest: The state has another version.
        """
        if not self.triggers.startswith(_BEFORE):
            version = json.loads(self.triggers).get("version")
            raise InvalidRequest(f"state of triggers has version {version!r}; this is {STATE_VERSION}")
        text, place = "", 0
        for start in range(len(_BEFORE), len(self.triggers), _CHUNK):
            text, place = text[place:] + self.triggers[start : start + _CHUNK].decode("ascii"), 0
            with suppress(json.JSONDecodeError):  # the next one is not whole
                while True:
                    begin = place + 1 if text.startswith(",", place) else place
                    registration, place = _DECODER.raw_decode(text, begin)
                    yield registration
        if text[place:].encode() != _AFTER:
            raise InvalidRequest("state of triggers is not whole")

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
