"""Which of several markets with one symbol is meant. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def without_shadows(markets: Iterable[Mapping[str, Any]], shadow: str) -> list[Mapping[str, Any]] | None:
    """The markets without those whose id ends in ``shadow`` and whose symbol a proper market has too.

    ccxt keeps the last of them, so that Kraken's dark pool ``XXBTZUSD.d`` would answer for ``XXBTZUSD``.

    Args:
        markets: As ccxt has them, with ``id`` and ``symbol``.
        shadow: From the dialect; empty where there are none.
    Returns:
        None when there is nothing to leave out.
    """
    markets = list(markets)
    proper = {m["symbol"] for m in markets if shadow and not m["id"].endswith(shadow)}
    kept = [m for m in markets if m["symbol"] not in proper or not m["id"].endswith(shadow)]
    return kept if proper and len(kept) < len(markets) else None
