"""Retraction table, which only the relay writes, and the order in which coverage is retracted.

First the retraction is in the table, then anything else changes. A kill in between leaves a retraction that the state
does not have; the relay applies it at its next start (``server.py``). So the relay's database never knows more than the
two tables. A retraction has a number of the same sequence as the dispatches: pages of earlier dispatches no longer
count, pages of later ones do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from random import Random

import pyarrow as pa
from pyiceberg.catalog import Catalog
from tenacity import AsyncRetrying, stop_after_attempt

from dexorder_common.clock import Clock, random_wait
from dexorder_common.lake.coverage import Order, Retraction, decode_retraction, encode_retraction
from dexorder_common.lake.tables import RETRACTIONS, present_columns
from dexorder_common.model.dispatch_id import DispatchNumbers
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_relay.reading.rows import accessible

WRITE_ATTEMPTS = 4
MICROSECOND_NS = 1_000


class RetractionTable:
    """``trading.coverage_retractions``: created with the first retraction, then only appended to. Blocking."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def read(self) -> list[Retraction]:
        """Return all retractions; none if the table does not exist."""
        with accessible(RETRACTIONS):
            table = RETRACTIONS.load(self._catalog)
            if table is None:
                return []
            columns = present_columns(table, RETRACTIONS.key)
            found = RETRACTIONS.rows(table.scan(selected_fields=columns).to_arrow())
        return list(map(decode_retraction, found))

    def append(self, retractions: Sequence[Retraction], reason: str) -> None:
        """Append retractions, all or none. A duplicate is harmless."""
        table = RETRACTIONS.load_or_create(self._catalog)
        rows = [encode_retraction(each, reason) for each in retractions]
        table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))


class RetractionLog:
    """Makes retractions durable, one after the other."""

    def __init__(
        self, table: RetractionTable, numbers: DispatchNumbers, clock: Clock, *, random: Random | None = None
    ) -> None:
        """Take the source of random waits between attempts; by default an own one."""
        self._random = random or Random()  # noqa: S311 - jitter
        self._table = table
        self._numbers = numbers
        self._clock = clock
        self._lock = asyncio.Lock()

    async def record(
        self, series: Series, spans: Iterable[TimeRange], reason: str, *, before: int | None = None
    ) -> Order:
        """Write that coverage of ``spans`` is retracted; return its place for ``coverage.retract``.

        With ``before``, claims of this dispatch and of later ones stay in force.

        The caller changes the state and hands the change to the store before its next await. It must get there even if
        it is cancelled, so it runs in a task of the engine.

        Raises:
            Unavailable: The table cannot be written now; it is unchanged.
        """
        async with self._lock:
            number = self._numbers.next() if before is None else before - 1
            order = Order(number, self._clock.wall_ns() // MICROSECOND_NS * MICROSECOND_NS)
            made = [Retraction(series, span, order) for span in spans]
            attempts = AsyncRetrying(
                stop=stop_after_attempt(WRITE_ATTEMPTS), wait=random_wait(self._random, 0.2, 2.0), reraise=True
            )
            with accessible(RETRACTIONS, "written"):
                await attempts(asyncio.to_thread, self._table.append, made, reason)
            return order
