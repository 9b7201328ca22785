"""Requests taken on: each checked, planned and on disk before its client is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from services.common.model.errors import InvalidRequest
from services.common.model.history import Submission
from services.common.model.time_range import TimeRange
from services.common.rpc.identity import Caller
from services.relay.history import coverage, planner, request
from services.relay.history.completion import Completion
from services.relay.history.context import Context
from services.relay.history.retraction_log import RetractionLog
from services.relay.store.schema import Batch


@dataclass(frozen=True, slots=True)
class Accepted:
    """A request that is on disk; ``duplicate`` when it had been there before."""

    topic: str
    duplicate: bool


class Submitter:
    """The only one who accepts requests; none twice, however often it is submitted at once."""

    def __init__(
        self, context: Context, completion: Completion, retraction_log: RetractionLog, venues: frozenset[str]
    ) -> None:
        self._context = context
        self._completion = completion
        self._retraction_log = retraction_log
        self._venues = venues
        self._unsaved: dict[str, asyncio.Future[None]] = {}
        self._under_way: dict[str, asyncio.Future[None]] = {}

    async def submit(self, submission: Submission, caller: Caller | None = None) -> Accepted:
        """Accept a request; it is on disk when this returns.

        Raises:
            InvalidRequest: A field can't be answered, or the id belongs to another request.
            Exhausted: A quota of the caller; nothing is stored.
            Unavailable: The store, or for a refresh the table of retractions, can't be written; ask again.
        """
        self._context.quotas.submit(caller, now_ns=self._context.clock.monotonic_ns())
        request.check(submission, self._venues, self._context.settings.max_request_periods)
        request_id = submission.request_id
        while (known := await self._known(request_id)) is None and request_id in self._under_way:
            await asyncio.wait([self._under_way[request_id]])
        if known is not None:
            if known != submission:
                raise InvalidRequest(f"request_id {request_id!r} was used for another request")
            return Accepted(submission.topics[-1], duplicate=True)
        if submission.refresh:
            await self.refetch([submission.span], f"request {request_id} fetches it anew", [submission], caller)
            return Accepted(submission.topics[-1], duplicate=False)
        self._enter([submission], caller)
        await self._accept([submission], Batch())
        return Accepted(submission.topics[-1], duplicate=False)

    async def refetch(
        self, spans: Sequence[TimeRange], reason: str, submissions: Sequence[Submission], caller: Caller | None
    ) -> None:
        """Take coverage of ranges back and accept checked requests that fetch them anew; all of it, or nothing.

        Done when this returns, and carried through even if the caller goes meanwhile.

        Args:
            spans: Of the requests' market.
            submissions: At least one, all of one market, under ids that nobody else uses.

        Raises:
            Exhausted, InvalidRequest: A quota of the caller; nothing has changed.
            Unavailable: A table or the store can't be written now.
        """
        self._enter(submissions, caller)
        work = self._refetch(spans, reason, submissions)
        await self._in_full(work, [each.request_id for each in submissions])

    async def _refetch(self, spans: Sequence[TimeRange], reason: str, submissions: Sequence[Submission]) -> None:
        series = submissions[0].series
        try:
            retracted_ns = await self._retraction_log.record(series, spans, reason)
        except BaseException:
            for each in submissions:
                self._context.quotas.leave(each)
            raise
        context, batch = self._context, Batch()
        coverage.retract(context.state, series, spans, retracted_ns, batch)
        context.changed(r for r, live in context.state.requests.items() if live.submission.series == series)
        await self._accept(submissions, batch, spans)

    def _enter(self, submissions: Sequence[Submission], caller: Caller | None) -> None:
        for number, submission in enumerate(submissions):
            try:
                self._context.quotas.admit(caller, submission)
            except BaseException:
                for entered in submissions[:number]:
                    self._context.quotas.leave(entered)
                raise
            self._context.quotas.enter(submission)

    async def _accept(self, submissions: Sequence[Submission], batch: Batch, taken: Sequence[TimeRange] = ()) -> None:
        """Plan them, and what was taken back for others; on disk when it returns."""
        state, wall_ns, now_ns = self._context.state, self._context.clock.wall_ns(), self._context.clock.monotonic_ns()
        lives = [planner.accept(state, each, batch, wall_ns=wall_ns, now_ns=now_ns) for each in submissions]
        planner.replan(state, submissions[0].series, taken, batch)
        saved = self._context.store.commit(batch)
        for each in submissions:
            self._unsaved[each.request_id] = saved
            saved.add_done_callback(partial(self._saved, each.request_id))
        await asyncio.shield(saved)  # others wait for it too
        self._context.wake.set()
        self._completion.consider(lives)

    def _saved(self, request_id: str, _: object) -> None:
        del self._unsaved[request_id]

    async def _in_full(self, work: Coroutine[Any, Any, None], request_ids: Sequence[str]) -> None:
        """Carry it through in a task of the engine's, whatever becomes of the caller, who gets what it raises.

        Args:
            request_ids: Of requests that it accepts; nobody else may meanwhile.
        """
        done = asyncio.get_running_loop().create_future()
        self._under_way.update(dict.fromkeys(request_ids, done))

        def ended(_: object) -> None:
            for request_id in request_ids:
                del self._under_way[request_id]
            done.cancelled() or done.exception()  # seen, though the caller be gone

        done.add_done_callback(ended)

        async def carry() -> None:
            try:
                await work
            except Exception as error:
                done.set_exception(error)
            except BaseException:
                done.cancel()
                raise
            else:
                done.set_result(None)

        self._context.start(carry())  # calls are served only while it runs
        await asyncio.shield(done)

    async def _known(self, request_id: str) -> Submission | None:
        """A request with this id, durable; none may come into being between this answer and the caller's next step."""
        live = self._completion.live(request_id)
        if live is None:
            ended = await self._context.store.record(request_id)
            live = self._completion.live(request_id)  # another caller may have submitted it meanwhile
            if live is None:
                return ended.submission if ended else None
        if (saved := self._unsaved.get(request_id)) is not None:
            await asyncio.shield(saved)
        return live.submission
