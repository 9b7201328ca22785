"""Care of the Iceberg tables by their one writer, between its batches (rules: ``spark/maintenance/policy.py``).

Each step takes its turn with the batches (``spark/runtime/writer_lock.py``), so none ever commits beside a batch, and
a batch waits for one step at most. Looking, and removing files that nothing refers to, commit nothing and need no turn.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import structlog

from services.common.clock import Clock, SystemClock
from services.common.lake.catalog import COVERAGE_TABLE, DEAD_LETTER_TABLE, OHLC_TABLE, CatalogSettings
from services.common.model.errors import Conflict, InvalidRequest, SuiteError, Unavailable
from spark.config import MaintenanceSettings
from spark.maintenance import procedures
from spark.maintenance.policy import Compact, Expire, MergeCoverage, Policy, Step, TableState, plan
from spark.maintenance.procedures import StepResult
from spark.metrics import MaintenanceMetrics
from spark.runtime.writer_lock import WriterLock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger(__name__)
TABLES = (OHLC_TABLE, COVERAGE_TABLE, DEAD_LETTER_TABLE)
_POLL_S = 0.25
_LOOK_AGAIN_NS = 3_600 * 1_000_000_000
"""After this also a table that nobody changed is looked at: its snapshots grow old."""
_ORPHANS_EVERY_NS = 24 * _LOOK_AGAIN_NS


class MaintenanceFailed(SuiteError):
    """A step failed; the table is as it was before that step."""


@dataclass(frozen=True)
class TableResult:
    """What was done to one table, or would be; fields as in MaintainResponse."""

    table: str
    data_files_before: int
    data_files_after: int
    delete_files_before: int
    delete_files_after: int
    expired_snapshots: int
    kept_snapshots: int
    removed_files: int
    took_ms: int


class MaintenanceRunner:
    """Cares for the tables while a session is attached; one run at a time."""

    def __init__(
        self,
        catalog: CatalogSettings,
        settings: MaintenanceSettings,
        writer_lock: WriterLock,
        metrics: MaintenanceMetrics,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._catalog = catalog
        self._settings = settings
        self._writer_lock = writer_lock
        self._metrics = metrics
        self._policy = settings.policy()
        self._clock = clock or SystemClock()
        self._session: SparkSession | None = None
        self._settled_ns = 0
        self._seen: dict[str, tuple[int | None, int]] = {}
        self._merged_lines = 0
        self._orphans_from_ns = self._clock.monotonic_ns() + _LOOK_AGAIN_NS
        self._asked = threading.Lock()
        self._running = threading.Lock()
        self._in_step = threading.Event()

    # ---- told by the driver ----------------------------------------------------------------------------------------

    def attach(self, session: SparkSession) -> None:
        """A query runs in this session."""
        self._session = session

    def detach(self) -> None:
        """No query runs; a step in hand is ended, so that nobody waits for it."""
        session = self._session
        self._session = None
        if session is not None and self._in_step.is_set():
            session.sparkContext.cancelAllJobs()  # batches wait while a step runs: these are the step's

    def settle(self, wall_ns: int) -> None:
        """Batches that began before then are in Spark's commit log, or none was open then."""
        self._settled_ns = max(self._settled_ns, wall_ns)

    # ---- its work --------------------------------------------------------------------------------------------------

    def run(self, stop: threading.Event) -> None:
        """Look every interval, at a quiet moment if one comes in time, until ``stop``; body of a thread."""
        while self._settings.interval_seconds and not stop.wait(self._settings.interval_seconds):
            deadline = time.monotonic() + self._settings.max_wait_seconds
            while self._writer_lock.idle_ns() < self._settings.quiet_seconds * 1e9 and time.monotonic() < deadline:
                if stop.wait(_POLL_S):
                    return
            self.run_due()

    def run_due(self) -> None:
        """Do what is due; a failure is logged and counted, and what is due stays due."""
        with self._running:
            for name in TABLES:
                try:
                    if self._may_need(name):
                        self._care(name, self._policy)
                        self._seen[name] = (self._snapshot_id(name), self._clock.monotonic_ns())
                except Unavailable:
                    return
                except Exception as error:
                    log.warning("care of a table failed", table=name, error=f"{type(error).__name__}: {error}"[:500])
            if self._settings.orphan_days and self._clock.monotonic_ns() >= self._orphans_from_ns:
                self._orphans_from_ns = self._clock.monotonic_ns() + _ORPHANS_EVERY_NS
                self._remove_orphans()

    def maintain(
        self, tables: Sequence[str] = (), *, dry_run: bool = False, cancelled: threading.Event | None = None
    ) -> Generator[TableResult, None, None]:
        """Do all that can be done, table by table; waits for an automatic run to end.

        Raises:
            InvalidRequest: A table is not ours.
            Conflict: Another call is at work.
            Unavailable: No query runs (any more), or ``cancelled`` was set.
            CareFailed: A step failed; the tables behind it are not reached.
        """
        for name in tables:
            if name not in TABLES:
                raise InvalidRequest(f"tables has {name!r}; there are {', '.join(TABLES)}")
        self._attached()
        if not self._asked.acquire(blocking=False):
            raise Conflict("another call is caring for the tables; try again when it has ended")
        try:
            with self._running:
                self._merged_lines = 0
                for name in tables or TABLES:
                    yield self._care(name, self._policy.eager(), dry_run=dry_run, cancelled=cancelled)
        finally:
            self._asked.release()

    def _care(
        self, name: str, policy: Policy, *, dry_run: bool = False, cancelled: threading.Event | None = None
    ) -> TableResult:
        started = time.perf_counter()
        before = self._look(name, policy)
        steps = plan(before, policy, now_ns=self._clock.wall_ns(), settled_ns=self._settled_ns)
        if steps and not dry_run:
            done = [each for step in steps for each in self._do(name, step, policy, cancelled)]
            expired, removed = sum(d.expired for d in done), sum(d.removed for d in done)
            after = self._look(name, policy)
            data, deletes, kept = after.data_files, after.delete_files, len(after.snapshot_times_ns)
        else:
            compactions = [step for step in steps if isinstance(step, Compact)]
            expired, removed = sum(step.snapshots for step in steps if isinstance(step, Expire)), 0
            data = before.data_files - sum(step.saved_files for step in compactions)
            deletes = before.delete_files - sum(step.deletes for step in compactions)
            kept = len(before.snapshot_times_ns) - expired
        care = TableResult(
            table=name,
            data_files_before=before.data_files,
            data_files_after=data,
            delete_files_before=before.delete_files,
            delete_files_after=deletes,
            expired_snapshots=expired,
            kept_snapshots=kept,
            removed_files=removed,
            took_ms=round((time.perf_counter() - started) * 1_000),
        )
        if steps and not dry_run:
            log.info("cared for a table", **vars(care))
        return care

    def _do(self, name: str, step: Step, policy: Policy, cancelled: threading.Event | None) -> Iterator[StepResult]:
        """One step, or its repeats, each in a turn of its own."""
        for _ in range(step.repeats if isinstance(step, Compact | MergeCoverage) else 1):
            if cancelled is not None and cancelled.is_set():
                raise Unavailable("the caller has gone")
            done = self._take_turn(name, step, policy)
            self._metrics.add(name, done)
            if done.lines is not None:
                self._merged_lines = done.lines.left
                log.info("lines merged", table=name, **vars(done.lines))
            yield done
            if not done.changed:
                break

    def _take_turn(self, name: str, step: Step, policy: Policy) -> StepResult:
        kind = type(step).__name__.lower()
        with self._writer_lock.step():
            session = self._attached()
            self._in_step.set()
            try:
                with self._metrics.step_seconds.labels(kind).time():
                    return procedures.run(session, self._catalog, name, step, policy)
            except Exception as error:
                self._attached()  # ended by detach
                self._metrics.failures.labels(name, kind).inc()
                raise MaintenanceFailed(f"{name}: {kind} failed: {str(error)[:500]}") from error
            finally:
                self._in_step.clear()

    def _remove_orphans(self) -> None:
        before_ns = self._clock.wall_ns() - round(self._settings.orphan_days * 24 * 3_600) * 1_000_000_000
        for name in TABLES:
            try:
                removed = procedures.remove_orphans(self._attached(), self._catalog, name, before_ns)
            except Exception as error:
                self._metrics.failures.labels(name, "orphans").inc()
                log.warning("orphan files not removed", table=name, error=f"{type(error).__name__}: {error}"[:500])
            else:
                self._metrics.files.labels(name, "orphan").inc(removed)

    def _look(self, name: str, policy: Policy) -> TableState:
        state = procedures.look(self._attached(), self._catalog, name, policy)
        self._metrics.show(state)
        return replace(state, merged_rows=self._merged_lines)

    def _may_need(self, name: str) -> bool:
        """Cheap: the table has another snapshot than at the last look, or that is long ago."""
        snapshot_id, seen_ns = self._seen.get(name, (None, 0))
        return (
            name not in self._seen
            or snapshot_id != self._snapshot_id(name)
            or self._clock.monotonic_ns() - seen_ns > _LOOK_AGAIN_NS
        )

    def _snapshot_id(self, name: str) -> int | None:
        snapshot = self._catalog.load().load_table(name).current_snapshot()
        return snapshot.snapshot_id if snapshot else None

    def _attached(self) -> SparkSession:
        if self._session is None:
            raise Unavailable("no query runs, so its tables are left alone; try again when the driver serves")
        return self._session
