"""Loop of the triggers' process. One micro-batch, in crash-safe order:

1. Take the changes of triggers that have arrived, and the records after the last batch.
2. Evaluate them.
3. Write the batch to the journal, if it has read or changed anything.
4. Report its events to the relay until it answers.

A crash before 3 repeats the batch, which has published nothing. A crash after 3 publishes its events again; the relay
knows them by their ids. In idle times between batches the whole state is written now and then, so that few batches must
be evaluated again after a crash.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Protocol

import structlog

from dexorder_common.clock import Clock, SystemClock
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.market_rows import Row, stored_rows
from dexorder_common.model.cursor import Cursor
from dexorder_common.model.datasets import CANDLES, TRADES
from dexorder_common.model.errors import InvalidRequest, Unavailable
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_spark.cep.catch_up import chunks, known_by, start_ns, start_of
from dexorder_spark.cep.evaluation import watch
from dexorder_spark.cep.evaluator import Evaluator, RegistrationChanges
from dexorder_spark.cep.journal import Journal, TopicPosition
from dexorder_spark.cep.records import TABLES, rows_of
from dexorder_spark.cep.relay import TriggerRelay
from dexorder_spark.config import SparkSettings
from dexorder_spark.records.fault import Fault, Moment
from dexorder_spark.records.relay_client import KnownDispatches, Stopped
from dexorder_spark.records.selection import Record, select
from dexorder_spark.source.client import SourceBroken, SourceClient
from dexorder_spark.source.offsets import OffsetRange, SourceState, cap, plan
from dexorder_spark.source.records import Result

log = structlog.get_logger(__name__)
WARM_ROWS = 1_000
"""Stored candles with which a series starts."""
WARM_TRADES_NS = 120 * SECOND_NS
"""Time of the stored trades with which a series starts."""
_SNAPSHOT_SECONDS = 10.0
_SNAPSHOT_SHARE = 20
"""A snapshot is due after so many times the time that the last one took."""
_LATEST_SNAPSHOT = 5
"""A snapshot that is due by so many times its interval does not wait for a pause any more."""
_REPORT_SECONDS = 10.0
_IDLE_SECONDS = 60.0
"""Time without triggers after which the process ends."""

RecentRows = Callable[[Series], Sequence[Row]]


class Source(Protocol):
    """Methods of `SourceClient` that the micro-batches use."""

    def state(self) -> SourceState:
        """Return the start and the end of each partition; Unavailable if the source does not answer."""

    def read(self, part: OffsetRange, *, retry_seconds: float) -> Iterator[list[Result]]:
        """Yield the records of a range; Unavailable, or SourceBroken if they can't be read."""


def start_thread(work: Callable[[], None]) -> None:
    """Run a function in its own thread."""
    threading.Thread(target=work, name="changes", daemon=True).start()


