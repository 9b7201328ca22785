"""udsource and the Spark driver as processes that only the test restarts, and the tables that they fill.

    numbered pages -> Kafka -> udsource -> CuttingProxy -> driver -> Iceberg
                                                              `-> PipelineRelay

The relay is a fake that can delay its answer to a report: then a batch is read and its rows are committed, but none of
it is acked.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from functools import cached_property
from pathlib import Path
from typing import Self

import pyarrow as pa
from confluent_kafka import KafkaException
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from sqlalchemy.exc import OperationalError

from dexorder.demo.suite import MARKER, processes_marked
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.claims import read_coverage
from dexorder_common.lake.commit_state import Offsets, state_of
from dexorder_common.lake.tables import COVERAGE, DEAD_LETTERS, OHLC
from dexorder_spark.records.fault import Moment
from dexorder_spark.tables.ohlc import CANDLES
from tests.fakes.pages import control, page
from tests.fakes.pipeline_relay import PipelineRelay, served
from tests.fakes.tcp_proxy import CuttingProxy, in_a_thread
from tests.nightly.controlled_kafka import ControlledKafka
from tests.nightly.numbered_pages import TICKERS, NumberedPages, Verdict
from tests.nightly.topic_log import TopicLog
from tests.rig.processes import ServiceProcess, free_block, until

PATIENCE_SECONDS = 300.0
RECORDS_A_BATCH = 12
"""Fewer records than are produced at once, so that a crash has finished batches before and pending records after it."""
CUT_BYTES = range(200, 8_000)
"""Bytes of one ReadFn stream, up to three pages, after which it is cut; no other call's answer is as long."""
FOREIGN = "FOREIGN/ROWS.NONE"
FOREIGN_REST = 5
COMMITTED = (Moment.ROWS_COMMITTED, Moment.REPORTED)


def kill_at_once(*processes: ServiceProcess) -> None:
    """Send SIGKILL to all processes before waiting for any."""
    for each in processes:
        each.process.kill()
    for each in processes:
        each.process.wait()


