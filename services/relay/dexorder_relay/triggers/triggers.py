"""Triggers: registered by clients, evaluated by the pipeline, followed through its reports.

The database is their only state. Signals wake those who wait for a change or an event; they read on from their cursor.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from secrets import token_hex

import structlog

from dexorder_common.model.cursor import Cursor, StreamStart
from dexorder_common.model.datasets import realtime_dataset
from dexorder_common.model.errors import InvalidRequest, NotFound, SuiteError
from dexorder_common.model.periods import check_period
from dexorder_common.model.realtime import RealtimeParams, Subscription
from dexorder_common.model.triggers import EventKind, RegisteredTrigger, Trigger
from dexorder_common.rpc.identity import Caller
from dexorder_relay import access
from dexorder_relay.access import check_user
from dexorder_relay.realtime.jobs import RealtimeJobs
from dexorder_relay.requests.context import Context
from dexorder_relay.state import triggers as rules
from dexorder_relay.store import triggers as store
from dexorder_relay.store.logs import Log, start_of

log = structlog.get_logger(__name__)
EVENTS_IN_A_READ = 500
CHANGES_IN_A_READ = 500
FOLLOW_SECONDS = 10.0
"""Time without a change after which a follower gets an answer without one, so that both ends see a broken stream."""
SUBSCRIPTION_PREFIX = "trigger:"
"""Begins the ids of the subscriptions that bring the data of triggers. Clients may not use it."""


class RegisteredTriggers:
    """The only part that changes triggers.

    Args:
        period_seconds: Checks a text and its parameters; see `TextChecks`.
    """

    def __init__(
        self,
        context: Context,
        realtime: RealtimeJobs,
        period_seconds: Callable[[str, Mapping[str, str]], Awaitable[int]],
    ) -> None:
        self._context = context
        self._period_seconds = period_seconds
        self._realtime = realtime
        self._changed = asyncio.Event()
        self._changed.set()
        self.alerts_wait = asyncio.Event()
        self.alerts_wait.set()

    async def register(self, trigger: Trigger, caller: Caller | None = None) -> bool:
        """Accept a trigger, which is on disk when this returns; return whether it is new.

        Raises:
            InvalidSql: The text is refused.
            InvalidRequest: Another field is invalid, or the id is in use for another trigger.
            Exhausted: The caller has too many triggers, or registers too fast.
            NotAllowed: The caller may not send to the user of the alert.
        """
        context, quotas = self._context, self._context.quotas
        rules.check(trigger, context.venues)
        if trigger.alert is not None:
            check_user(caller, "alert.user_id", trigger.alert.user_id)
        known = await context.store.read(store.find, trigger.trigger_id)
        is_new = False
        if known is None:
            context.store.check_space()
            quotas.submit(caller, now_ns=context.clock.monotonic_ns())
            period_seconds = await self.check(trigger)
            now_ns, limit = context.clock.wall_ns(), quotas.trigger_limit(caller)
            known, is_new = await context.store.write(
                store.register, trigger, period_seconds, now_ns=now_ns, limit=limit
            )
        if known is None:
            raise quotas.too_many_triggers(caller)
        if known.trigger != trigger:
            raise InvalidRequest(
                f"trigger_id {trigger.trigger_id!r} is in use for another trigger; choose a new one, or delete that one"
            )
        if is_new:
            self._notify()
        return is_new

    async def check(self, trigger: Trigger) -> int:
        """Return the period of a text that compiles; InvalidSql, or InvalidRequest for a period that nobody builds."""
        period_seconds = await self._period_seconds(trigger.sql, trigger.parameters)
        if realtime_dataset(period_seconds).has_periods:
            check_period(period_seconds)
        return period_seconds

    async def delete(self, trigger_id: str, caller: Caller | None = None) -> None:
        """Delete a trigger; on disk when this returns. NotFound if there is none, or it is another client's."""
        context = self._context
        known = await context.store.read(store.find, trigger_id)
        if known is None or not access.owns(caller, known.trigger.client_id):
            raise NotFound(f"trigger_id {trigger_id[:64]!r} is not known")
        await context.store.write(store.delete, trigger_id, now_ns=context.clock.wall_ns())
        self._notify()

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
        """Store what the pipeline has on disk; on disk here too when this returns."""
        context, now_ns = self._context, self._context.clock.wall_ns()
        reported = await context.store.write(store.report, events, applied, now_ns=now_ns)
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
            await self._subscribe(rules.needed(await self._context.store.read(store.live)))

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

    def _notify(self) -> None:
        self._context.signals.notify("triggers")
        self._changed.set()
