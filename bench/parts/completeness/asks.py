"""How often the ingestor asks, by its own settings, and the odds that follow."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from bench.parts.completeness.tables import percent
from services.ingestor.config import IngestorSettings

SHORTER = {"backoff_seconds": 0.02, "longest_backoff_seconds": 0.2, "hole_spacing_seconds": 0.02}
"""Pauses that only mean waiting here, since the simulated exchange spoils each answer by itself, whatever the time."""
_ABOUT_ASKING = ("attempts", "asks", "answers", "odds", "backoff", "spacing", "ban_seconds")


def environment() -> dict[str, str]:
    """The shorter pauses, as far as the ingestor has them, as its environment."""
    return {f"DEXORDER_INGESTOR_{name.upper()}": str(value) for name, value in _shorter().items()}


def _shorter() -> dict[str, float]:
    return {name: value for name, value in SHORTER.items() if name in IngestorSettings.model_fields}


def _defaults() -> dict[str, Any]:
    fields = IngestorSettings.model_fields
    return {name: each.default for name, each in fields.items() if any(word in name for word in _ABOUT_ASKING)}


def settings_text() -> str:
    """Which settings were in force."""
    kept = ", ".join(f"{name} {value}" for name, value in _defaults().items() if name not in _shorter())
    shorter = ", ".join(f"{name} {value} instead of {_defaults()[name]}" for name, value in _shorter().items())
    return f"Ingestor: defaults ({kept}), but for pauses that only mean waiting here: {shorter}.\n"


def odds_text(share: float) -> str:
    """What to expect when so many answers are bad."""
    defaults = _defaults()
    lines = [f"## Asks and odds at {percent(share)}\n\n"]
    if tries := defaults.get("attempts"):
        lines.append(
            f"- A question whose every answer is spoiled with a chance of {percent(share)}, so that it shows, stays "
            f"without an answer after {tries} tries with odds of {share**tries:.2g}.\n"
        )
    needed = _needed()
    targets = {name: value for name, value in defaults.items() if "odds" in name and isinstance(value, float)}
    if needed and targets:
        lines += [
            f"- {name} {odds:g}: `needed({share:g}, {odds:g})` = {needed(share, odds)} agreeing answers.\n"
            for name, odds in targets.items()
        ]
    elif answers := defaults.get("hole_answers"):
        lines.append(
            f"- {answers} agreeing answers prove a span empty: all of them spoiled alike with odds of "
            f"{share**answers:.2g}, two that lack the same candle between known ones {share**2:.2g}.\n"
        )
    return "".join(lines)


def _needed() -> Callable[[float, float], Any] | None:
    try:
        rates = importlib.import_module("services.ingestor.rates")
    except ImportError:
        return None
    found: Callable[[float, float], Any] | None = getattr(rates, "needed", None)
    return found
