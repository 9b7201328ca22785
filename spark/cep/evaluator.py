"""The engine and its place in the topics: one micro-batch after another. No I/O and no clock.

A batch first applies the changes of triggers, so that a registration takes effect at the boundary of a batch, then
takes the rows in the order of the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from dexorder.services.common.cep import Engine, Firing, InvalidSql, Outcome, Suspension, compile_trigger
from dexorder.services.common.lake.trigger_rows import Row
from dexorder.services.common.model.errors import InvalidRequest
from dexorder.services.common.model.instrument import Series
from dexorder.services.common.model.periods import TRADES_PERIOD
from dexorder.services.common.model.triggers import EventKind
from dexorder.services.common.rpc.trigger_messages import encode_event
from dexorder.services.gen.dexorder.ingest.v1 import ingest_pb2
from dexorder.services.gen.dexorder.relay.v1 import pipeline_service_pb2 as pb
from dexorder.spark.cep.journal import Entry, TopicPosition
from dexorder.spark.cep.records import topic_of, without_repeated

log = structlog.get_logger(__name__)
REASON = "reason"
_NEVER = 10**9
"""Seconds by which the engine's clock may run ahead of rows: it ends triggers, and moves no watermark."""


@dataclass(frozen=True)
class Change:
    """Registration of a trigger, or its deletion if ``request`` is None.

    Attributes:
        registered_ns: Time of the registration at the relay.
    """

    registration: int
    request: ingest_pb2.CEPTriggerRequest | None = None
    registered_ns: int = 0


@dataclass(frozen=True)
class Changes:
    """Changes up to the one with the number ``change``, and the recent rows of series that they begin to watch.

    Attributes:
        reset: These are all triggers there are.
    """

    changes: Sequence[Change]
    change: int
    reset: bool = False
    recent_rows: Mapping[Series, Sequence[Row]] = field(default_factory=dict)


@dataclass(frozen=True)
class Watcher:
    """Series that a registration watches."""

    trigger_id: str
    series: tuple[Series, ...]