class Rig:
    """The chain from Kafka to the tables; a context manager. The driver may still be starting when it is entered.

    Args:
        folder: Its name must not contain a comma (dexorder_spark/records/fault.py).
        maintenance_seconds: Seconds between two runs of maintenance; 0 for none.
        crowded: A second driver, which nobody kills, fills the same tables, and a foreign writer appends rows.
    """

    def __init__(
        self, kafka: ControlledKafka, folder: Path, *, maintenance_seconds: float = 0.0, crowded: bool = False
    ) -> None:
        self.kafka = kafka
        self._folder = folder
        self._maintenance_seconds = maintenance_seconds
        self._crowded = crowded
        self.other: ServiceProcess | None = None
        self.pages = NumberedPages()
        self.relay = PipelineRelay()
        self._settings = CatalogSettings.local(folder)
        self._topic = TopicLog(kafka.address, len(TICKERS))
        self._writing = threading.Lock()
        self._port = free_block(1)  # no other process gets it while udsource is down
        self.proxy = CuttingProxy(self._port)
        self._numbers = itertools.count()
        self._group = ""
        self._scratch: Path | None = None
        self._processes: list[ServiceProcess] = []
        self._markers: list[str] = []
        self._driver_marker = ""
        self._warm = False
        self._stack = ExitStack()

    # ---- start and stop

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._topic)
            self._relay_address = stack.enter_context(served(self.relay))
            self._source_address = f"127.0.0.1:{stack.enter_context(in_a_thread(self.proxy))}"
            stack.callback(self._kill_all)
            self.forget_commits()
            self.start_source()
            self.start_driver()
            if self._crowded:
                self.other = self._driver(self._folder / "tmp-other", fault=False)
                stack.enter_context(self._foreign_writer())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._stack:
            if kind is None:
                drivers = [self.driver, self.other] if self.other else [self.driver]
                assert [each.stop() for each in (*drivers, self.source)] == [0] * (len(drivers) + 1), self.tails()
                until(lambda: not any(map(processes_marked, self._markers)), PATIENCE_SECONDS, self.tails)

    def _kill_all(self) -> None:
        kill_at_once(*self._processes)
        for marker in self._markers:
            for pid in processes_marked(marker):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def start_source(self) -> None:
        """Start udsource again, at the same address."""
        settings = {
            "LISTEN": f"127.0.0.1:{self._port}",
            "METRICS_LISTEN": "",
            "SOCKET": "",
            "KAFKA": self.kafka.address,
            "TOPIC": self._topic.name,
            "GROUP": self._group,
        }
        environment = {f"DEXORDER_UDSOURCE_{name}": value for name, value in settings.items()}
        self.source = self._start("dexorder_udsource", environment)

    def start_driver(self) -> None:
        """Start the driver again; it can kill itself at every moment of dexorder_spark/records/fault.py."""
        self._warm = False
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch = self._folder / f"tmp-{next(self._numbers)}"
        self.driver = self._driver(self._scratch, fault=True)
        self._driver_marker = self._markers[-1]

    def _driver(self, scratch: Path, *, fault: bool) -> ServiceProcess:
        scratch.mkdir()
        settings = {
            "LISTEN": "127.0.0.1:0",
            "METRICS_LISTEN": "",
            "SOURCE": self._source_address,
            "RELAY": self._relay_address,
            "MAX_RECORDS_PER_BATCH": str(RECORDS_A_BATCH),
            "DRAIN_SECONDS": "60",
            "FAULT": ",".join(f"{moment.value}:1:{self._fuse(moment)}" for moment in Moment if fault),
            "MAINTENANCE_INTERVAL_SECONDS": str(self._maintenance_seconds),
        }
        environment = {f"DEXORDER_SPARK_{name}": value for name, value in settings.items()}
        environment |= {"TMPDIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch)}
        environment |= {
            "DEXORDER_CATALOG_NAME": self._settings.name,
            "DEXORDER_CATALOG_TYPE": self._settings.type,
            "DEXORDER_CATALOG_URI": self._settings.uri,
            "DEXORDER_CATALOG_WAREHOUSE": self._settings.warehouse,
            "DEXORDER_CATALOG_PROPERTIES": "{}",
        }
        return self._start("dexorder_spark", environment)

    def _start(self, module: str, environment: dict[str, str]) -> ServiceProcess:
        self._markers.append(uuid.uuid4().hex)
        folder = self._folder / f"{module}-{next(self._numbers)}"
        self._processes.append(ServiceProcess(module, folder, environment | {MARKER: self._markers[-1]}))
        return self._processes[-1]

    def revive(self) -> None:
        """Restart every process that has died."""
        if self.kafka.broker.process.poll() is not None:
            self.kafka.start()
        if not self.source.lives:
            self.start_source()
        if not self.driver.lives:
            self.start_driver()

    def tails(self) -> str:
        """Return the last log lines of each process."""
        processes = [self.source, self.driver, *([self.other] if self.other else [])]
        return "\n".join(f"== {each.log_file}\n{each.tail()}" for each in processes)

    # ---- input and result

    def produce(self) -> None:
        """Produce some more pages."""
        with self._writing:
            self._topic.write(
                (page.ticker, page.control.dispatch_id, page.value, page.control.encode()) for page in self.pages.more()
            )

    def finish(self) -> Verdict:
        """Produce more pages, wait until all are read, committed and acked, and compare."""
        self.produce()
        self.settle()
        tables = self._tables
        assert tables.load_table(DEAD_LETTERS.name).scan().count() == 0
        reported = {(page.series.ticker, page.start_ns) for report in self.relay.reports for page in report.pages}
        sent = {(page.control.ticker, page.control.span.start_ns) for page in self.pages.sent}
        assert reported == sent, "each page is reported at least once"
        coverage = pa.concat_tables([part.cast(COVERAGE.arrow) for part in read_coverage(tables)])
        rows = tables.load_table(OHLC.name).scan(row_filter=f"ticker != '{FOREIGN}'").to_arrow()
        return self.pages.verdict(rows, coverage)

    def warm_up(self) -> None:
        """Wait until the current driver has finished a batch."""
        if not self._warm:
            self.produce()
            self.settle()

    def settle(self) -> None:
        """Wait until all records are read, committed and acked."""

        def settled() -> bool:
            assert self.source.lives and self.driver.lives, self.tails()
            return self.is_settled()

        until(settled, PATIENCE_SECONDS, self.tails)
        self._warm = True

    def is_settled(self) -> bool:
        """Return whether the last record is committed in the table and acked in Kafka."""
        return self.committed() == self._topic.ends == self.acked()

    def committed(self) -> Offsets:
        """Return the offsets that the table has; none before its first batch."""
        table = OHLC.load(self._tables)
        return state_of(table.metadata).offsets.get(self._source_address, {}) if table else {}

    def acked(self) -> dict[int, int]:
        """Return the offsets committed in Kafka by partition; none while Kafka does not answer."""
        try:
            return self._topic.committed(f"{self._group}-replay")
        except KafkaException:
            return {}

    @property
    def repeats(self) -> int:
        """Number of repeated reports of pages so far; valid only while everything is settled."""
        return sum(len(report.pages) for report in self.relay.reports) - len(self.pages.sent)

    def rows(self) -> int:
        """Return the number of rows in the table."""
        return int(self._tables.load_table(OHLC.name).scan(row_filter=f"ticker != '{FOREIGN}'").count())

    @cached_property
    def _tables(self) -> Catalog:
        return self._settings.load()

    # ---- moments

    @contextmanager
    def read_and_not_acked(self) -> Iterator[None]:
        """Let a batch be read and its rows be committed, but not finished, so not acked, before the block ends."""
        acked = self.acked()
        with self.relay.delayed():
            self.produce()
            until(self.relay.waiting.is_set, PATIENCE_SECONDS, self.tails)
            assert self.acked() == acked
            yield

    @contextmanager
    def frozen_driver(self) -> Iterator[None]:
        """Stop the driver, its JVM and its workers, as a closed lid or a migrated machine does, during the block."""
        frozen = processes_marked(self._driver_marker)
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in frozen:
                os.kill(pid, signal.SIGCONT)

    def cut_in_a_read(self, then: Callable[[], None] = lambda: None) -> None:
        """Cut a ReadFn stream in the middle of a message and wait for the cut.

        Args:
            then: Called at this moment, in another thread.
        """

        def at_the_cut() -> None:
            with self._writing:  # Kafka may die
                then()

        before = self.proxy.cuts
        self.proxy.cut_after(random.choice(CUT_BYTES), at_the_cut)
        while self.proxy.cuts == before:
            self.produce()
            until(lambda: self.proxy.cuts > before or self.is_settled(), PATIENCE_SECONDS, self.tails)

    def die_at(self, moment: Moment) -> None:
        """Let the driver die at this moment of its next batch, and wait for its death."""
        before = self.rows()
        with self._catalog_locked() if moment is Moment.COMMITTING else nullcontext():
            self._fuse(moment).touch()
            self.produce()
            until(lambda: not self.driver.lives, PATIENCE_SECONDS, self.tails)
        assert self.driver.process.returncode == -signal.SIGKILL and not self._fuse(moment).exists(), self.tails()
        if not self._crowded:
            assert (self.rows() > before) is (moment in COMMITTED), f"it did not die at {moment}"

    @contextmanager
    def _catalog_locked(self) -> Iterator[None]:
        """Lock the catalog, so that a commit can complete all but its last step."""
        with closing(sqlite3.connect(self._folder / "catalog.db", isolation_level=None, timeout=60)) as lock:
            lock.execute("BEGIN IMMEDIATE")
            try:
                yield
            finally:
                lock.execute("ROLLBACK")

    @contextmanager
    def _foreign_writer(self) -> Iterator[None]:
        """Append rows of another series as a user would, with pyiceberg's own commits.

        Between them it rests for a multiple of the time that the last one took, so that on a busy machine a driver's
        commit, which takes longer, also finds a moment without another one.
        """
        ended = threading.Event()

        def write() -> None:
            took_s = 0.0
            for number in itertools.count():
                if ended.wait(0.1 + FOREIGN_REST * took_s):
                    return
                started_s = time.monotonic()
                head = control(number, 1, ticker=FOREIGN)
                rows = CANDLES.decode(head, page(head)[0])
                with suppress(CommitFailedException, NoSuchTableError, OperationalError):
                    self._settings.load().load_table(OHLC.name).append(pa.Table.from_batches([rows]))
                took_s = time.monotonic() - started_s

        writer = threading.Thread(target=write)
        writer.start()
        try:
            yield
        finally:
            ended.set()
            writer.join()

    def _fuse(self, moment: Moment) -> Path:
        return self._folder / f"fuse-{moment.value}"

    def forget_commits(self) -> None:
        """Make the next udsource serve another group, which has no commits."""
        self._group = f"group-{next(self._numbers)}"
