"""A trigger over past rows: where it would have fired. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dexorder_cep.compile.compiled import CompiledTrigger
from dexorder_cep.run.engine import Engine
from dexorder_cep.run.outcomes import Outcome
from dexorder_common.model.times import MAX_TIME_NS


def backtest(
    compiled: CompiledTrigger,
    ticker: str,
    rows: Sequence[Sequence[Any]],
    candles: Sequence[Sequence[Any]] = (),
    *,
    since_ns: int = 0,
) -> list[Outcome]:
    """Return the events of a trigger over past rows of a ticker, oldest first.

    Args:
        compiled: The trigger.
        ticker: The market.
        rows: As ``Engine.feed_candles`` or ``Engine.feed_ticks`` takes them: trades for a running candle.
        candles: The closed candles of the same time, for a running candle.
        since_ns: Time from which on trades are known.

    Returns:
        Events (``Firing``) in order; the last one is an ``Ended`` or a ``Suspension`` if the trigger would have ended.
    """
    engine = Engine()
    engine.add("backtest", 1, compiled, 0)
    if not compiled.is_running and compiled.source == "ohlc":
        return engine.feed_candles(ticker, compiled.period_seconds, rows)
    if not compiled.is_running:
        return engine.feed_ticks(ticker, rows)
    engine.feed_ticks(ticker, [], since_ns=since_ns)
    found = engine.feed_candles(ticker, compiled.period_seconds, candles)
    found += engine.settle(ticker, compiled.period_seconds, MAX_TIME_NS)
    return found + engine.feed_ticks(ticker, rows) + engine.settle(ticker, 0, MAX_TIME_NS)
