"""The engine on the inputs of a batch: outputs as the messages that are reported. No I/O and no clock."""

from __future__ import annotations

from collections.abc import Sequence
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
from dexorder_common.rpc.trigger_messages import encode_event
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as pb
from dexorder_spark.cep.inputs import Expire, Feed, Input, Register, Remove

REASON = "reason"
_NEVER = 10**9
"""Seconds by which the engine's clock may run ahead of rows: it ends triggers, and moves no watermark."""


class Watcher(NamedTuple):
    """Trigger of a registration: the series that it watches, and the time at which it ends or None."""

    trigger_id: str
    series: tuple[Series, ...]
    expires_ns: int | None


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
            each.number: watcher_of(each.trigger_id, each.compiled, sorted(each.tickers or ()))
            for each in self._engine.registrations.values()
        }

    def run(self, inputs: Sequence[tuple[int, Input]]) -> list[Output]:
        """Take numbered inputs; return their outputs, in order."""
        return [self._output(number, outcome) for number, each in inputs for outcome in self._take(each)]

    def _take(self, each: Input) -> list[Outcome]:
        match each:
            case Register():
                return self._register(each)
            case Remove():
                self._remove(each.registration)
                return []
            case Feed():
                return self._feed(each)
            case Expire():
                return self._engine.advance(each.now_ns)

    def _register(self, each: Register) -> list[Outcome]:
        try:
            compiled = compile_trigger(each.sql, each.parameters)
        except InvalidSql as error:  # an earlier version has accepted it
            return [Suspension(each.trigger_id, each.registration, "", each.registered_ns, str(error))]
        self._ids[each.registration] = each.trigger_id
        return self._engine.add(each.trigger_id, each.registration, compiled, each.registered_ns, tickers=each.tickers)

    def _remove(self, registration: int) -> None:
        trigger_id = self._ids.pop(registration, None)
        known = self._engine.registrations.get(trigger_id or "")
        if known is not None and known.number == registration:
            self._engine.remove(known.trigger_id)

    def _feed(self, each: Feed) -> list[Outcome]:
        engine, found = self._engine, list[Outcome]()
        if each.series.dataset is TRADES:
            if each.rows or each.since_ns is not None:
                found += engine.feed_ticks(each.ticker, each.rows, since_ns=each.since_ns)
        elif each.rows:
            found += engine.feed_candles(each.ticker, each.period_seconds, each.rows)
        if each.settled_ns is not None:
            found += engine.settle(each.ticker, each.period_seconds, each.settled_ns)
        return found

    def _output(self, number: int, outcome: Outcome) -> Output:
        is_end = not isinstance(outcome, Firing)
        event = reported(outcome).SerializeToString(deterministic=True)  # whichever process writes it
        return Output(number, outcome.registration_number, is_end, event)

    def dump(self) -> EngineState:
        """Return the engine's state."""
        return self._engine.dump()


def watcher_of(trigger_id: str, compiled: CompiledTrigger, tickers: Sequence[str]) -> Watcher:
    """Return the series that a trigger watches."""
    periods = periods_read(compiled.period_seconds, compiled.given)
    series = tuple(Series.decode(ticker, period) for ticker in tickers for period in periods)
    return Watcher(trigger_id, series, compiled.parameters.expires_ns)


def watcher(each: Register) -> Watcher:
    """Return the series that a registration watches: nothing if its text is refused."""
    try:
        return watcher_of(each.trigger_id, compile_trigger(each.sql, each.parameters), each.tickers)
    except InvalidSql:
        return Watcher(each.trigger_id, (), None)


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