class Evaluator:
    """Continues after the batch of an entry; without one it begins with batch 0."""

    def __init__(self, entry: Entry | None = None) -> None:
        """Load the engine; if its state is of a version that cannot be read, all triggers are registered again."""
        self.batch = entry.batch if entry else -1
        self.change = entry.change if entry else 0
        self.positions: dict[str, TopicPosition] = dict(entry.positions) if entry else {}
        self._recent = {ticker: dict(each) for ticker, each in entry.recent.items()} if entry else {}
        self._events: list[bytes] = []
        self._outputs: list[Outcome] = []
        try:
            self._engine = Engine.load(entry.state, idle_grace_seconds=_NEVER) if entry else _engine()
        except InvalidRequest as error:
            log.error("the engine's state can't be read; its triggers are registered again", error=str(error))
            self._engine, self.change = _engine(), 0
        self._watchers = {
            each.number: Watcher(
                each.trigger_id, tuple(Series(ticker, each.compiled.period_seconds) for ticker in each.tickers or ())
            )
            for each in self._engine.registrations.values()
        }

    @property
    def watched(self) -> set[Series]:
        """The series that triggers watch."""
        return {series for each in self._watchers.values() for series in each.series}

    @property
    def topics(self) -> set[str]:
        """The topics that have them."""
        return {topic_of(series.period_seconds) for series in self.watched}

    @property
    def is_empty(self) -> bool:
        """True if nothing is registered."""
        return not self._watchers

    def apply(self, changes: Changes, *, now_ns: int) -> None:
        """Register and remove triggers. Recent rows fill the engine's memory, and fire nothing."""
        if changes.reset:
            kept = {each.registration for each in changes.changes}
            for registration in self._watchers.keys() - kept:
                self._remove(registration)
        before = self.watched
        for series, rows in changes.recent_rows.items():
            if series not in before:
                self._feed(series, rows)
        for each in changes.changes:
            if each.request is None:
                self._remove(each.registration)
            elif each.registration not in self._watchers:
                self._add(each, each.request, now_ns)
        self.change = changes.change

    def _add(self, change: Change, request: ingest_pb2.CEPTriggerRequest, now_ns: int) -> None:
        trigger_id = request.trigger_id
        for registration, watcher in list(self._watchers.items()):
            if watcher.trigger_id == trigger_id:  # its deletion is lost; an id has one trigger
                self._remove(registration)
        try:
            compiled = compile_trigger(request.sql_pattern, dict(request.parameters))
        except InvalidSql as error:  # an earlier version has accepted it
            self._outputs.append(Suspension(trigger_id, change.registration, "", now_ns, str(error)))
            return
        series = tuple(Series(ticker, compiled.period_seconds) for ticker in request.tickers)
        self._watchers[change.registration] = Watcher(trigger_id, series)
        self._take(
            self._engine.add(trigger_id, change.registration, compiled, change.registered_ns, tickers=request.tickers)
        )

    def _remove(self, registration: int) -> None:
        if watcher := self._watchers.pop(registration, None):
            self._engine.remove(watcher.trigger_id)

    def feed(self, series: Series, rows: Sequence[Row], settled_ns: int) -> None:
        """Give rows of a series to the engine, in the order in which the topic has them.

        Args:
            settled_ns: Time before which the series has no further rows. It moves the watermark. A clock would make
                rows late that come after an outage.
        """
        if series.period_seconds == TRADES_PERIOD:
            rows = without_repeated(rows, self._recent.setdefault(series.ticker, {}))
        self._take(self._feed(series, rows))
        self._take(self._engine.settle(series.ticker, series.period_seconds, settled_ns))

    def _feed(self, series: Series, rows: Sequence[Row]) -> list[Outcome]:
        if not rows:
            return []
        if series.period_seconds == TRADES_PERIOD:
            return self._engine.feed_ticks(series.ticker, rows)
        return self._engine.feed_candles(series.ticker, series.period_seconds, rows)

    def advance(self, now_ns: int) -> None:
        """End the triggers whose time is over."""
        self._take(self._engine.advance(now_ns))

    def _take(self, outputs: Iterable[Outcome]) -> None:
        self._outputs += outputs

    @property
    def has_events(self) -> bool:
        """True if the batch has fired something so far."""
        return bool(self._outputs)

    def finish(self, positions: Mapping[str, TopicPosition]) -> Entry:
        """End the batch and return it. ``positions`` are the places after it."""
        events = []
        for each in self._outputs:
            if not isinstance(each, Firing):
                self._watchers.pop(each.registration_number, None)
            events.append(reported(each).SerializeToString())
        self._outputs = []
        self.batch += 1
        self.positions = dict(positions)
        watched = {series.ticker for series in self.watched if series.period_seconds == TRADES_PERIOD}
        self._recent = {ticker: each for ticker, each in self._recent.items() if ticker in watched}
        recent = {ticker: dict(each) for ticker, each in self._recent.items()}
        return Entry(self.batch, self.change, self.positions, recent, self._engine.dump(), tuple(events))


def _engine() -> Engine:
    return Engine(idle_grace_seconds=_NEVER)


def reported(output: Outcome) -> pb.ReportedTriggerEvent:
    """Return the message of an output. The end of a trigger has an id of its own, as it ends once."""
    if isinstance(output, Firing):
        columns = [(each.name, each.type) for each in output.columns]
        return pb.ReportedTriggerEvent(
            event_id=output.event_id,
            registration=output.registration_number,
            kind=EventKind.FIRED.value,  # type: ignore[arg-type]  # the same numbers
            ticker=output.ticker,
            event=encode_event(output.trigger_id, output.time_ns, columns, output.rows, output.context),
        )
    kind = EventKind.SUSPENDED if isinstance(output, Suspension) else EventKind.ENDED
    return pb.ReportedTriggerEvent(
        event_id=f"{output.trigger_id}/{output.registration_number}/{kind.name.lower()}",
        registration=output.registration_number,
        kind=kind.value,  # type: ignore[arg-type]  # the same numbers
        ticker=output.ticker if isinstance(output, Suspension) else "",
        event=encode_event(output.trigger_id, output.time_ns, [], [], {REASON: output.reason}),
    )


def series_of(change: Change) -> tuple[Series, ...]:
    """Return the series that a registration watches; none if its text is refused."""
    request = change.request
    if request is None:
        return ()
    try:
        compiled = compile_trigger(request.sql_pattern, dict(request.parameters))
    except InvalidSql:
        return ()
    return tuple(Series(ticker, compiled.period_seconds) for ticker in request.tickers)