class Runner:
    """Runs micro-batches until ``stop`` is set, or for a minute without registrations."""

    def __init__(
        self,
        settings: SparkSettings,
        journal: Journal,
        relay: TriggerRelay,
        recent_rows: RecentRows,
        *,
        stop: threading.Event,
        clock: Clock | None = None,
        fault: Fault | None = None,
        open_source: Callable[[str], Source] = SourceClient,
        start: Callable[[Callable[[], None]], None] = start_thread,
    ) -> None:
        """Read the journal, which this process must own.

        Args:
            recent_rows: Returns stored rows of a series that starts to be watched.
            open_source: Returns the source at an address.
            start: Runs a function beside the micro-batches.
        """
        self._settings = settings
        self._relay = relay
        self._recent_rows = recent_rows
        self._stop = stop
        self._clock = clock or SystemClock()
        self._fault = fault
        self._journal = journal
        self._open_source = open_source
        self._start = start
        snapshot, batches = self._journal.read() or (None, [])
        self._evaluator = Evaluator(snapshot, processes=settings.trigger_processes)
        self._evaluator.repeat(batches)
        self._known = self._evaluator.watched
        """The series that triggers have watched since the start."""
        self._is_new = snapshot is None
        self._unreported = batches[-1].events if batches else ()
        self._snapshot_s = self._seconds()
        self._interval_s = _SNAPSHOT_SECONDS
        self._is_changed = bool(batches)
        self._changes: queue.SimpleQueue[RegistrationChanges] = queue.SimpleQueue()
        self._held: list[RegistrationChanges] = []
        """Changes that wait for the source, which has the records since the registrations."""
        self._dispatches = KnownDispatches(relay.describe)
        self._reported_s = 0.0

    def run(self) -> None:
        """Run until the stop; Stopped and errors of the journal end it early."""
        with suppress(Stopped):
            self._report(self._unreported)
            if self._is_new:  # the first batch has a snapshot before it
                self._journal.snapshot(self._evaluator.snapshot())
            self._start(self._follow)
            busy_s = self._seconds()
            while not self._stop.is_set():
                started_s = self._seconds()
                worked = self._step()
                self._snapshot_if_due(paused=not worked)
                if worked or not self._evaluator.is_empty:
                    busy_s = started_s
                if started_s - busy_s > _IDLE_SECONDS:
                    log.info("no triggers; the process ends until there are some")
                    return
                interval_s = self._settings.trigger_batch_seconds if worked else self._settings.poll_ms / 1_000
                self._stop.wait(max(0.0, started_s + interval_s - self._seconds()))

    @property
    def cursor(self) -> Cursor | None:
        """Position of the last change of triggers that takes part; None before the first one."""
        return self._evaluator.cursor

    def _follow(self) -> None:
        """Take changes until the stop. Runs beside the micro-batches, as reading rows takes time."""
        for changes in self._relay.follow(self.cursor):
            self.take(changes)

    def take(self, changes: RegistrationChanges) -> None:
        """Pass changes to the next micro-batch, with recent rows of the series that they start to watch."""
        if not (changes.changes or changes.is_reset):
            return
        new = {
            series for each in changes.changes if each.trigger for series in watch(each.trigger).series
        } - self._known
        self._known |= new
        self._changes.put(replace(changes, recent_rows={each: self._recent_rows(each) for each in sorted(new)}))

    def _step(self) -> bool:
        """Run one micro-batch; return whether it had anything to do."""
        evaluator, now_ns = self._evaluator, self._clock.wall_ns()
        changed = self._apply()
        positions, records = self._read()
        self._feed(records)
        evaluator.advance(now_ns)
        moved = positions != evaluator.positions
        if not (changed or records or evaluator.has_inputs or (moved and self._is_report_due())):
            if self._is_report_due():
                self._report(())
            if moved:
                evaluator.positions = dict(positions)  # on disk with the next batch: earlier entries do not count
            return False
        batch = evaluator.finish(positions)
        self._pass(Moment.EVALUATED)
        self._journal.append(batch)
        self._is_changed = True
        self._pass(Moment.JOURNALED)
        if batch.events or changed or self._is_report_due():
            self._report(batch.events)
        if batch.events:
            log.info("trigger batch", batch=batch.number, records=len(records), events=len(batch.events))
        return True

    def _apply(self) -> bool:
        """Apply the changes that have arrived, with the records since their registrations; return whether any was."""
        with suppress(queue.Empty):
            while True:
                self._held.append(self._changes.get_nowait())
        applied = False
        try:
            while self._held:
                changes = self._held[0] = self._with_rows(self._held[0])
                missed = list[Record]()
                for topic in sorted({each.dataset.topic for each in changes.recent_rows}):
                    missed += self._missed(changes, topic)
                self._evaluator.apply(_without(changes, missed, self._clock.wall_ns()))
                self._feed(missed)
                del self._held[0]
                applied = True
        except (Unavailable, NotImplementedError) as error:
            log.warning("the source does not answer; new triggers wait", error=str(error))
        return applied

    def _with_rows(self, changes: RegistrationChanges) -> RegistrationChanges:
        """Return changes with recent rows of each series that is not watched now; `take` could not know of all.

        A series is not watched any more when its last trigger was deleted or has ended.
        """
        wanted = {series for each in changes.changes if each.trigger for series in watch(each.trigger).series}
        lacking = wanted - self._evaluator.watched - changes.recent_rows.keys()
        rows = {each: self._recent_rows(each) for each in sorted(lacking)}
        return replace(changes, recent_rows={**changes.recent_rows, **rows})

    def _missed(self, changes: RegistrationChanges, topic: str) -> list[Record]:
        """Return the records of newly watched series that were read before the changes arrived."""
        before = self._evaluator.positions.get(topic)
        new = changes.recent_rows.keys() - self._evaluator.watched
        registered = [each.trigger.registered_ns for each in changes.changes if each.trigger]
        if before is None or not new or not registered:
            return []
        source = self._open_source(address_of(self._settings.source, topic))
        state = replace(source.state(), ends=before.offsets)
        start = start_of(None, state, topic, registered, partial(self._records, source, topic), self._clock.wall_ns())
        found: list[Record] = []
        for part in chunks(plan(start, before.offsets)):
            found += select(TABLES[topic], self._records(source, topic, part), new.__contains__)
        return found

    def _feed(self, records: Sequence[Record]) -> None:
        issued = self._dispatches.of({each.headers.dispatch_id for each in records})
        evaluator, now_ns = self._evaluator, self._clock.wall_ns()
        for each in records:
            try:
                rows = rows_of(each, issued, now_ns=now_ns)
            except InvalidRequest as error:
                log.error("a record can't be read; triggers of its series are suspended", error=str(error))
                evaluator.lose({each.series}, str(error), now_ns)
                continue
            if rows is not None:
                evaluator.feed(each.series, rows, each.headers.span, each.stamp_ns)

    def _snapshot_if_due(self, *, paused: bool) -> None:
        """Write the state as a whole, if it has changed, for a small part of the time, and best in a pause."""
        started_s = self._seconds()
        due_s = self._interval_s if paused else _LATEST_SNAPSHOT * self._interval_s
        if not self._is_changed or started_s - self._snapshot_s < due_s:
            return
        self._journal.snapshot(self._evaluator.snapshot())
        self._is_changed = False
        self._snapshot_s = self._seconds()
        self._interval_s = max(_SNAPSHOT_SECONDS, _SNAPSHOT_SHARE * (self._snapshot_s - started_s))

    def _is_report_due(self) -> bool:
        return self._seconds() - self._reported_s >= _REPORT_SECONDS

    def _report(self, events: Sequence[bytes]) -> None:
        on_part = partial(self._pass, Moment.PUBLISHING) if events else lambda: None
        self._relay.report(events, self._evaluator.cursor, on_part=on_part)
        self._reported_s = self._seconds()

    def _read(self) -> tuple[dict[str, TopicPosition], list[Record]]:
        """Return the places after the next records, and the records of watched series.

        A topic that becomes watched is read from the time of the registration: rows that were settled earlier
        do not fire.
        """
        positions, records = {}, []
        evaluator, now_ns = self._evaluator, self._clock.wall_ns()
        watched = evaluator.watched
        for topic in sorted(evaluator.topics):
            source = self._open_source(address_of(self._settings.source, topic))
            before = evaluator.positions.get(topic)
            try:
                state = source.state()
                registered_ns = evaluator.registered_ns(topic) if before is None else ()
                start = start_of(before, state, topic, registered_ns, partial(self._records, source, topic), now_ns)
                end = cap(start, state.ends, self._settings.max_trade_records_per_batch)
                for part in plan(start, end):
                    records += select(TABLES[topic], self._records(source, topic, part), watched.__contains__)
                positions[topic] = TopicPosition(end, state.topic_id)
            except (Unavailable, NotImplementedError) as error:
                log.warning("the source does not answer; triggers wait", error=str(error))
                if before:
                    positions[topic] = before
                self._stop.wait(1.0)
        return positions, records

    def _records(self, source: Source, topic: str, part: OffsetRange) -> list[Result]:
        """Return the records of a range; if some can't be read, the triggers that might need them are suspended."""
        found: list[Result] = []
        try:
            for results in source.read(part, retry_seconds=5.0):
                found += results
        except SourceBroken as error:
            log.error("records can't be read; triggers of their topic are suspended", topic=topic, error=str(error))
            watched = {each for each in self._evaluator.watched if each.dataset.topic == topic}
            self._evaluator.lose(watched, f"records of {topic} can't be read: {error}", self._clock.wall_ns())
        return found

    def _seconds(self) -> float:
        return self._clock.monotonic_ns() / SECOND_NS

    def _pass(self, moment: Moment) -> None:
        if self._fault:
            self._fault.passed(moment)


