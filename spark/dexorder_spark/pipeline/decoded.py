"""Control rows that the tasks of a batch return (``decode``), as values of the domain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyiceberg.manifest import DataFile

from dexorder_common.model.history import PageResult
from dexorder_common.model.instrument import Series
from dexorder_common.model.proof import NO_PROOF
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import MAX_TIME_NS
from dexorder_spark.pipeline.controls import FILE_KIND, FINAL_KIND, LETTERS_KIND, PAGE_KIND, REFUSED_KIND
from dexorder_spark.pipeline.files import unpack
from dexorder_spark.records.admission import Place
from dexorder_spark.records.reporter import FinalReport
from dexorder_spark.source.offsets import OffsetRange
from dexorder_spark.tables.table import PageTable

if TYPE_CHECKING:
    from pyspark.sql import Row


@dataclass(frozen=True)
class Candidate:
    """A well-formed page or final; whether it counts is for ``admission`` to decide."""

    place: Place
    dispatch_id: str
    series: Series
    span: TimeRange
    is_page: bool


@dataclass(frozen=True)
class Decoded:
    """Decoded rows of a batch of a table."""

    table: PageTable
    rows: Sequence[Row]

    def files(self) -> list[DataFile]:
        """Return the files with the rows of good pages."""
        return [unpack(row.file) for row in self._of(FILE_KIND)]

    def letters(self) -> list[DataFile]:
        """Return the files with refused records."""
        return [unpack(row.file) for row in self._of(LETTERS_KIND)]

    def refused(self) -> dict[Place, str]:
        """Return the reason for each refused record; of a joined one, why the first of its refused pages is."""
        found: dict[Place, str] = {}
        for row in self._of(REFUSED_KIND):
            found.setdefault((row.partition, row.offset), row.control.reason)
        return found

    def candidates(self) -> list[Candidate]:
        """Return the well-formed pages and finals."""
        return [
            Candidate(_place(row), row.control.dispatch_id, *self._subject(row.control), row.kind == PAGE_KIND)
            for row in self._of(PAGE_KIND, FINAL_KIND)
        ]

    def pages(self) -> dict[Place, PageResult]:
        """Return every page, good or refused, that names its dispatch; a record without readable headers does not."""
        return {
            _place(row): PageResult(
                c.dispatch_id,
                *self._subject(c),
                _ranges(c.empty or ()),
                c.reason,
                c.fetched_ns or 0,
                c.rows or 0,
                c.evidence or NO_PROOF,
            )
            for row in self._of(PAGE_KIND, REFUSED_KIND)
            for c in [row.control]
            if c.dispatch_id is not None
        }

    def row_ranges(self, tolerance_ns: int) -> dict[Place, TimeRange]:
        """Return, for each good page with rows, the range of their times, wider by a tolerance at both ends."""
        return {
            _place(row): TimeRange(
                max(0, row.control.first_us * 1_000 - tolerance_ns),
                min(MAX_TIME_NS, (row.control.last_us + 1) * 1_000 + tolerance_ns),
            )
            for row in self._of(PAGE_KIND)
            if row.control.rows
        }

    def finals(self) -> list[FinalReport]:
        """Return every final record."""
        return [
            FinalReport(c.dispatch_id, c.status, c.error_message, c.total_records)
            for c in (row.control for row in self._of(FINAL_KIND))
        ]

    def ranges(self) -> list[OffsetRange]:
        """Return the smallest ranges of offsets that contain every record, one for each partition."""
        found: dict[int, OffsetRange] = {}
        for row in self.rows:
            if row.partition is not None:
                seen = found.get(row.partition, OffsetRange(row.partition, row.offset, row.offset + 1))
                first, last = min(row.offset, seen.start), max(row.offset + 1, seen.end)
                found[row.partition] = OffsetRange(row.partition, first, last)
        return sorted(found.values())

    def ends(self) -> dict[int, int]:
        """Return the next offset to read of each partition with records."""
        return {each.partition: each.end for each in self.ranges()}

    def _subject(self, control: Row) -> tuple[Series, TimeRange]:
        series = Series(control.ticker, control.period_seconds, self.table.dataset)
        return series, TimeRange(control.start_ns, control.end_ns)

    def _of(self, *kinds: str) -> Iterable[Row]:
        return (row for row in self.rows if row.kind in kinds)


def _place(row: Row) -> Place:
    part = row.control.part
    return (row.partition, row.offset) if part is None else (row.partition, row.offset, part)


def _ranges(times_ns: Any) -> tuple[TimeRange, ...]:
    return tuple(TimeRange(start, end) for start, end in zip(times_ns[::2], times_ns[1::2], strict=True))
