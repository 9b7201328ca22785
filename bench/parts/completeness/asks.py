"""How often the ingestor asks, by its own settings, and the odds that follow."""

from __future__ import annotations

from typing import Any

from bench.parts.completeness.tables import percent
from services.ingestor.config import IngestorSettings
from services.ingestor.history import agreement

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
    tries, answers = defaults["attempts"], agreement.agreeing(share)
    lead = f"need a lead of {agreement.lead(share)}" if share < 0.5 else "can't be told apart by any number"
    return (
        f"## Asks and odds at {percent(share)}\n\n"
        f"- Where spoiled answers show that they are, a question stays without one after {tries} tries with odds "
        f"of {share**tries:.2g}.\n"
        f"- Where answers silently lack candles, {answers} that lack the same prove that it does not exist, once the "
        f"ingestor has measured this share: odds of {share**answers:.1g} a decision, "
        f"wanted {agreement.ODDS:g}; at least {defaults['hole_answers']} where no known candles are around it, "
        f"{defaults['empty_job_answers']} where none is "
        f"known at all. A page is given up after "
        f"{defaults['evidence_queries']} questions that brought nothing.\n"
        f"- Where that share of the answers is another market's, the two {lead}.\n"
    )
