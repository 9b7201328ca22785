"""Files of one batch and their Iceberg table, as `SourcePlace` commits them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from dexorder_common.clock import Clock
from dexorder_common.lake.claims import claim_rows, write_claims
from dexorder_common.lake.commit_state import CommitState, state_of
from dexorder_common.model.history import PageResult
from dexorder_spark.pipeline import upsert
from dexorder_spark.pipeline.place import Look
from dexorder_spark.pipeline.ranges import KeyRange
from dexorder_spark.records.fault import Fault
from dexorder_spark.tables.table import PageTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class IcebergBatch:
    """The files that the workers wrote, and ranges that contain every key of them."""

    load: Callable[[str], Table]
    table: PageTable
    session: SparkSession
    files: Sequence[DataFile]
    ranges: Sequence[KeyRange]
    clock: Clock
    fault: Fault | None

    @property
    def is_claimed(self) -> bool:
        """Whether its pages claim coverage."""
        return self.table.dataset.is_covered

    async def look(self) -> Look[Table]:
        """Load the table."""
        target = self.load(self.table.name)
        return Look(target, state_of(target.metadata))

    async def claim(self, look: Look[Table], pages: Sequence[PageResult]) -> str:
        """Write claims to a file and return its path; an empty one without claims."""
        rows = claim_rows(pages, now_ns=self.clock.wall_ns())
        return write_claims(look.table, rows) if rows else ""

    async def commit(
        self, look: Look[Table], after: CommitState, *, always: bool
    ) -> tuple[upsert.Path, int | None, int | None]:
        """Commit the batch; return the path, the new snapshot, and without a new one the current snapshot."""
        target = look.table
        if self.fault:
            self.fault.commit_begins(target.location())
        path, snapshot_id = upsert.write(
            self.session,
            self.table,
            target,
            self.files,
            self.ranges,
            after.encode(),
            always=always,
        )
        if path is upsert.Path.MERGE:
            target = self.load(self.table.name)
        return path, snapshot_id, target.metadata.current_snapshot_id