def address_of(source: str, topic: str) -> str:
    """Return the source's address of a topic. Candles come from the address of plain reads, as for the tables."""
    return source if topic == CANDLES.topic else f"{source}#{topic}"


def _without(changes: RegistrationChanges, missed: Sequence[Record], now_ns: int) -> RegistrationChanges:
    """Return changes without the stored rows that the topic brings, which may fire."""
    at_ns = start_ns((each.trigger.registered_ns for each in changes.changes if each.trigger), now_ns)
    begins = dict.fromkeys(changes.recent_rows, now_ns if at_ns is None else at_ns)
    for each in reversed(missed):
        begins[each.series] = each.headers.span.start_ns
    rows = {series: known_by(series, found, begins[series]) for series, found in changes.recent_rows.items()}
    return replace(changes, recent_rows=rows)


def stored(catalog: CatalogSettings, clock: Clock | None = None) -> RecentRows:
    """Return a function that reads recent rows from the tables; none if they cannot be read."""
    clock = clock or SystemClock()

    def read(series: Series) -> Sequence[Row]:
        now_ns = clock.wall_ns()
        age_ns = WARM_TRADES_NS if series.dataset is TRADES else WARM_ROWS * series.period_seconds * SECOND_NS
        span = TimeRange(max(0, now_ns - age_ns), now_ns)
        try:
            return stored_rows(catalog.load(), series, span)
        except Exception as error:  # catalog, object store and file system raise their own errors
            log.warning(
                "recent rows can't be read; a trigger begins without them", series=str(series), error=str(error)
            )
            return ()

    return read
