"""Triggers: registered by clients, evaluated by the pipeline, followed through its reports.

The database is their only state. Signals wake calls that wait for a change or an event; they continue at their cursor.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from secrets import token_hex
from typing import cast

import structlog

from dexorder_common.model.cursor import Cursor, StreamStart
from dexorder_common.model.datasets import realtime_dataset
from dexorder_common.model.errors import InvalidRequest, NotFound, SuiteError
from dexorder_common.model.periods import check_period
from dexorder_common.model.realtime import RealtimeParams, Subscription
from dexorder_common.model.triggers import EventKind, RegisteredTrigger, Trigger, TriggerState
from dexorder_common.rpc.identity import Caller
from dexorder_relay import access
from dexorder_relay.access import check_user
from dexorder_relay.realtime.jobs import RealtimeJobs
from dexorder_relay.requests.context import Context
from dexorder_relay.state import triggers as rules
from dexorder_relay.store import triggers as store
from dexorder_relay.store.logs import Log, start_of
from dexorder_relay.triggers.text_checks import Text

log = structlog.get_logger(__name__)
EVENTS_IN_A_READ = 500
CHANGES_IN_A_READ = 500
TAKEN = "triggers taken"
"""Signal that the pipeline has reported which changes it has on its disk."""
FOLLOW_SECONDS = 10.0
"""Time without a change after which a follower gets an answer without one, so that both ends see a broken stream."""
SUBSCRIPTION_PREFIX = "trigger:"
"""Begins the ids of the subscriptions that bring the data of triggers. Clients may not use it."""


class RegisteredTriggers:
    """The only part that changes triggers.

    Args:
        periods: Checks texts and their parameters; see `TextChecks`.
    """

    def __init__(
        self,
        context: Context,
        realtime: RealtimeJobs,
        periods: Callable[[Sequence[Text], str], Awaitable[list[int | SuiteError]]],
    ) -> None:
        self._context = context
        self._periods = periods
        self._realtime = realtime
        self._changed = asyncio.Event()
        self._changed.set()
        self._wanted: dict[str, RealtimeParams] | None = None
        """Data that the triggers need and that is subscribed to; None while that is not known."""
        self.alerts_wait = asyncio.Event()
        self.alerts_wait.set()

    async def register(
        self, given: Sequence[Trigger | SuiteError], caller: Caller | None = None
    ) -> list[bool | SuiteError]:
        """Accept triggers, which are on disk together when this returns.

        Args:
            given: Triggers, and errors in the place of unreadable ones.
            caller: Their owner.

        Returns:
            For each, in order, whether it is new, or why it is refused: InvalidSql for the text; InvalidRequest for
            another field, or an id that is in use for another trigger; NotAllowed for the user of the alert; Exhausted
            if the caller has too many triggers, or too many bytes of them.

        Raises:
            Exhausted: The caller registers too fast, or the disk is full. No trigger is stored.
        """
        outcomes: list[Trigger | bool | SuiteError] = [self._checked(each, caller) for each in given]
        sound = [each for each in outcomes if isinstance(each, Trigger)]
        known = await self._context.store.read(store.found, [each.trigger_id for each in sound])
        accepted = await self._accept([each for each in sound if each.trigger_id not in known], caller)
        for place, trigger in enumerate(outcomes):
            if isinstance(trigger, Trigger):
                present = known.get(trigger.trigger_id)
                outcomes[place] = next(accepted) if present is None else _same(present, trigger) or False
        return outcomes  # type: ignore[return-value]  # no trigger is left

    def _checked(self, given: Trigger | SuiteError, caller: Caller | None) -> Trigger | SuiteError:
        if isinstance(given, SuiteError):
            return given
        try:
            rules.check(given, self._context.venues)
            if given.alert is not None:
                check_user(caller, "alert.user_id", given.alert.user_id)
        except SuiteError as error:
            return error
        return given

    async def _accept(self, triggers: Sequence[Trigger], caller: Caller | None) -> Iterator[bool | SuiteError]:
        """Compile and store triggers with unknown ids; the outcomes are in their order."""
        if not triggers:
            return iter(())
        context, quotas = self._context, self._context.quotas
        context.store.check_space()
        quotas.submit(caller, len(triggers), now_ns=context.clock.monotonic_ns())
        periods = await self.check(triggers, caller)
        outcomes: list[int | bool | SuiteError] = [*self._with_room(triggers, periods, caller)]
        compiled = [place for place, each in enumerate(outcomes) if not isinstance(each, SuiteError)]
        entries = [(triggers[place], cast(int, outcomes[place])) for place in compiled]
        now_ns, limit = context.clock.wall_ns(), quotas.trigger_limit(caller)
        try:
            stored = await context.store.write(store.register, entries, now_ns=now_ns, limit=limit) if entries else []
        except Exception:  # a call that is cancelled has stored them, or will have
            self._drop([trigger for trigger, _ in entries])
            raise
        self._drop([triggers[place] for place, (_, is_new) in zip(compiled, stored, strict=True) if not is_new])
        for place, (present, is_new) in zip(compiled, stored, strict=True):
            problem = quotas.too_many_triggers(caller) if present is None else _same(present, triggers[place])
            outcomes[place] = problem or is_new
        if new := [present for present, is_new in stored if present is not None and is_new]:
            self.notify(new)
        return iter(cast(list[bool | SuiteError], outcomes))

    def _with_room(
        self, triggers: Sequence[Trigger], periods: Sequence[int | SuiteError], caller: Caller | None
    ) -> Iterator[int | SuiteError]:
        """Count the bytes of the triggers that have a period; yield refusals for the triggers beyond a quota."""
        for trigger, period in zip(triggers, periods, strict=True):
            try:
                if not isinstance(period, SuiteError):
                    self._context.quotas.register_trigger(caller, trigger.client_id, rules.size_of(trigger))
            except SuiteError as error:
                yield error
            else:
                yield period

    def _drop(self, triggers: Iterable[Trigger]) -> None:
        for each in triggers:
            self._context.quotas.drop_trigger(each.client_id, rules.size_of(each))

    async def check(self, triggers: Sequence[Trigger], caller: Caller | None) -> list[int | SuiteError]:
        """Return the periods of triggers, or their refusals: from `TextChecks`, or for a period that is not built."""
        texts = [(each.sql, each.parameters) for each in triggers]
        return [*map(_built, await self._periods(texts, caller.client_id if caller else ""))]

    async def delete(self, trigger_id: str, caller: Caller | None = None) -> None:
        """Delete a trigger; on disk when this returns. NotFound unless the caller has such a trigger."""
        context = self._context
        context.store.check_space()
        await self._find(trigger_id, caller)
        deleted = await context.store.write(store.delete, trigger_id, now_ns=context.clock.wall_ns())
        if deleted is not None:
            self._drop([deleted.trigger])
        self.notify()

    async def _find(self, trigger_id: str, caller: Caller | None) -> RegisteredTrigger:
        known = await self._context.store.read(store.find, trigger_id)
        if known is None or not access.owns(caller, known.trigger.client_id):
            raise NotFound(f"trigger_id {trigger_id[:64]!r} is not known")
        return known

    async def find_live(self, trigger_id: str, caller: Caller | None) -> RegisteredTrigger:
        """Return a trigger of a caller that has not ended; NotFound or InvalidRequest as ``pause``."""
        known = await self._find(trigger_id, caller)
        if known.state in (TriggerState.SUSPENDED, TriggerState.ENDED):
            raise InvalidRequest(
                f"trigger_id {trigger_id!r} is {known.state.name}: {known.reason}; delete it and register it again"
            )
        return known

    async def pause(self, trigger_id: str, caller: Caller | None = None, *, paused: bool) -> None:
        """Pause or resume a trigger; on disk when this returns.

        Raises:
            NotFound: There is none, or it is another client's.
            InvalidRequest: It is suspended or has ended.
            Exhausted: The caller registers, edits, pauses and resumes too fast.
        """
        context = self._context
        context.store.check_space()
        context.quotas.submit(caller, now_ns=context.clock.monotonic_ns())
        await self.find_live(trigger_id, caller)
        await context.store.write(store.pause, trigger_id, paused=paused, now_ns=context.clock.wall_ns())
        context.signals.notify("triggers")

    async def listed(self, client_id: str, ticker: str, after: int, size: int) -> list[RegisteredTrigger]:
        """Return a page of triggers by registration, after one."""
        return await self._context.store.read(store.page, client_id, ticker, after, size)

    async def events(
        self, where: tuple[str, str], client_id: str | None, after: Cursor | None
    ) -> AsyncGenerator[StreamStart | store.StoredEvent, None]:
        """Yield where the stream starts, then events after a cursor, in order, without end.

        Args:
            where: As in ``events_after``, like ``client_id``.
        """
        context = self._context
        with context.signals.listen(":".join(where)) as event:
            start = await context.store.read(start_of, Log.TRIGGER_EVENTS, after)
            yield start
            last = start.cursor.sequence
            while True:
                found = await context.store.read(store.events_after, where, client_id, last, EVENTS_IN_A_READ)
                for each in found:
                    last = each.sequence
                    yield each
                if len(found) < EVENTS_IN_A_READ:
                    await context.signals.wait(event)

    async def follow(self, after: Cursor | None) -> AsyncGenerator[store.TriggerChanges, None]:
        """Yield the changes of triggers after a cursor, and none after ``FOLLOW_SECONDS`` without one, without end."""
        context = self._context
        with context.signals.listen("triggers") as event:
            while True:
                found = await context.store.read(store.changes_after, after, CHANGES_IN_A_READ)
                after = found.cursor
                yield found
                if len(found.changes) < CHANGES_IN_A_READ or found.start.is_reset:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(FOLLOW_SECONDS):
                            await context.signals.wait(event)

    async def report(self, events: Sequence[store.ReportedEvent], applied: Cursor | None) -> None:
        """Store events and a position that the pipeline has on disk; on disk here too when this returns."""
        context, now_ns = self._context, self._context.clock.wall_ns()
        reported = await context.store.write(store.report, events, applied, now_ns=now_ns)
        context.signals.notify(TAKEN)
        if reported.unknown:
            context.metrics.ignored.labels("trigger_event").inc(reported.unknown)
            log.error("events of unknown registrations ignored", events=reported.unknown)
        for trigger_id in {each.trigger_id for each in reported.new}:
            context.signals.notify(f"trigger_id:{trigger_id}")
        for callback_id in reported.callbacks:
            context.signals.notify(f"callback_id:{callback_id}")
        for each in reported.new:
            context.metrics.trigger_events.labels(each.event.kind.name).inc()
            if each.event.kind is EventKind.SUSPENDED:
                log.error("a trigger is suspended", trigger_id=each.trigger_id, reason=each.event.reason)
        if reported.alerts:
            self.alerts_wait.set()
        if any(each.event.reason for each in reported.new):
            self._changed.set()

    async def run(self) -> None:
        """Keep the subscriptions that bring the triggers' data, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            self._wanted = None
            wanted = rules.needed(await self._context.store.read(store.data_read))
            if not self._changed.is_set():
                self._wanted = wanted
            await self._subscribe(wanted)

    async def _subscribe(self, wanted: dict[str, RealtimeParams]) -> None:
        present = {
            each.subscription.ticker: (each.subscription.subscription_id, each.subscription.params)
            for each in self._realtime.registry.subscriptions.values()
            if each.subscription.subscription_id.startswith(SUBSCRIPTION_PREFIX)
        }
        starts, stops = rules.changes(wanted, present)
        for ticker, params in starts:
            await self._try(
                ticker,
                partial(self._realtime.start, Subscription(f"{SUBSCRIPTION_PREFIX}{token_hex(8)}", ticker, params)),
            )
        for name in stops:
            await self._try(name, partial(self._realtime.stop, name))

    async def _try(self, what: str, act: Callable[[], Awaitable[object]]) -> None:
        try:
            await act()
        except SuiteError as error:
            log.error("the data of triggers can't be subscribed to", what=what, error=str(error))
            self._wanted = None

    def notify(self, new: Sequence[RegisteredTrigger] = ()) -> None:
        """Wake the followers. Read all triggers again, unless some are new that need no more data."""
        self._context.signals.notify("triggers")
        if not new or self._wanted is None or not rules.covers(self._wanted, rules.needed(map(rules.DataRead.of, new))):
            self._changed.set()


def _same(known: RegisteredTrigger, given: Trigger) -> InvalidRequest | None:
    """Return the refusal of a trigger with an id that another one has."""
    if known.trigger == given:
        return None
    return InvalidRequest(
        f"trigger_id {given.trigger_id!r} is in use for another trigger; choose a new one, or delete that one"
    )


def _built(period: int | SuiteError) -> int | SuiteError:
    """Return a period that candles can have, or the refusal."""
    if isinstance(period, int) and realtime_dataset(period).has_periods:
        try:
            check_period(period)
        except SuiteError as error:
            return error
    return period
