"""The engine on the inputs of a batch: outputs as the messages that are reported. No I/O and no clock."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from dexorder_cep import (
    CompiledTrigger,
    Engine,
    EngineState,
    Firing,
    InvalidSql,
    Outcome,
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

REASON = "reason"
MAX_EVENT_BYTES = 1 << 20
"""Largest size of an event, far below that of a call."""
_NEVER = 10**9
"""Seconds by which the engine's clock may run ahead of rows: it ends triggers, and moves no watermark."""


class Watcher(NamedTuple):
    """Trigger of a registration: the series that it watches, when it was registered, and when it ends or None.

    ``silent_ns`` is the end of the last pause that it knows.
    """

    trigger_id: str
    series: tuple[Series, ...]
    registered_ns: int
    expires_ns: int | None
    is_paused: bool = False
    revision: int = 1
    silent_ns: int = 0


class Output(NamedTuple):
    """Event of a batch.

    Attributes:
        input: Number of the input that has caused it.
        registration: Number of the trigger's registration.
        is_end: Whether the trigger has ended.
        event: Serialized ReportedTriggerEvent.
    """

    input: int
    registration: int
    is_end: bool
    event: bytes


class Evaluation:
    """The engine of some tickers."""

    def __init__(self, state: EngineState | None = None) -> None:
        """Load the engine; InvalidRequest if the state is of a version that cannot be read."""
        self._engine = Engine.load(state, idle_grace_seconds=_NEVER) if state else Engine(idle_grace_seconds=_NEVER)
        self._ids = {each.number: each.trigger_id for each in self._engine.registrations.values()}

    def watchers(self) -> dict[int, Watcher]:
        """Return the triggers by their registrations."""
        return {
            each.number: watcher_of(each.trigger_id, each.kind, sorted(each.tickers or ()), each.at_ns)._replace(
                is_paused=bool(each.withheld), revision=each.revision, silent_ns=each.silent_ns
            )
            for each in self._engine.registrations.values()
        }

    def run(self, inputs: Sequence[tuple[int, Input]]) -> list[Output]:
        """Take numbered inputs; return their outputs, in order."""
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
                self._engine.pause(self._ids.get(each.registration, ""), each.ticker)
                return []
            case Resume():
                return self._engine.resume(self._ids.get(each.registration, ""), each.ticker, each.at_ns)
            case SkipPauses():
                self._engine.skip_pauses(self._ids.get(each.registration, ""), each.ticker, each.pauses)
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
        self._ids[each.registration] = each.trigger_id
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
        trigger_id = self._ids.get(each.registration, "")
        known = self._engine.registrations.get(trigger_id)
        if known is None or known.number != each.registration:
            return []
        try:
            compiled = _compiled(each.sql, tuple(each.parameters.items()))
        except InvalidSql as error:  # the relay's version has accepted it
            return self._suspend(Suspend(each.registration, str(error), known.at_ns))
        return self._engine.edit(trigger_id, each.revision, compiled)

    def _suspend(self, each: Suspend) -> list[Outcome]:
        trigger_id = self._ids.get(each.registration)
        if trigger_id is None:
            return []
        self._remove(each.registration)
        return [Suspension(trigger_id, each.registration, "", each.time_ns, each.reason)]

    def _remove(self, registration: int) -> None:
        trigger_id = self._ids.pop(registration, None)
        known = self._engine.registrations.get(trigger_id or "")
        if known is not None and known.number == registration:
            self._engine.remove(known.trigger_id)

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
                self._remove(registration)
                suspended.add(registration)
                message = reported(
                    Suspension(outcome.trigger_id, registration, outcome.ticker, outcome.time_ns, problem)
                )
            is_end = not isinstance(outcome, Firing) or registration in suspended
            event = message.SerializeToString(deterministic=True)  # independent of the process that writes it
            found.append(Output(number, registration, is_end, event))
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


@lru_cache(maxsize=1_024)
def _series(tickers: tuple[str, ...], periods: tuple[int, ...]) -> tuple[Series, ...]:
    """Return series that all triggers on them share."""
    return tuple(Series.decode(ticker, period) for ticker in tickers for period in periods)


def watcher_of(trigger_id: str, compiled: CompiledTrigger, tickers: Sequence[str], registered_ns: int) -> Watcher:
    """Return the series that a trigger watches."""
    series = _series(tuple(tickers), periods_read(compiled.period_seconds, compiled.given))
    return Watcher(trigger_id, series, registered_ns, compiled.parameters.expires_ns)


def watcher(each: Register) -> Watcher:
    """Return the series that a registration watches; empty if its text is refused."""
    try:
        compiled = _compiled(each.sql, tuple(each.parameters.items()))
    except InvalidSql:
        return Watcher(each.trigger_id, (), each.registered_ns, None, each.is_paused, each.revision)
    found = watcher_of(each.trigger_id, compiled, each.tickers, each.registered_ns)
    silent_ns = each.pauses[-1][1] if each.pauses else 0
    return found._replace(revision=each.revision, is_paused=each.is_paused, silent_ns=silent_ns)


def changed(known: Watcher, each: Pause | Resume | SkipPauses) -> Watcher:
    """Return a watcher after a change of its pauses."""
    match each:
        case Pause():
            return known._replace(is_paused=True)
        case Resume():
            return known._replace(is_paused=False, silent_ns=each.at_ns)
        case SkipPauses():
            return known._replace(silent_ns=each.pauses[-1][1])


def edited(known: Watcher, each: Edit) -> Watcher:
    """Return the series that a trigger watches after an edit: the same ones, because it keeps its state."""
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
