"""Two ways with ccxt alone: the loop of its tutorials, and its own ``paginate``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from bench.parts.backfill import make_client
from bench.parts.completeness.cells import MINUTE_NS, Cell
from bench.parts.completeness.compare import HANG, QUIET, Row
from bench.parts.completeness.exchange import PAGE
from dexorder_common.model.periods import count_periods

MOST_CALLS_A_PAGE = 20
"""A loop that has made so many is running in circles."""
_MS_NS = 1_000_000
_STEP_MS = MINUTE_NS // _MS_NS
Way = Callable[[Any, Cell, list[Any]], Awaitable[None]]


async def tutorial_loop(client: Any, cell: Cell, rows: list[Any]) -> None:
    """Fetch page after page from the last candle on, until one is empty; ``rows`` grows with each page.

    Raises:
        RecursionError: It does not end.
    """
    since_ms, end_ms = cell.span.start_ns // _MS_NS, cell.span.end_ns // _MS_NS
    for _ in range(MOST_CALLS_A_PAGE * pages(cell)):
        if since_ms >= end_ms:
            return
        page = await client.fetch_ohlcv(cell.symbol, "1m", since_ms, PAGE)
        if not page:
            return
        rows += page
        since_ms = page[-1][0] + _STEP_MS
    raise RecursionError


async def paginate(client: Any, cell: Cell, rows: list[Any]) -> None:
    """Fetch the whole range in one call of ccxt."""
    rows += await client.fetch_ohlcv(
        cell.symbol,
        "1m",
        cell.span.start_ns // _MS_NS,
        None,
        {"paginate": True, "until": cell.span.end_ns // _MS_NS - 1, "paginationCalls": pages(cell) + 1},
    )


def pages(cell: Cell) -> int:
    """Return the least number of calls that the range needs."""
    return -(-count_periods(cell.span, 60) // PAGE)


async def run(way: Way, address: str, cell: Cell, deadline_s: float) -> tuple[str, list[Row]]:
    """Run one way; return its end and the caller's rows inside the range."""
    client, raw, end = make_client(address), list[Any](), QUIET
    try:
        await client.load_markets()
        async with asyncio.timeout(deadline_s):
            await way(client, cell, raw)
    except TimeoutError:
        end = HANG
    except RecursionError:
        end = "runs in circles"
    except Exception as error:  # whatever it raises, the caller is told
        end = f"raises {type(error).__name__}"
    finally:
        await client.close()
    return end, [row for row in map(_row, raw) if row[0] is None or cell.span.start_ns <= row[0] < cell.span.end_ns]


def _row(row: Any) -> Row:
    open_ms, *values = row
    return None if open_ms is None else int(open_ms) * _MS_NS, tuple(values)
