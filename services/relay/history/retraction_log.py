"""The table of retractions, which the relay alone writes, and the order in which coverage is taken back.

First the retraction is in the table, then anything else changes. A kill in between leaves a retraction that the board
has not followed; at the next start it does (``server.py``). So no file of the relay's knows more than the two tables.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IntegerType, NestedField, StringType, TimestamptzType
from tenacity import AsyncRetrying, stop_after_attempt, wait_random_exponential

from services.common.clock import Clock
from services.common.lake.catalog import NAMESPACE, RETRACTION_TABLE
from services.common.model.errors import Unavailable
from services.common.model.history import Retraction
from services.common.model.instrument import Series
from services.common.model.time_range import TimeRange
from services.relay.history.table_reader import range_of, time_ns

WRITE_ATTEMPTS = 4
MICROSECOND_NS = 1_000
SCHEMA = Schema(
    NestedField(1, "ticker", StringType(), required=True),
    NestedField(2, "period_seconds", IntegerType(), required=True),
    NestedField(3, "start_time", TimestamptzType(), required=True, doc="first moment that is no longer settled"),
    NestedField(4, "end_time", TimestamptzType(), required=True, doc="first moment after it"),
    NestedField(5, "reason", StringType(), required=True),
    NestedField(6, "retracted_at", TimestamptzType(), required=True, doc="pages fetched before claim nothing inside"),
)
_PROPERTIES = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
}


class RetractionTable:
    """``trading.coverage_retractions``: made at the first retraction, then only added to. Blocking."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def read(self) -> list[Retraction]:
        """All of them; none while the table is not there."""
        try:
            table = self._catalog.load_table(RETRACTION_TABLE)
        except (NoSuchTableError, NoSuchNamespaceError):
            return []
        fields = ("ticker", "period_seconds", "start_time", "end_time", "retracted_at")
        return [
            Retraction(
                Series(row["ticker"], row["period_seconds"]),
                range_of(row),
                time_ns(row["retracted_at"]),
            )
            for row in table.scan(selected_fields=fields).to_arrow().to_pylist()
        ]

    def append(self, retractions: Sequence[Retraction], reason: str) -> None:
        """Add some, all or none; one that is there twice counts once."""
        table = self._table()
        rows = [
            {
                "ticker": each.series.ticker,
                "period_seconds": each.series.period_seconds,
                "start_time": each.span.start_ns // MICROSECOND_NS,
                "end_time": each.span.end_ns // MICROSECOND_NS,
                "reason": reason,
                "retracted_at": each.retracted_ns // MICROSECOND_NS,
            }
            for each in retractions
        ]
        table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))

    def _table(self) -> Table:
        try:
            return self._catalog.load_table(RETRACTION_TABLE)
        except (NoSuchTableError, NoSuchNamespaceError):
            with suppress(NamespaceAlreadyExistsError):
                self._catalog.create_namespace(NAMESPACE)
            with suppress(TableAlreadyExistsError):
                return self._catalog.create_table(RETRACTION_TABLE, SCHEMA, properties=_PROPERTIES)
            return self._catalog.load_table(RETRACTION_TABLE)


class RetractionLog:
    """Makes retractions durable, one after the other, each later than those before."""

    def __init__(self, table: RetractionTable, clock: Clock, *, last_ns: int) -> None:
        self._table = table
        self._clock = clock
        self._last_ns = last_ns
        self._lock = asyncio.Lock()

    async def record(self, series: Series, spans: Iterable[TimeRange], reason: str) -> int:
        """Write that coverage of ``spans`` is taken back; returns when, for ``Board.retract``.

        The caller changes the board and hands the change to the store before it waits for anything else, and even if
        it is cancelled it must get there: run it in a task of the engine's.

        Raises:
            Unavailable: The table can't be written now; nothing has changed.
        """
        async with self._lock:
            now_ns = -(-self._clock.wall_ns() // MICROSECOND_NS) * MICROSECOND_NS
            self._last_ns = max(now_ns, self._last_ns + MICROSECOND_NS)
            made = [Retraction(series, span, self._last_ns) for span in spans]
            tries = AsyncRetrying(
                stop=stop_after_attempt(WRITE_ATTEMPTS), wait=wait_random_exponential(0.2, max=2), reraise=True
            )
            try:
                await tries(asyncio.to_thread, self._table.append, made, reason)
            except Exception as error:  # catalog, object store, file system: each has errors of its own
                raise Unavailable(f"{RETRACTION_TABLE} can't be written: {error}") from error
            return self._last_ns
