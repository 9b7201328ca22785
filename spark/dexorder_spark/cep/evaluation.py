"""The engine on the inputs of a batch: outputs as the messages that are reported. No I/O and no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from dexorder_cep import (
    CompiledTrigger,
    Engine,
    EngineState,
    Firing,
    InvalidSql,
    Outcome,
    Registration,
    Suspension,
    compile_trigger,
    periods_read,
)
from dexorder_common.model.datasets import TRADES
from dexorder_common.model.instrument import Series
from dexorder_common.model.triggers import EventKind
from dexorder_common.model.user_events import MAX_ID_CHARACTERS
from dexorder_common.rpc.trigger_messages import encode_event
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as pb
from dexorder_spark.cep.inputs import Edit, Expire, Feed, Input, Pause, Register, Remove, Resume, SkipPauses, Suspend

Names: TypeAlias = Mapping[int, str]
NO_NAMES: Names = {}
REASON = "reason"
MAX_EVENT_BYTES = 1 << 20
"""Largest size of an event, far below that of a call."""
_NEVER = 10**9
"""Seconds by which the engine's clock may run ahead of rows: it ends triggers, and moves no watermark."""


class Watch(NamedTuple):
    """What a trigger watches, and its state. Triggers share it, because there may be a million.

    Attributes:
        series: The series.
        expires_ns: Time at which it ends; None for never.
        silent_ns: End of the last pause that it knows.
    """

    series: tuple[Series, ...]
    expires_ns: int | None = None
    is_paused: bool = False
    revision: int = 1
    silent_ns: int = 0


class Watcher(NamedTuple):
    """Trigger of a registration, and the time of the registration."""

    trigger_id: str
    registered_ns: int
    watch: Watch


class Output(NamedTuple):
    """Event of a batch.

    Attributes:
        input: Number of the input that has caused it.
        registration: Number of the trigger's registration.
        is_end: Whether the trigger has ended.
        event: Serialized ReportedTriggerEvent.
        trigger_id: Id of the trigger.
    """

    input: int
    registration: int
    is_end: bool
    event: bytes
    trigger_id: str = ""


class Evaluation:
    """The engine of some tickers."""

    def __init__(self, state: EngineState | None = None) -> None:
        """Load the engine; InvalidRequest if the state is of a version that cannot be read."""
        self._engine = Engine.load(state, idle_grace_seconds=_NEVER) if state else Engine(idle_grace_seconds=_NEVER)
        self._names: Names = {}

    def watchers(self) -> dict[int, Watcher]:
        """Return the triggers by their registrations."""
        found = {}
        for each in self._engine.registrations.values():
            watch = watch_of(
                each.kind, tuple(sorted(each.tickers or ())), bool(each.withheld), each.revision, each.silent_ns
            )
            found[each.number] = Watcher(each.trigger_id, each.at_ns, watch)
        return found

    def number_of(self, trigger_id: str) -> int | None:
        """Return the registration of a trigger; None if none has the id."""
        known = self._engine.registrations.get(trigger_id)
        return known.number if known is not None else None

    def run(self, inputs: Sequence[tuple[int, Input]], names: Names = NO_NAMES) -> list[Output]:
        """Take numbered inputs; return their outputs, in order.

        Args:
            names: Ids of the triggers that they change, by registration.
        """
        self._names = names
        return [found for number, each in inputs for found in self._outputs(number, self._take(each))]

    def _take(self, each: Input) -> list[Outcome]:
        match each:
            case Register():
                return self._register(each)
            case Edit():
                return self._edit(each)
            case Remove():
                self._remove(each.registration)
                return []
            case Pause():
                self._engine.pause(self._name(each.registration), each.ticker)
                return []
            case Resume():
                return self._engine.resume(self._name(each.registration), each.ticker, each.at_ns)
            case SkipPauses():
                self._engine.skip_pauses(self._name(each.registration), each.ticker, each.pauses)
                return []
            case Suspend():
                return self._suspend(each)
            case Feed():
                return self._feed(each)
            case Expire():
                return self._engine.advance(each.now_ns)

    def _register(self, each: Register) -> list[Outcome]:
        try:
            compiled = _compiled(each.sql, tuple(each.parameters.items()))
        except InvalidSql as error:  # an earlier version has accepted it
            return [Suspension(each.trigger_id, each.registration, "", each.registered_ns, str(error))]
        return self._engine.add(
            each.trigger_id,
            each.registration,
            compiled,
            each.registered_ns,
            tickers=each.tickers,
            revision=each.revision,
            is_paused=each.is_paused,
            pauses=each.pauses,
        )

    def _edit(self, each: Edit) -> list[Outcome]:
        known = self._find(each.registration)
        if known is None:
            return []
        try:
            compiled = _compiled(each.sql, tuple(each.parameters.items()))
        except InvalidSql as error:  # the relay's version has accepted it
            return self._suspend(Suspend(each.registration, str(error), known.at_ns))
        return self._engine.edit(known.trigger_id, each.revision, compiled)

    def _suspend(self, each: Suspend) -> list[Outcome]:
        known = self._find(each.registration)
        if known is None:
            return []
        self._engine.remove(known.trigger_id)
        return [Suspension(known.trigger_id, each.registration, "", each.time_ns, each.reason)]

    def _remove(self, registration: int) -> None:
        self._engine.remove(self._name(registration))

    def _name(self, registration: int) -> str:
        """Return the id of a registered trigger; empty if it is not registered any more."""
        known = self._find(registration)
        return known.trigger_id if known is not None else ""

    def _find(self, registration: int) -> Registration | None:
        known = self._engine.registrations.get(self._names.get(registration, ""))
        return known if known is not None and known.number == registration else None

    def _feed(self, each: Feed) -> list[Outcome]:
        engine, found = self._engine, list[Outcome]()
        if each.stamp_ns is not None and each.since_ns is not None:
            engine.stamp(each.ticker, each.period_seconds, each.stamp_ns, each.since_ns)
        if each.series.dataset is TRADES:
            if each.rows or each.since_ns is not None:
                found += engine.feed_ticks(each.ticker, each.rows, since_ns=each.since_ns)
        elif each.rows:
            found += engine.feed_candles(each.ticker, each.period_seconds, each.rows)
        if each.settled_ns is not None:
            found += engine.settle(each.ticker, each.period_seconds, each.settled_ns)
        return found

    def _outputs(self, number: int, outcomes: Sequence[Outcome]) -> list[Output]:
        """Return the outputs of an input. A trigger with an event that would be refused is suspended instead."""
        found, suspended = list[Output](), set[int]()
        for outcome in outcomes:
            registration = outcome.registration_number
            if registration in suspended:
                continue
            message = reported(outcome)
            problem = _problem(message)
            if problem and isinstance(outcome, Firing):
                self._engine.remove(outcome.trigger_id)
                suspended.add(registration)
                message = reported(
                    Suspension(outcome.trigger_id, registration, outcome.ticker, outcome.time_ns, problem)
                )
            is_end = not isinstance(outcome, Firing) or registration in suspended
            event = message.SerializeToString(deterministic=True)  # independent of the process that writes it
            found.append(Output(number, registration, is_end, event, outcome.trigger_id))
        return found

    def dump(self) -> EngineState:
        """Return the engine's state."""
        return self._engine.dump()


