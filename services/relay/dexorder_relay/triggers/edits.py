"""Edits of triggers: another text or other parameters under the same id, with the state, or explicitly without it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from dexorder_common.model.errors import InvalidRequest, SuiteError, Unavailable
from dexorder_common.model.triggers import RegisteredTrigger, Trigger, TriggerEdit
from dexorder_common.rpc.identity import Caller
from dexorder_relay.requests.context import Context
from dexorder_relay.state import triggers as rules
from dexorder_relay.store import triggers as store
from dexorder_relay.triggers.text_checks import Text
from dexorder_relay.triggers.triggers import TAKEN, RegisteredTriggers


class TriggerEdits:
    """Changes triggers that are registered.

    Args:
        differences: Returns the differences of two texts for which the state can't be kept; see `TextChecks`.
    """

    def __init__(
        self,
        context: Context,
        triggers: RegisteredTriggers,
        differences: Callable[[Text, Text, str], Awaitable[list[str]]],
    ) -> None:
        self._context = context
        self._triggers = triggers
        self._differences = differences

    async def edit(self, edit: TriggerEdit, caller: Caller | None = None) -> RegisteredTrigger:
        """Change a trigger; on disk when this returns. Return the changed trigger, or the same one after an empty edit.

        Raises:
            NotFound: The caller does not own such a trigger.
            InvalidRequest: It has ended; the text or a parameter is refused; or its state can't be kept.
            Exhausted: The caller registers or edits too fast, or has too many bytes of triggers; or the disk is full.
            Unavailable: Another call has changed it at the same time.
        """
        rules.check_edit(edit)
        known = await self._triggers.find_live(edit.trigger_id, caller)
        new = edit.of(known.trigger)
        if new == known.trigger and not edit.reset:
            return known
        context, quotas = self._context, self._context.quotas
        rules.check(new, context.venues)
        context.store.check_space()
        quotas.submit(caller, 1, now_ns=context.clock.monotonic_ns())
        period_seconds = await self._checked(known.trigger, new, caller, reset=edit.reset)
        more = rules.size_of(new) - rules.size_of(known.trigger)
        if more > 0:
            quotas.register_trigger(caller, new.client_id, more)
        try:
            edited = await context.store.write(
                store.edit, known, new, period_seconds, reset=edit.reset, now_ns=context.clock.wall_ns()
            )
        except Exception:  # a call that is cancelled has stored it, or will have
            self._drop(new, more)
            raise
        self._drop(new, more if edited is None else -more)
        if edited is None:
            raise Unavailable(f"trigger_id {edit.trigger_id[:64]!r} was changed by another call; try again")
        self._triggers.notify(() if edit.reset else [edited])
        return edited

    def _drop(self, trigger: Trigger, size: int) -> None:
        if size > 0:
            self._context.quotas.drop_trigger(trigger.client_id, size)

    async def _checked(self, old: Trigger, new: Trigger, caller: Caller | None, *, reset: bool) -> int:
        (period,) = await self._triggers.check([new], caller)
        if isinstance(period, InvalidRequest):
            raise InvalidRequest(f"sql_pattern: {period}")
        if isinstance(period, SuiteError):
            raise period
        if reset:
            return period
        texts = (old.sql, old.parameters), (new.sql, new.parameters)
        names = await self._differences(*texts, caller.client_id if caller else "")
        if names:
            raise InvalidRequest(
                f"trigger_id {new.trigger_id!r} can't keep its state, which depends on parts that the edit changes: "
                f"{', '.join(names)}; give reset to start without the state"
            )
        return period

    async def taken(self, registration: int, wait_ms: int) -> bool:
        """Return whether the pipeline has the last change of a trigger on its disk, or gets it within a time."""
        context = self._context
        with context.signals.listen(TAKEN) as event:
            if (taken := await context.store.read(store.is_taken, registration)) or not wait_ms:
                return taken
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_ms / 1_000):
                    while not await context.store.read(store.is_taken, registration):
                        await context.signals.wait(event)
                    return True
        return False
