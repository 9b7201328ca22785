"""Periodic checks of the relay: leases, requests without progress, requests that may end."""

from __future__ import annotations

import asyncio

from dexorder_common.model.times import SECOND_NS
from dexorder_relay.broker.dispatcher import JobDispatcher
from dexorder_relay.requests.completion import Completion
from dexorder_relay.requests.context import Context
from dexorder_relay.state import planner
from dexorder_relay.state.changes import Changes


class Upkeep:
    """Takes back dispatches with expired leases, continues to plan long requests, and ends requests."""

    def __init__(self, context: Context, dispatcher: JobDispatcher, completion: Completion) -> None:
        self._context = context
        self._dispatcher = dispatcher
        self._completion = completion

    async def run(self, tick_seconds: float) -> None:
        """Look every ``tick_seconds`` until cancelled; much more often than a lease is long."""
        context = self._context
        last_ns = context.clock.monotonic_ns()
        while True:
            await asyncio.sleep(tick_seconds)
            now_ns = context.clock.monotonic_ns()
            suspended = now_ns - last_ns > context.settings.lease_seconds * SECOND_NS / 2
            self._dispatcher.take_back_expired(now_ns=now_ns, suspended=suspended)
            last_ns = now_ns
            await self._plan_on()
            await self._completion.time_out(now_ns=now_ns)
            self._completion.check_ready()
            context.wake.set()  # a job's wait after a failure may be over

    async def _plan_on(self) -> None:
        context = self._context
        for live in [each for each in context.state.requests.values() if not each.is_planned]:
            changes = Changes()
            planner.plan_on(context.state, live, changes)
            if changes:
                await context.store.commit(changes)  # others are served before the next request's step
