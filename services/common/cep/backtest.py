"""A trigger over past rows: where it would have fired. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dexorder.services.common.cep.compiled import CompiledTrigger
from dexorder.services.common.cep.engine import Engine
from dexorder.services.common.cep.outcomes import Outcome


def backtest(compiled: CompiledTrigger, ticker: str, rows: Iterable[Sequence[Any]]) -> list[Outcome]:
    """Return the events of a trigger over past rows of a ticker, oldest first.

    Args:
        compiled: The trigger.
        ticker: The market.
        rows: As ``Engine.feed_candles`` or ``Engine.feed_ticks`` takes them.
    Returns:
        Events (``Firing``) in order; the last one is an ``Ended`` or a ``Suspension`` if the trigger would have ended.
    """
    engine = Engine()
    engine.add("backtest", 1, compiled, 0)
    if compiled.source == "ticks":
        return engine.feed_ticks(ticker, rows)
    return engine.feed_candles(ticker, compiled.period_seconds, rows)
