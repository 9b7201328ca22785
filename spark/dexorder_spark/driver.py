"""One Spark session and the queries of its tables, each in its own thread with its own offsets.

A batch of one table waits only for a free core. If one query fails for good, all end, and the process with
them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING

import structlog
from prometheus_client import CollectorRegistry

from dexorder_common.lake.catalog import CatalogSettings
from dexorder_spark.cep.host import TriggerHost
from dexorder_spark.config import SparkSettings
from dexorder_spark.maintenance.runner import MaintenanceRunner
from dexorder_spark.metrics import Metrics, UdfMetrics
from dexorder_spark.records.fault import Fault, kill_driver
from dexorder_spark.records.reporter import RelayReporter
from dexorder_spark.runtime.locks import WriterLocks
from dexorder_spark.runtime.session import another_session, build_session, jvm_pid
from dexorder_spark.table_driver import TableDriver
from dexorder_spark.tables.table import PageTable, ensure_tables
from dexorder_spark.udf.programs import declared_udfs
from dexorder_spark.udf.stages import UdfStages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger(__name__)
OnReady = Callable[[str, bool], None]
"""Takes the name of a table and whether its query is ready."""


class Driver:
    """Runner of all queries, and of the users' functions beside them, until ``stop`` is set."""

    def __init__(
        self,
        settings: SparkSettings,
        catalog: CatalogSettings,
        tables: Sequence[PageTable],
        *,
        stop: threading.Event,
        on_ready: OnReady,
        registry: CollectorRegistry,
        locks: WriterLocks,
        maintenance: MaintenanceRunner,
    ) -> None:
        """Keep the parts.

        Args:
            on_ready: Called in a query's thread whenever its health changes.
            locks: Shared with the maintenance.
        """
        self._settings = settings
        self._catalog = catalog
        self._tables = tables
        self._stop = stop
        self._on_ready = on_ready
        self._metrics = Metrics(registry)
        self._locks = locks
        self._maintenance = maintenance
        self._udfs = UdfStages(settings, catalog, declared_udfs(settings), locks, stop)
        registry.register(UdfMetrics(self._udfs.statuses))

    def run(self) -> None:
        """Build the session and run the queries until ``stop``; the error of the first one that gives up is raised."""
        log.info("starting Java and the session")
        session = build_session(self._settings, self._catalog)
        log.info("opening the tables")
        try:
            ensure_tables(self._catalog.load())
            self.drive(session)
        finally:
            session.stop()

    def drive(self, session: SparkSession) -> None:
        """Run the queries in a session after the tables were created; the last part of ``run``, separate for tests."""
        log.info("starting the queries; the first batch loads Spark's classes")
        fault = Fault.parse(self._settings.fault, partial(kill_driver, jvm_pid(session)))
        self._maintenance.attach(session)
        for name, work in (("maintenance", self._maintenance.run), ("merges", self._maintenance.run_merges)):
            threading.Thread(target=work, args=(self._stop,), name=name, daemon=True).start()
        triggers = TriggerHost(
            self._settings.relay,
            self._stop,
            on_running=self._metrics.triggers_running.set,
            on_restart=self._metrics.trigger_restarts.inc,
        )
        hosting = threading.Thread(target=triggers.run, name="triggers")
        hosting.start()
        udfs = threading.Thread(target=self._udfs.run, name="udfs", daemon=True)
        udfs.start()
        with ThreadPoolExecutor(len(self._tables), "query") as threads:
            running = [threads.submit(self._drive_table, session, table, fault) for table in self._tables]
            self._stop_when_one_ends(running)
        hosting.join()
        udfs.join(self._settings.drain_seconds / 2)  # a UDF that does not end must not hold up the stop
        for each in running:
            each.result()

    def _stop_when_one_ends(self, running: Sequence[Future[None]]) -> None:
        try:
            wait(running, return_when=FIRST_EXCEPTION)
        finally:
            self._stop.set()
            self._maintenance.detach()

    def _drive_table(self, session: SparkSession, table: PageTable, fault: Fault | None) -> None:
        driver = TableDriver(
            self._settings,
            self._catalog,
            table,
            stop=self._stop,
            on_ready=partial(self._on_ready, table.name),
            metrics=self._metrics.of(table.name),
            writer_lock=self._locks.of(table.name),
            fault=fault,
        )
        reporter = RelayReporter(self._settings.relay, self._stop, driver.on_report_attempt)
        try:
            driver.drive(another_session(session, self._catalog), reporter)
        except BaseException:
            self._stop.set()
            raise
        finally:
            reporter.close()
