"""Is a raw answer what was asked for? Pure.

ccxt drops rows before ``since`` or over the limit, takes rows under another market's name, and makes rows of text and
HTML; so the answer itself is looked at, beside what ccxt made of it.
"""

from __future__ import annotations

from typing import Any

from services.ingestor.exchange.dialects.table import MARKET, Dialect, at
from services.ingestor.exchange.validation import BadAnswer


def check_rows(dialect: Dialect, raw: Any, rows: Any, market_id: str) -> list[Any] | None:
    """The raw rows of an answer; None if it is not known where they lie.

    Args:
        raw: The decoded answer; None when it was no JSON.
        rows: What ccxt made of it.
        market_id: The exchange's id of the asked market.
    Raises:
        BadAnswer: Not JSON, no rows where they should lie, another market's, a candle that still runs, or ccxt has
            dropped rows.
    """
    if not isinstance(raw, (list, dict)):
        raise BadAnswer("the answer is not JSON", kind="not_json")
    check_market(dialect, raw, market_id)
    found = _rows(dialect, raw, market_id)
    if found is None:
        return None
    if dialect.running:
        index, mark = dialect.running
        if any(isinstance(row, list) and at(row, (index,)) == mark for row in found):
            raise BadAnswer("the answer holds a candle that still runs", kind="running")
    if isinstance(rows, list) and len(found) != len(rows):
        raise BadAnswer(
            f"{len(found) - len(rows)} of {len(found)} rows are outside the asked window or doubled", kind="window"
        )
    return found


def check_market(dialect: Dialect, raw: Any, market_id: str) -> None:
    """Refuse an answer that says it is for another market."""
    if dialect.symbol_at is not None:
        named = at(raw, dialect.symbol_at)
        if named != market_id:
            raise BadAnswer(f"the answer is for {str(named)[:40]!r}, not {market_id!r}", kind="other_symbol")
    if dialect.rows_at and dialect.rows_at[-1] == MARKET:
        holder = at(raw, dialect.rows_at[:-1])
        others = [key for key, value in holder.items() if isinstance(value, list)] if isinstance(holder, dict) else []
        if others and others != [market_id]:
            raise BadAnswer(f"the answer is for {str(others)[:80]}, not {market_id!r}", kind="other_symbol")


def _rows(dialect: Dialect, raw: Any, market_id: str) -> list[Any] | None:
    if dialect.rows_at is None:
        return raw if isinstance(raw, list) else None
    path = tuple(market_id if key == MARKET else key for key in dialect.rows_at)
    found = at(raw, path)
    if not isinstance(found, list):
        place = ".".join(map(str, path)) or "its top"
        raise BadAnswer(f"the answer has no list at {place}: {str(raw)[:80]}", kind="shape")
    return found
