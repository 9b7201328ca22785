"""Micro-batches of triggers: the engine's input, its output, and the state between batches. No clock.

A batch first takes the changes of triggers, so that a registration takes effect at the boundary of a batch, then the
rows in the order of the records. Its inputs decide everything: evaluated again, they give the same events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import structlog

from dexorder_common.lake.market_rows import Row
from dexorder_common.model.cursor import Cursor
from dexorder_common.model.datasets import TRADES
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_spark.cep import shards
from dexorder_spark.cep.evaluation import Watcher, changed, edited, watch
from dexorder_spark.cep.inputs import (
    Edit,
    Expire,
    Feed,
    Input,
    Pause,
    Pauses,
    Register,
    Remove,
    Resume,
    SkipPauses,
    Suspend,
)
from dexorder_spark.cep.journal import JournalBatch, Snapshot, TopicPosition
from dexorder_spark.cep.records import without_repeated

log = structlog.get_logger(__name__)


class RegistrationChange(NamedTuple):
    """Registration of a trigger, or its deletion if ``trigger`` is None; when it was last paused or resumed.

    ``pauses`` are those that have ended and that the process may not know.
    """

    registration: int
    trigger: Register | None = None
    is_paused: bool = False
    changed_ns: int = 0
    registered_sequence: int = 0
    pauses: Pauses = ()


@dataclass(frozen=True)
class RegistrationChanges:
    """Changes up to a cursor, and the recent rows of series that they start to watch.

    Attributes:
        is_reset: These are all triggers there are.
    """

    changes: Sequence[RegistrationChange]
    cursor: Cursor
    is_reset: bool = False
    recent_rows: Mapping[Series, Sequence[Row]] = field(default_factory=dict)


class Evaluator:
    """Continues after a snapshot; without one it starts with batch 1."""

    def __init__(self, snapshot: Snapshot | None = None, *, processes: int = 1) -> None:
        """Load the engine; if its state is of a version that cannot be read, all triggers are registered again."""
        self.batch = snapshot.number if snapshot else 0
        self.cursor = snapshot.cursor if snapshot else None
        self.positions: dict[str, TopicPosition] = dict(snapshot.positions) if snapshot else {}
        self._recent = {ticker: dict(each) for ticker, each in snapshot.recent.items()} if snapshot else {}
        self._inputs: list[Input] = []
        self._names: dict[int, str] = {}
        """Ids of the triggers that the inputs change."""
        self._new: dict[str, int] = {}
        """Registrations among the inputs, by trigger id."""
        try:
            self._engines = shards.start(snapshot.state if snapshot else None, processes)
        except InvalidRequest as error:
            log.error("the engine's state can't be read; its triggers are registered again", error=str(error))
            self._engines = shards.start(None, processes)
            self.cursor = None
        self._watchers: dict[int, Watcher] = {}
        self._counts: Counter[Series] = Counter()
        self._expiring: dict[int, int] = {}
        for number, each in self._engines.watchers().items():
            self._watch(number, each)

    @property
    def watched(self) -> set[Series]:
        """The series that triggers watch."""
        return set(self._counts)

    @property
    def topics(self) -> set[str]:
        """The topics that have them."""
        return {series.dataset.topic for series in self.watched}

    def registered_ns(self, topic: str) -> list[int]:
        """Return when the triggers that read a topic were registered."""
        return [
            each.registered_ns
            for each in self._watchers.values()
            if any(series.dataset.topic == topic for series in each.watch.series)
        ]

    @property
    def is_empty(self) -> bool:
        """True without registrations."""
        return not self._watchers

    @property
    def has_inputs(self) -> bool:
        """True if the batch has anything to evaluate."""
        return bool(self._inputs)

    def apply(self, changes: RegistrationChanges) -> None:
        """Register and remove triggers. Recent rows fill the engine's memory, and fire nothing."""
        if changes.is_reset:
            kept = {each.registration for each in changes.changes}
            for registration in self._watchers.keys() - kept:
                self._remove(registration)
        before = self.watched
        for series, rows in changes.recent_rows.items():
            if series not in before:
                self._take(Feed(series.ticker, series.period_seconds, rows))
        for each in changes.changes:
            if each.trigger is None:
                self._remove(each.registration)
                continue
            if each.registration not in self._watchers:
                if not changes.is_reset and self._has_had(each):
                    continue  # it has ended, which the relay did not know yet when it was paused or resumed
                self._add(replace(each.trigger, is_paused=each.is_paused, pauses=list(each.pauses)))
            number, trigger = each.registration, each.trigger
            was_paused = self._watchers[number].watch.is_paused
            if was_paused and not each.is_paused:  # before an edit: rows since then were evaluated with the text before
                for ticker in trigger.tickers:
                    self._take(Resume(number, ticker, each.changed_ns))
            elif unknown := [[*pause] for pause in each.pauses if pause[1] > self._watchers[number].watch.silent_ns]:
                for ticker in trigger.tickers:
                    self._take(SkipPauses(number, ticker, unknown))
            is_edited = changes.is_reset and trigger.revision > 1  # an older relay's file may have had another edit
            if self._watchers[number].watch.revision != trigger.revision or is_edited:
                self._take(Edit(number, trigger.revision, trigger.sql, trigger.parameters))
            if each.is_paused and not was_paused:
                for ticker in trigger.tickers:
                    self._take(Pause(number, ticker))
        self.cursor = changes.cursor

    def _has_had(self, each: RegistrationChange) -> bool:
        return self.cursor is not None and 0 < each.registered_sequence <= self.cursor.sequence

    def _add(self, each: Register) -> None:
        known = self._new.get(each.trigger_id) or self._engines.number_of(each.trigger_id)
        if known is not None:  # its deletion is lost; an id has one trigger
            self._remove(known)
        self._take(each)

    def _remove(self, registration: int) -> None:
        if registration in self._watchers:
            self._take(Remove(registration))

    def _forget(self, registration: int) -> None:
        known = self._watchers.pop(registration, None)
        self._expiring.pop(registration, None)
        self._count(known.watch.series if known is not None else (), -1)

    def _watch(self, registration: int, new: Watcher) -> None:
        """Take what a trigger watches. Counts make a batch independent of the number of triggers."""
        known = self._watchers.get(registration)
        self._count(new.watch.series, 1)
        self._count(known.watch.series if known is not None else (), -1)
        self._watchers[registration] = new
        self._expiring.pop(registration, None)
        if new.watch.expires_ns is not None:
            self._expiring[registration] = new.watch.expires_ns

    def _count(self, several: Iterable[Series], change: int) -> None:
        for each in several:
            self._counts[each] += change
            if not self._counts[each]:
                del self._counts[each]

    def feed(self, series: Series, rows: Sequence[Row], span: TimeRange, stamp_ns: int) -> None:
        """Give rows of a series to the engine, in the order in which the topic has them.

        Args:
            span: Time of which these are all rows. Its end moves the watermark. A clock would make rows late that come
                after an outage.
            stamp_ns: Time at which they were settled; triggers that were registered later do not fire for them.
        """
        ticker = series.ticker
        if series.dataset is TRADES:
            rows = without_repeated(rows, self._recent.setdefault(ticker, {}))
        self._inputs.append(Feed(ticker, series.period_seconds, rows, span.start_ns, span.end_ns, stamp_ns))

    def lose(self, series: Collection[Series], reason: str, now_ns: int) -> None:
        """Suspend the triggers that watch series of which rows can't be read."""
        for registration, each in self._watchers.items():
            if not set(each.watch.series).isdisjoint(series):
                self._take(Suspend(registration, reason, now_ns))

    def advance(self, now_ns: int) -> None:
        """End the triggers that have expired."""
        if any(expires_ns <= now_ns for expires_ns in self._expiring.values()):
            self._take(Expire(now_ns))

    def _take(self, each: Input) -> None:
        known = None
        if not isinstance(each, Feed | Expire) and (known := self._watchers.get(each.registration)) is not None:
            self._names[each.registration] = known.trigger_id
        match each:
            case Register():
                self._watch(each.registration, Watcher(each.trigger_id, each.registered_ns, watch(each)))
                self._names[each.registration] = each.trigger_id
                self._new[each.trigger_id] = each.registration
            case Remove():
                self._forget(each.registration)
            case Edit() if known is not None:
                self._watch(each.registration, known._replace(watch=edited(known.watch, each)))
            case Pause() | Resume() | SkipPauses() if known is not None:
                self._watch(each.registration, known._replace(watch=changed(known.watch, each)))
            case Feed() if each.series.dataset is TRADES and each.since_ns is not None:
                without_repeated(each.rows, self._recent.setdefault(each.ticker, {}))
            case _:
                pass
        self._inputs.append(each)

    def finish(self, positions: Mapping[str, TopicPosition]) -> JournalBatch:
        """Evaluate the batch and return it. ``positions`` are the places after it."""
        inputs, self._inputs = tuple(self._inputs), []
        names, self._names, self._new = self._names, {}, {}
        outputs = self._engines.run(list(enumerate(inputs)), names)
        for each in outputs:
            if each.is_end:
                self._forget(each.registration)
        self.batch += 1
        self.positions = dict(positions)
        watched = {series.ticker for series in self.watched if series.dataset is TRADES}
        self._recent = {ticker: each for ticker, each in self._recent.items() if ticker in watched}
        return JournalBatch(self.batch, self.cursor, self.positions, inputs, tuple(each.event for each in outputs))

    def repeat(self, batches: Iterable[JournalBatch]) -> None:
        """Evaluate batches of the journal again; their events are known."""
        for batch in batches:
            for each in batch.inputs:
                self._take(each)
            self.cursor = batch.cursor
            self.finish(batch.positions)

    def snapshot(self) -> Snapshot:
        """Return the state after the last batch."""
        recent = {ticker: dict(each) for ticker, each in self._recent.items()}
        return Snapshot(self.batch, self.cursor, self.positions, recent, self._engines.dump())
