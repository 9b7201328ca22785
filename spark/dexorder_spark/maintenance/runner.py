"""Maintenance of the Iceberg tables by their only writer, between its batches (rules: `policy`).

Each step holds its table's writer lock (`runtime.locks`), so none commits to it concurrently with a batch,
and a batch waits for one step at most. Inspection and the removal of unreferenced files do not commit and do not need
the lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeAlias

import structlog
from pyiceberg.catalog import Catalog

from dexorder_common.clock import Clock, SystemClock
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.claims import collect_claims, join_claims, renew_marks
from dexorder_common.lake.commit import CommitLost
from dexorder_common.lake.tables import COVERAGE, OHLC, IcebergTable, udf_tables
from dexorder_common.model.datasets import DATASETS
from dexorder_common.model.errors import Conflict, InvalidRequest, SuiteError, Unavailable
from dexorder_protos.dexorder.pipeline.v1 import maintenance_service_pb2 as pb
from dexorder_spark.config import MaintenanceSettings
from dexorder_spark.maintenance import procedures
from dexorder_spark.maintenance.merge import merge_small_files
from dexorder_spark.maintenance.metrics import MaintenanceMetrics
from dexorder_spark.maintenance.policy import Compact, Step, TableState, plan
from dexorder_spark.maintenance.procedures import StepResult
from dexorder_spark.maintenance.snapshots import ExpireSnapshots
from dexorder_spark.runtime.locks import WriterLocks
from dexorder_spark.tables.table import TABLES
from dexorder_spark.udf.lake import STATES, remove_orphan_states

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger(__name__)
_NAMES = tuple(table.name for table in TABLES)
_POLL_S = 0.25
_TAG = "dexorder-maintenance"
"""Tag of the Spark jobs of a step."""
_NAMED = tuple(each.table for each in DATASETS if not each.is_realtime)
"""Tables whose snapshots notifications name."""
_INSPECT_EVERY_NS = 3_600 * 1_000_000_000
"""Time after which an unchanged table is inspected again: its snapshots get older."""
_DAY_NS = _ORPHANS_EVERY_NS = 24 * _INSPECT_EVERY_NS
_IDLE_NS = 600 * 1_000_000_000
_NAMED_AGAIN_NS = 600 * 1_000_000_000
"""Time before the last known notification for which the relay is asked again: they are stored in any order."""
NamedSnapshots: TypeAlias = Callable[[int], Mapping[int, int]]


class StepFailed(SuiteError):
    """A step failed; the table is in the state before that step."""


class MaintenanceRunner:
    """Runner of maintenance while a session is attached, one run at a time."""

    def __init__(
        self,
        catalog: CatalogSettings,
        settings: MaintenanceSettings,
        locks: WriterLocks,
        metrics: MaintenanceMetrics,
        *,
        named: NamedSnapshots = lambda since_ns: {},
        clock: Clock | None = None,
    ) -> None:
        """Create a runner without a session.

        Args:
            named: Asks the relay for the snapshots that notifications named since a time, with the time of the last
                one.
        """
        self._settings_of_catalog = catalog
        self._ask_named = named
        self._named: dict[int, int] = {}
        self._settings = settings
        self._locks = locks
        self._metrics = metrics
        self._clock = clock or SystemClock()
        self._session: SparkSession | None = None
        self._inspected: dict[str, tuple[int | None, int]] = {}
        self._unmerged: dict[str, int | None] = {}  # snapshots without anything to merge
        self._orphans_from_ns = self._clock.monotonic_ns() + _INSPECT_EVERY_NS
        self._requested = threading.Lock()
        self._running = threading.Lock()
        self._in_step = threading.Event()

    @cached_property
    def _catalog(self) -> Catalog:
        return self._settings_of_catalog.load()

    @cached_property
    def _catalog_of_merges(self) -> Catalog:
        return self._settings_of_catalog.load()  # another thread uses it

    def attach(self, session: SparkSession) -> None:
        """Allow steps in this session."""
        self._session = session

    def detach(self) -> None:
        """Allow no more steps because the driver stops; cancel the running one, so that no caller waits for it."""
        session = self._session
        self._session = None
        if session is not None and self._in_step.is_set():
            session.sparkContext.cancelJobsWithTag(_TAG)

    def run(self, stop: threading.Event) -> None:
        """Run the due steps every interval until ``stop``.

        Those of the candles wait for a quiet moment, if there is one in time: history comes in bursts, trades always.
        """
        candles = self._locks.of(OHLC.name)
        while self._settings.interval_seconds and not stop.wait(self._settings.interval_seconds):
            self.run_due([name for name in self._names() if name != OHLC.name])
            deadline = time.monotonic() + self._settings.max_wait_seconds
            while candles.idle_ns() < self._settings.quiet_seconds * 1e9 and time.monotonic() < deadline:
                if stop.wait(_POLL_S):
                    return
            self.run_due([OHLC.name])

    def _names(self) -> tuple[str, ...]:
        """Return all tables of the suite and of the UDFs."""
        try:
            return (*_NAMES, *(each.name for each in udf_tables(self._catalog)))
        except Exception as error:
            log.warning("tables of UDFs are not maintained", error=f"{type(error).__name__}: {error}"[:500])
            return _NAMES

    def run_merges(self, stop: threading.Event) -> None:
        """Merge small files every few seconds until ``stop``."""
        while self._settings.merge_seconds and not stop.wait(self._settings.merge_seconds):
            self.merge()

    def merge(self) -> None:
        """Merge the smallest files of all tables but the candles' (bursts of candles end). A failure is logged."""
        for table in (each for each in TABLES if each is not OHLC):
            try:
                self._merge_files_of(table)
            except CommitLost as error:
                log.info("another writer was faster; nothing is merged", table=table.name, error=str(error))
            except Exception as error:
                self._metrics.failures.labels(table.name, "merge").inc()
                log.warning("files are not merged", table=table.name, error=f"{type(error).__name__}: {error}"[:500])

    def _merge_files_of(self, table: IcebergTable) -> None:
        found = self._catalog_of_merges.load_table(table.name).metadata.current_snapshot_id
        if self._unmerged.get(table.name) == found:
            return
        with self._metrics.step_seconds.labels("merge").time():
            fewer = merge_small_files(
                self._catalog_of_merges,
                table,
                max_bytes=self._settings.merge_bytes,
                alone=self._locks.of(table.name).step,
                reduce=join_claims if table is COVERAGE else None,
            )
        self._metrics.files.labels(table.name, "merged").inc(fewer)
        if not fewer:
            self._unmerged[table.name] = found

    def run_due(self, names: Sequence[str] = _NAMES) -> None:
        """Run the due steps of some tables. A failure is logged and counted, and the steps stay due."""
        with self._running:
            if COVERAGE.name in names:
                self._collect(before_ns=self._clock.wall_ns() - _IDLE_NS)
            for name in names:
                try:
                    if self._may_need_steps(name):
                        self._maintain(name)
                        self._inspected[name] = (self._snapshot_id(name), self._clock.monotonic_ns())
                except Unavailable:
                    return
                except Exception as error:
                    log.warning("maintenance failed", table=name, error=f"{type(error).__name__}: {error}"[:500])
            if self._settings.orphan_days and self._clock.monotonic_ns() >= self._orphans_from_ns:
                self._orphans_from_ns = self._clock.monotonic_ns() + _ORPHANS_EVERY_NS
                self._remove_orphans()

    def maintain(
        self, tables: Sequence[str] = (), *, dry_run: bool = False, cancelled: threading.Event | None = None
    ) -> Generator[pb.MaintainResponse, None, None]:
        """Run every possible step, table by table; wait for an automatic run to end.

        Raises:
            InvalidRequest: There is no such table.
            Conflict: Another call is running.
            Unavailable: No session is attached, or ``cancelled`` was set.
            StepFailed: A step failed; the following tables are not reached.
        """
        known = self._names()
        for name in tables:
            if name not in known:
                raise InvalidRequest(f"tables: {name!r} is not one of {', '.join(known)}")
        self._attached()
        if not self._requested.acquire(blocking=False):
            raise Conflict("another call maintains the tables; repeat the call when it has ended")
        try:
            with self._running:
                if not dry_run:
                    self._collect(before_ns=self._clock.wall_ns())
                for name in tables or known:
                    yield self._maintain(name, eager=True, dry_run=dry_run, cancelled=cancelled)
        finally:
            self._requested.release()

    def _collect(self, *, before_ns: int) -> None:
        """Append the claims of the last batches to ``trading.coverage``; a failure leaves them for the next time.

        Args:
            before_ns: Marks of tables that have not changed since are renewed.
        """
        try:
            with self._locks.of(COVERAGE.name).step():  # against a merge of its files
                if rows := collect_claims(self._catalog, now_ns=self._clock.wall_ns()):
                    log.info("claims collected", rows=rows)
            renew_marks(self._catalog, before_ns=before_ns)
        except Exception as error:
            log.warning("claims are not collected", error=f"{type(error).__name__}: {error}"[:500])

    def _maintain(
        self,
        name: str,
        *,
        eager: bool = False,
        dry_run: bool = False,
        cancelled: threading.Event | None = None,
    ) -> pb.MaintainResponse:
        started = time.perf_counter()
        before = self._inspect(name)
        now_ns = self._clock.wall_ns()
        steps = plan(before, self._settings, now_ns=now_ns, eager=eager)
        if steps and not dry_run:
            done = [result for step in steps for result in self._repeat(name, step, cancelled)]
            expired, removed = sum(d.expired for d in done), sum(d.removed for d in done)
            after = self._inspect(name)
            data, deletes, kept = after.data_files, after.delete_files, len(after.snapshots)
        else:
            compactions = [step for step in steps if isinstance(step, Compact)]
            expired, removed = sum(len(step.snapshot_ids) for step in steps if isinstance(step, ExpireSnapshots)), 0
            data = before.data_files - sum(step.saved_files for step in compactions)
            deletes = before.delete_files - sum(step.deletes for step in compactions)
            kept = len(before.snapshots) - expired
        result = {
            "table": name,
            "data_files_before": before.data_files,
            "data_files_after": data,
            "delete_files_before": before.delete_files,
            "delete_files_after": deletes,
            "expired_snapshots": expired,
            "kept_snapshots": kept,
            "removed_files": removed,
            "took_ms": round((time.perf_counter() - started) * 1_000),
        }
        if steps and not dry_run:
            log.info("table maintained", **result)
        return pb.MaintainResponse(**result)  # type: ignore[arg-type]

    def _repeat(self, name: str, step: Step, cancelled: threading.Event | None) -> Iterator[StepResult]:
        """Run a step as often as planned while it changes something."""
        for _ in range(step.repeats if isinstance(step, Compact) else 1):
            if cancelled is not None and cancelled.is_set():
                raise Unavailable("the caller has cancelled")
            result = self._run_locked(name, step)
            self._metrics.add(name, result)
            yield result
            if not result.changed:
                break

    def _run_locked(self, name: str, step: Step) -> StepResult:
        kind = type(step).__name__.lower()
        with self._locks.of(name).step():
            session = self._attached()
            self._in_step.set()
            session.sparkContext.addJobTag(_TAG)
            try:
                with self._metrics.step_seconds.labels(kind).time():
                    return procedures.run(session, self._catalog, name, step, self._settings)
            except Exception as error:
                self._attached()  # raises if detach cancelled the step
                self._metrics.failures.labels(name, kind).inc()
                raise StepFailed(f"{name}: {kind} failed: {str(error)[:500]}") from error
            finally:
                self._in_step.clear()
                with suppress(Exception):  # the session may be stopped by now
                    session.sparkContext.removeJobTag(_TAG)

    def _remove_orphans(self) -> None:
        before_ns = self._clock.wall_ns() - round(self._settings.orphan_days * 24 * 3_600) * 1_000_000_000
        for name in self._names():
            remove = partial(procedures.remove_orphans, self._attached(), self._catalog, name, before_ns)
            self._count_orphans(name, remove)
        self._count_orphans(STATES, lambda: remove_orphan_states(self._catalog, before_ns))

    def _count_orphans(self, name: str, remove: Callable[[], int]) -> None:
        try:
            removed = remove()
        except Exception as error:
            self._metrics.failures.labels(name, "orphans").inc()
            log.warning("orphan files not removed", table=name, error=f"{type(error).__name__}: {error}"[:500])
        else:
            self._metrics.files.labels(name, "orphan").inc(removed)

    def _inspect(self, name: str) -> TableState:
        session, named = self._attached(), self._named_snapshots() if name in _NAMED else {}
        state = procedures.inspect(session, self._catalog, name, self._settings, named)
        self._metrics.show(state)
        return state

    def _named_snapshots(self) -> Mapping[int, int] | None:
        """Return the snapshots that notifications named, with the time of the last one; None if the relay is away."""
        keep_ns = round(self._settings.snapshot_days * _DAY_NS)
        oldest_ns = max(0, self._clock.wall_ns() - keep_ns)
        try:
            new = self._ask_named(max(oldest_ns, max(self._named.values(), default=0) - _NAMED_AGAIN_NS))
        except Exception as error:
            log.warning("snapshots do not expire: the relay does not say which it has named", error=str(error)[:500])
            return None
        self._named = {each: time_ns for each, time_ns in (self._named | dict(new)).items() if time_ns >= oldest_ns}
        return self._named

    def _may_need_steps(self, name: str) -> bool:
        """Return whether the table has changed since its inspection, or that was long ago. Cheap."""
        if name not in self._inspected:
            return True
        snapshot_id, inspected_ns = self._inspected[name]
        return snapshot_id != self._snapshot_id(name) or self._clock.monotonic_ns() - inspected_ns > _INSPECT_EVERY_NS

    def _snapshot_id(self, name: str) -> int | None:
        return self._catalog.load_table(name).metadata.current_snapshot_id

    def _attached(self) -> SparkSession:
        if self._session is None:
            raise Unavailable(
                "the driver starts or stops, so the tables cannot be maintained; try again when it serves"
            )
        return self._session