@lru_cache(maxsize=256)
def _compiled(sql: str, parameters: tuple[tuple[str, str], ...]) -> CompiledTrigger:
    """Compile a text once for the several parts that need it: the rows of all triggers wait for a compilation."""
    return compile_trigger(sql, dict(parameters))


def _problem(message: pb.ReportedTriggerEvent) -> str:
    """Return why the relay would not take an event; empty if it does."""
    if len(message.event_id) > MAX_ID_CHARACTERS:
        return (
            f"an event's id has {len(message.event_id)} characters, as the ids of trigger, market and trades are long; "
            f"{MAX_ID_CHARACTERS} are allowed"
        )
    if (size := message.ByteSize()) > MAX_EVENT_BYTES:
        return f"an event has {size} bytes; at most {MAX_EVENT_BYTES} are allowed: take fewer rows or columns"
    return ""


@lru_cache(maxsize=4_096)
def _watch(
    tickers: tuple[str, ...],
    periods: tuple[int, ...],
    expires_ns: int | None,
    is_paused: bool,
    revision: int,
    silent_ns: int,
) -> Watch:
    """Return a value that equal triggers share."""
    series = tuple(Series.decode(ticker, period) for ticker in tickers for period in periods)
    return Watch(series, expires_ns, is_paused, revision, silent_ns)


def watch_of(
    compiled: CompiledTrigger, tickers: tuple[str, ...], is_paused: bool = False, revision: int = 1, silent_ns: int = 0
) -> Watch:
    """Return what a trigger watches on markets, and its state."""
    periods = periods_read(compiled.period_seconds, compiled.given)
    return _watch(tickers, periods, compiled.parameters.expires_ns, is_paused, revision, silent_ns)


def watch(each: Register) -> Watch:
    """Return what a registration watches: no series if its text is refused."""
    try:
        compiled = _compiled(each.sql, tuple(each.parameters.items()))
    except InvalidSql:
        return Watch((), None, each.is_paused, each.revision)
    silent_ns = each.pauses[-1][1] if each.pauses else 0
    return watch_of(compiled, tuple(each.tickers), each.is_paused, each.revision, silent_ns)


def changed(known: Watch, each: Pause | Resume | SkipPauses) -> Watch:
    """Return what a trigger watches after a change of its pauses."""
    match each:
        case Pause():
            return known._replace(is_paused=True)
        case Resume():
            return known._replace(is_paused=False, silent_ns=each.at_ns)
        case SkipPauses():
            return known._replace(silent_ns=each.pauses[-1][1])


def edited(known: Watch, each: Edit) -> Watch:
    """Return what a trigger watches after an edit: the same series, because it keeps its state."""
    try:
        compiled = _compiled(each.sql, tuple(each.parameters.items()))
    except InvalidSql:
        return known
    return known._replace(expires_ns=compiled.parameters.expires_ns, revision=each.revision)


def reported(output: Outcome) -> pb.ReportedTriggerEvent:
    """Return the message of an output. The end of a trigger has its own id because it ends once."""
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
