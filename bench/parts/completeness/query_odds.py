"""Number of queries that the ingestor makes by its settings, and the odds that follow."""

from __future__ import annotations

from typing import Any

from bench.parts.completeness.tables import percent
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.exchange import agreement

SHORTER = {"backoff_seconds": 0.02, "longest_backoff_seconds": 0.2, "hole_spacing_seconds": 0.02}
"""Pauses without effect here, as the simulated exchange spoils each answer independently of the time."""
_ABOUT_QUERIES = ("attempts", "queries", "answers", "odds", "backoff", "spacing", "ban_seconds")


def environment() -> dict[str, str]:
    """Return the environment that shortens the ingestor's pauses."""
    return {f"DEXORDER_INGESTOR_{name.upper()}": str(value) for name, value in _shorter().items()}


def _shorter() -> dict[str, float]:
    return {name: value for name, value in SHORTER.items() if name in IngestorSettings.model_fields}


def _defaults() -> dict[str, Any]:
    fields = IngestorSettings.model_fields
    return {name: each.default for name, each in fields.items() if any(word in name for word in _ABOUT_QUERIES)}


def settings_text() -> str:
    """Return the settings in force as text."""
    kept = ", ".join(f"{name} {value}" for name, value in _defaults().items() if name not in _shorter())
    shorter = ", ".join(f"{name} {value} instead of {_defaults()[name]}" for name, value in _shorter().items())
    return f"Ingestor: defaults ({kept}), except pauses without effect here: {shorter}.\n"


def odds_text(share: float) -> str:
    """Return the expected odds for a share of bad answers as text."""
    defaults = _defaults()
    tries, answers = defaults["attempts"], agreement.agreeing(share)
    lead = f"need a lead of {agreement.lead(share)}" if share < 0.5 else "can't be told apart by any number"
    return (
        f"## Queries and odds at {percent(share)}\n\n"
        f"- If spoiled answers are recognizable, a query has no valid answer after {tries} attempts with odds "
        f"of {share**tries:.2g}.\n"
        f"- If answers silently lack candles, {answers} that lack the same candle prove that it does not exist, once "
        f"the ingestor has measured this share: odds of {share**answers:.1g} for a decision, "
        f"with a limit of {agreement.ODDS:g}; at least {defaults['hole_answers']} if no known candles are around it, "
        f"{defaults['empty_job_answers']} if none is "
        f"known at all. A page is given up after "
        f"{defaults['evidence_queries']} queries without progress.\n"
        f"- If that share of the answers is another market's, the two markets {lead}.\n"
    )
