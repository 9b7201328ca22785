"""What is known of a market's history, for those who ask: ranges as the board has them, pages as the table has."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from services.common.lake.catalog import COVERAGE_TABLE
from services.common.lake.coverage import CoverageRow
from services.common.model.errors import Unavailable
from services.common.model.instrument import Series
from services.common.model.time_range import TimeRange, subtract
from services.relay.history.state import HistoryState
from services.relay.history.table_reader import TableReader


class Kind(IntEnum):
    """What each period of a range has; numbers of the proto's CoverageKind."""

    ROWS = 1
    EMPTY = 2


@dataclass(frozen=True, slots=True, order=True)
class Known:
    """A range of one kind."""

    span: TimeRange
    kind: Kind


def known(covered: Iterable[TimeRange], empty: Iterable[TimeRange]) -> list[Known]:
    """Coverage as ranges of one kind each, in time order; those that touch differ in kind. Pure."""
    covered = list(covered)
    rows = subtract(covered, empty)
    void = subtract(covered, rows)
    return sorted([*(Known(span, Kind.ROWS) for span in rows), *(Known(span, Kind.EMPTY) for span in void)])


class CoverageQueries:
    """Answers questions about coverage; changes nothing."""

    def __init__(self, state: HistoryState, reader: TableReader) -> None:
        self._state = state
        self._reader = reader

    def known(self, series: Series, span: TimeRange) -> list[Known]:
        """What is known of ``span``."""
        coverage = self._state.coverage.get(series)
        return known(coverage.covered.within(span), coverage.empty.within(span)) if coverage else []

    async def pages(self, series: Series, span: TimeRange) -> list[tuple[CoverageRow, list[TimeRange]]]:
        """The pages behind it, by start, each with what of it was taken back; whole, where they reach beyond.

        Raises:
            Unavailable: The table can't be read now.
        """
        try:
            pages = await asyncio.to_thread(self._reader.pages, series, span)
        except Exception as error:  # catalog, object store, file system: each has errors of its own
            raise Unavailable(f"{COVERAGE_TABLE} can't be read: {error}") from error
        taken = self._state.retractions[series].taken if series in self._state.retractions else _nothing
        return [(page, taken(page.span, page.fetched_ns)) for page in pages]


def _nothing(*_: object) -> list[TimeRange]:
    return []
