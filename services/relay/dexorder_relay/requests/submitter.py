"""Submission of requests: each is checked, planned and on disk before its client is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from dexorder_common.model.errors import Exhausted, InvalidRequest
from dexorder_common.model.history import HistoryRequest
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_common.rpc.identity import Caller
from dexorder_common.rpc.streams import retrieved
from dexorder_relay.requests.completion import Completion
from dexorder_relay.requests.context import Context
from dexorder_relay.requests.retraction_log import RetractionLog
from dexorder_relay.requests.traces import submitted_in
from dexorder_relay.state import coverage, planner
from dexorder_relay.state.changes import Changes
from dexorder_relay.state.request import check, check_exchange


class Submitter:
    """The only part that accepts requests; each once, however often it is submitted at the same time."""

    def __init__(self, context: Context, completion: Completion, retraction_log: RetractionLog) -> None:
        self._context = context
        self._completion = completion
        self._retraction_log = retraction_log
        self._unsaved: dict[str, asyncio.Future[None]] = {}
        self._refetches: dict[str, asyncio.Future[None]] = {}

    async def submit(self, request: HistoryRequest, caller: Caller | None = None) -> bool:
        """Accept a request, which is on disk when this returns; return whether it is new.

        Raises:
            InvalidRequest: A field cannot be answered, or the id belongs to another request.
            Exhausted: A quota of the caller is used up, or the disk is full; the request is not stored.
            Unavailable: The store cannot be written; the caller may try again.
        """
        self._context.store.check_space()
        self._check(request, caller)
        return await self._submit(request, caller)

    async def submit_many(
        self, requests: Sequence[HistoryRequest], caller: Caller | None = None
    ) -> list[bool | InvalidRequest | Exhausted]:
        """Accept requests in one commit, each as ``submit``; return for each whether it is new, or why it is refused.

        A refused request does not stop the others.

        Raises:
            Exhausted: The disk is full; no request is stored.
            Unavailable: The store cannot be written; the caller may try again.
        """
        self._context.store.check_space()
        answers: dict[int, bool | InvalidRequest | Exhausted] = {}
        first, one_by_one = dict[str, int](), list[int]()
        for index, request in enumerate(requests):
            try:
                self._check(request, caller)
            except (InvalidRequest, Exhausted) as error:
                answers[index] = error
                continue
            if first.setdefault(request.request_id, index) != index:
                one_by_one.append(index)
        ended = {each.request_id: each.request for each in await self._context.store.records(first)}
        accepted = []
        for request_id, index in first.items():  # without an await until they are planned
            request = requests[index]
            try:
                if (known := ended.get(request_id)) is not None:
                    answers[index] = _is_new(request, known)
                elif self._completion.live(request_id) or request_id in self._refetches:
                    one_by_one.append(index)
                else:
                    self._enter([request], caller, again=False)
                    accepted.append(request)
                    answers[index] = True
            except (InvalidRequest, Exhausted) as error:
                answers[index] = error
        if accepted:
            await self._accept(accepted)
        for index in one_by_one:
            try:
                answers[index] = await self._submit(requests[index], caller)
            except (InvalidRequest, Exhausted) as error:
                answers[index] = error
        return [answers[index] for index in range(len(requests))]

    def _check(self, request: HistoryRequest, caller: Caller | None) -> None:
        """Count a submission and check its fields."""
        self._context.quotas.submit(caller, now_ns=self._context.clock.monotonic_ns())
        check(request, self._context.venues, self._context.settings.max_request_periods)

    async def submit_for_exchange(self, request: HistoryRequest, caller: Caller | None = None) -> bool:
        """Accept a request for a dataset that concerns a whole exchange, as ``submit``."""
        self._context.store.check_space()
        self._context.quotas.submit(caller, now_ns=self._context.clock.monotonic_ns())
        check_exchange(request, self._context.venues)
        return await self._submit(request, caller)

    async def _submit(self, request: HistoryRequest, caller: Caller | None) -> bool:
        request_id = request.request_id
        while (known := await self._known(request_id)) is None and request_id in self._refetches:
            await asyncio.wait([self._refetches[request_id]])
        if known is not None:
            return _is_new(request, known)
        self._enter([request], caller, again=request.refresh)
        await self._accept([request])
        return True

    async def fetch_again(self, requests: Sequence[HistoryRequest]) -> None:
        """Accept requests of the relay itself, with ``again`` and unique ids; on disk at the end.

        Coverage of their ranges stays in force until then. Unavailable if the store cannot be written.
        """
        self._enter(requests, None, again=True)
        await self._accept(requests)

    async def refetch(
        self,
        series: Series,
        spans: Sequence[TimeRange],
        reason: str,
        requests: Sequence[HistoryRequest],
        caller: Caller | None,
        retracted: Callable[[], Awaitable[None]],
    ) -> None:
        """Retract coverage of ranges with wrong claims, then accept checked requests that fetch them again.

        It runs in a task of the engine: it is complete when this returns, even if the caller is cancelled. No other
        caller can accept the ids until then.

        Args:
            requests: All of the series, with unique ids.
            retracted: Awaited when the retraction is on disk, before the requests are accepted. If it fails, they are
                not accepted: only coverage is retracted.

        Raises:
            Exhausted: A quota of the caller is used up; coverage is unchanged.
            InvalidRequest: A request exceeds a quota by itself; coverage is unchanged.
            Unavailable: A table or the store cannot be written now.
        """
        self._enter(requests, caller, again=True)
        request_ids = [each.request_id for each in requests]
        done = asyncio.get_running_loop().create_future()
        self._refetches.update(dict.fromkeys(request_ids, done))

        def ended(_: object) -> None:
            for request_id in request_ids:
                del self._refetches[request_id]

        done.add_done_callback(ended)
        done.add_done_callback(retrieved)  # even if the caller is gone

        async def run() -> None:
            try:
                await self._refetch(series, spans, reason, requests, retracted)
            except Exception as error:
                done.set_exception(error)
            except BaseException:
                done.cancel()
                raise
            else:
                done.set_result(None)

        self._context.start(run())  # calls are served only while the engine runs
        await asyncio.shield(done)

    async def _refetch(
        self,
        series: Series,
        spans: Sequence[TimeRange],
        reason: str,
        requests: Sequence[HistoryRequest],
        retracted: Callable[[], Awaitable[None]],
    ) -> None:
        context, changes = self._context, Changes()
        try:
            if spans:
                order = await self._retraction_log.record(series, spans, reason)
                coverage.retract(context.state, series, spans, order, changes)
                context.changed(r for r, live in context.state.requests.items() if live.request.series == series)
            planner.replan(context.state, series, spans, changes)  # other requests do not wait for these
            await context.store.commit(changes)
            context.wake.set()
            await retracted()
        except BaseException:
            for each in requests:
                context.quotas.leave(each)
            raise
        await self._accept(requests)

    def _enter(self, requests: Sequence[HistoryRequest], caller: Caller | None, *, again: bool) -> None:
        """Count requests in the quotas of the caller; all or none."""
        quotas, entered = self._context.quotas, list[HistoryRequest]()
        try:
            for request in requests:
                quotas.admit(caller, request)
                quotas.enter(request)
                entered.append(request)
            quotas.spend(caller, requests, again=again, now_ns=self._context.clock.monotonic_ns())
        except BaseException:
            for request in entered:
                quotas.leave(request)
            raise

    async def _accept(self, requests: Sequence[HistoryRequest]) -> None:
        """Plan requests; on disk when this returns."""
        context, changes = self._context, Changes()
        state, wall_ns, now_ns = context.state, context.clock.wall_ns(), context.clock.monotonic_ns()
        times_ns, trace = {"wall_ns": wall_ns, "now_ns": now_ns}, submitted_in()
        accepted = [planner.accept(state, each, changes, trace=trace, **times_ns) for each in requests]
        saved = context.store.commit(changes)
        for each in requests:
            self._unsaved[each.request_id] = saved
            saved.add_done_callback(partial(self._saved, each.request_id))
        await context.store.durable(saved)  # callers with the same id wait for it too
        context.wake.set()
        self._completion.check_ready(accepted)

    def _saved(self, request_id: str, _: object) -> None:
        del self._unsaved[request_id]

    async def _known(self, request_id: str) -> HistoryRequest | None:
        """Return a durable request; if None, no other can appear under the id before the caller's next await."""
        live = self._completion.live(request_id)
        if live is None:
            ended = await self._context.store.record(request_id)
            live = self._completion.live(request_id)  # another caller may have submitted it during the read
            if live is None:
                return ended.request if ended else None
        if (saved := self._unsaved.get(request_id)) is not None:
            await asyncio.shield(saved)
        return live.request


def _is_new(request: HistoryRequest, known: HistoryRequest) -> bool:
    """Return False for a request that is known; InvalidRequest if its id is another request's."""
    if known != request:
        raise InvalidRequest(f"request_id {request.request_id!r} was used for another request")
    return False
