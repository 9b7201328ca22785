"""The relay at work: joins the board's rules with the store, the broker and the table. Runs in one event loop.

Order of every change, so that a kill at any point loses nothing:
1. the board changes in memory, without an await in between;
2. the same change is given to the store, which keeps the order;
3. only when it is on disk is a caller answered, a dispatch sent, or an end announced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import structlog

from services.common.clock import Clock
from services.common.errors import InvalidRequest, Unavailable
from services.common.identity import Caller
from services.common.market import SECOND_NS, TimeRange
from services.relay import requests
from services.relay.access import Quotas
from services.relay.board import Board
from services.relay.config import RelaySettings
from services.relay.deciding import Decider
from services.relay.dispatch import Assign, Slot
from services.relay.jobs import LiveRequest
from services.relay.metrics import RelayMetrics, sample
from services.relay.model import (
    Dispatch,
    FinalResult,
    Outcome,
    PageResult,
    Record,
    Status,
    Submission,
)
from services.relay.notifications import Signals
from services.relay.retracting import Retractor
from services.relay.schema import Batch
from services.relay.store import FORGOTTEN_AT_ONCE, Store
from services.relay.views import Views

log = structlog.get_logger(__name__)
TICK_SECONDS = 0.25
RETRY_NS = 5 * SECOND_NS
FORGET_SECONDS = 3_600
MEASURE_SECONDS = 1.0


class Sender(Protocol):
    """How a dispatch reaches an ingestor."""

    async def send(self, identity: bytes, dispatch: Dispatch) -> bool:
        """False when the ingestor can't be reached."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A request that is on disk; ``duplicate`` when it had been there before."""

    topic: str
    duplicate: bool


class Engine:
    """What the RPCs and the broker's frames do."""

    def __init__(
        self,
        settings: RelaySettings,
        *,
        board: Board,
        store: Store,
        decider: Decider,
        retractor: Retractor,
        venues: Iterable[str],
        clock: Clock,
        metrics: RelayMetrics,
    ) -> None:
        self._settings, self._board, self._store, self._clock = settings, board, store, clock
        self._decider, self._retractor, self._metrics = decider, retractor, metrics
        self.venues = frozenset(venues)
        self.quotas = Quotas(settings.limits(), lambda client_id, quota: metrics.refused.labels(client_id, quota).inc())
        for live in board.requests.values():
            self.quotas.enter(live.submission)
        self._dispatcher = board.dispatcher
        self._signals = Signals()
        self.views = Views(board, store, self._signals, metrics)
        self._wake = asyncio.Event()
        self._reported_ns = clock.monotonic_ns()
        self._tasks: asyncio.TaskGroup | None = None
        self._ending: dict[str, LiveRequest] = {}
        self._unsaved: dict[str, asyncio.Future[None]] = {}
        self._under_way: dict[str, asyncio.Future[None]] = {}

    async def run(self, sender: Sender) -> None:
        """Dispatch, watch leases and timeouts, decide; until cancelled, or until the store fails."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._dispatch(sender))
            tasks.create_task(self._tick())
            tasks.create_task(self._forget())
            tasks.create_task(self._measure())
            tasks.create_task(self._fail_stop())
            self._consider()
            self._wake.set()

    def close_streams(self) -> None:
        """End progress and notification streams; they have no end of their own."""
        self._signals.close()

    # ---- clients ---------------------------------------------------------------------------------------------------

    async def submit(self, submission: Submission, caller: Caller | None = None) -> Accepted:
        """Accept a request; it is on disk when this returns.

        Raises:
            InvalidRequest: A field can't be answered, or the id belongs to another request.
            Exhausted: A quota of the caller; nothing is stored.
            Unavailable: The store, or for a refresh the table of retractions, can't be written; ask again.
        """
        self.quotas.submit(caller, now_ns=self._clock.monotonic_ns())
        requests.check(submission, self.venues, self._settings.max_request_periods)
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
        market = submissions[0].market
        try:
            retracted_ns = await self._retractor.record(market, spans, reason)
        except BaseException:
            for each in submissions:
                self.quotas.leave(each)
            raise
        batch = Batch()
        self._board.retract(market, spans, retracted_ns, batch)
        self._changed(r for r, live in self._board.requests.items() if live.submission.market == market)
        await self._accept(submissions, batch, spans)

    def _enter(self, submissions: Sequence[Submission], caller: Caller | None) -> None:
        for number, submission in enumerate(submissions):
            try:
                self.quotas.admit(caller, submission)
            except BaseException:
                for entered in submissions[:number]:
                    self.quotas.leave(entered)
                raise
            self.quotas.enter(submission)

    async def _accept(self, submissions: Sequence[Submission], batch: Batch, taken: Sequence[TimeRange] = ()) -> None:
        """Plan them, and what was taken back for others; on disk when it returns."""
        wall_ns, now_ns = self._clock.wall_ns(), self._clock.monotonic_ns()
        lives = [self._board.accept(each, batch, wall_ns=wall_ns, now_ns=now_ns) for each in submissions]
        self._board.replan(submissions[0].market, taken, batch)
        saved = self._store.commit(batch)
        for each in submissions:
            self._unsaved[each.request_id] = saved
            saved.add_done_callback(partial(self._saved, each.request_id))
        await asyncio.shield(saved)  # others wait for it too
        self._wake.set()
        self._consider(lives)

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

        assert self._tasks is not None  # calls are served only while it runs
        self._tasks.create_task(carry())
        await asyncio.shield(done)

    async def _known(self, request_id: str) -> Submission | None:
        """A request with this id, durable; none may come into being between this answer and the caller's next step."""
        live = self._live(request_id)
        if live is None:
            ended = await self._store.record(request_id)
            live = self._live(request_id)  # another caller may have submitted it meanwhile
            if live is None:
                return ended.submission if ended else None
        if (saved := self._unsaved.get(request_id)) is not None:
            await asyncio.shield(saved)
        return live.submission

    def _live(self, request_id: str) -> LiveRequest | None:
        return self._board.requests.get(request_id) or self._ending.get(request_id)

    async def cancel(self, request_id: str) -> Record:
        """End a request; one that has ended keeps its status.

        Raises:
            NotFound: Never accepted, or forgotten.
        """
        live = self._board.requests.get(request_id)
        if live is not None:
            await self._cut_short(live, Status.ERROR, requests.CANCELLED)
        return await self.views.record(request_id)

    # ---- ingestors and the pipeline --------------------------------------------------------------------------------

    async def report_page(self, job_id: str, span: TimeRange, empty: Sequence[TimeRange]) -> bool:
        """A page that Kafka has acknowledged; whether the dispatch is current."""
        batch = Batch()
        job = self._board.page(job_id, span, empty, batch, now_ns=self._clock.monotonic_ns())
        if job is None:
            return False
        self._changed(job.requests)
        await self._store.commit(batch)
        return True

    async def report_jobs(
        self, snapshot_id: int | None, pages: Sequence[PageResult], finals: Sequence[FinalResult]
    ) -> None:
        """What the pipeline committed; on disk when this returns. Ends that follow from it come a moment later."""
        batch = Batch()
        self._reported_ns = self._clock.monotonic_ns()
        self._board.report(snapshot_id, pages, finals, batch, now_ns=self._reported_ns)
        markets = {page.market for page in pages}
        self._changed(r for r, live in self._board.requests.items() if finals or live.submission.market in markets)
        await self._store.commit(batch)
        self._wake.set()  # a final may have left a further range of its job to fetch
        self._consider()

    # ---- the broker's frames ---------------------------------------------------------------------------------------

    def ready(self, slot: Slot) -> bool:
        """One more slot; False when this ingestor has offered too many."""
        kept = self._dispatcher.offer(slot)
        self._wake.set()
        return kept

    def heartbeat(self, job_id: str, identity: bytes) -> bool:
        """A sign of life of a running job; whether it is current."""
        return self._dispatcher.renew(job_id, now_ns=self._clock.monotonic_ns(), identity=identity)

    def complete(self, job_id: str) -> bool:
        """Kafka has the job's final record; whether the dispatch is current."""
        batch = Batch()
        current = self._board.produced(job_id, batch)
        self._store.commit(batch)
        return current

    def give_back(self, job_id: str, reason: str, *, kind: str, rejected_by: bytes | None = None) -> bool:
        """An ingestor can't take a job (``rejected_by``) or can't go on with it; whether the dispatch is current."""
        return self._lose(job_id, reason, kind, rejected_by)

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _lose(self, job_id: str, reason: str, kind: str, rejected_by: bytes | None = None) -> bool:
        batch = Batch()
        lost = self._board.lose(job_id, reason, batch, now_ns=self._clock.monotonic_ns(), rejected_by=rejected_by)
        if lost is None:
            return False
        log.warning("dispatch lost", job_id=job_id, reason=reason, brought=lost.brought, given_up=lost.dead)
        exchange = lost.job.market.exchange
        self._metrics.requeues.labels(exchange, kind).inc()
        self._metrics.fruitless.labels(exchange).inc(not lost.brought)
        self._metrics.given_up.labels(exchange).inc(lost.dead)
        self._changed(lost.job.requests)
        self._store.commit(batch)
        self._wake.set()
        self._consider()
        return True

    async def _dispatch(self, sender: Sender) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch = Batch()
            made = self._board.assign(batch, now_ns=self._clock.monotonic_ns())
            if made:
                await self._store.commit(batch)
                for assign, dispatch in made:
                    await self._send(sender, assign, dispatch)

    async def _send(self, sender: Sender, assign: Assign, dispatch: Dispatch) -> None:
        if self._dispatcher.job_of(assign.job_id) is None:  # cancelled while it went to disk: the slot is still free
            self._dispatcher.offer(assign.slot)
            self._wake.set()
        elif await sender.send(assign.slot.identity, dispatch):
            self._metrics.dispatches.labels(assign.slot.exchange).inc()
            self._dispatcher.renew(assign.job_id, now_ns=self._clock.monotonic_ns())
            self._changed(self._board.jobs[assign.job].requests if assign.job in self._board.jobs else ())
        else:
            log.warning("ingestor is gone", slots=self._dispatcher.drop(assign.slot.identity))
            self._metrics.requeues.labels(assign.slot.exchange, "unreachable").inc()
            batch = Batch()
            self._board.unsent(assign, batch)
            self._store.commit(batch)
            self._wake.set()

    async def _tick(self) -> None:
        last_ns = self._clock.monotonic_ns()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now_ns = self._clock.monotonic_ns()
            if now_ns - last_ns > self._settings.lease_seconds * SECOND_NS / 2:
                self._dispatcher.renew_all(now_ns=now_ns)  # this process slept; heartbeats wait in the socket
            last_ns = now_ns
            for job_id in self._dispatcher.expired(now_ns=now_ns):
                self._lose(job_id, "its lease ran out", "lease")
            timeout_ns = int(self._settings.request_timeout_seconds * SECOND_NS)
            for request in list(self._board.timed_out(timeout_ns, now_ns=now_ns)):
                seconds = self._settings.request_timeout_seconds
                await self._cut_short(request, Status.TIMEOUT, f"no progress for {seconds:g} s")
            self._consider()
            self._wake.set()  # a job's wait after a failure may be over

    async def _measure(self) -> None:
        while True:
            age_ns = self._clock.monotonic_ns() - self._reported_ns
            self._metrics.sample(sample(self._board, wall_ns=self._clock.wall_ns(), report_age_ns=age_ns))
            await asyncio.sleep(MEASURE_SECONDS)

    async def _forget(self) -> None:
        """Forget what has ended long ago; piece by piece, so that nobody waits behind the whole of it."""
        while True:
            before_ns = self._clock.wall_ns() - int(self._settings.retention_days * 86_400 * SECOND_NS)
            while await self._store.forget(before_ns) == FORGOTTEN_AT_ONCE:
                pass
            await asyncio.sleep(FORGET_SECONDS)

    async def _fail_stop(self) -> None:
        try:
            await asyncio.shield(self._store.failed)
        except Exception as error:
            log.error("the database can't be written; the relay ends, nothing answered is lost", error=str(error))
            raise

    def _consider(self, of: Iterable[LiveRequest] | None = None) -> None:
        """Start to decide those requests, or all, whose jobs are all over."""
        now_ns = self._clock.monotonic_ns()
        for request in list(self._board.requests.values() if of is None else of):
            idle = not request.deciding and not request.ending and now_ns >= request.retry_ns
            if self._tasks is not None and idle and self._board.ready(request):
                request.deciding = True
                self._tasks.create_task(self._decide(request))

    async def _decide(self, request: LiveRequest) -> None:
        """Count, then end the request or plan its next wave."""
        try:
            batch = Batch()
            outcome = await self._decider.decide(request, batch)
            if outcome is None or request.ending:
                await self._store.commit(batch)
                self._wake.set()
            else:
                await self._finish(request, outcome, batch)
        except Unavailable as error:  # counting goes on at the next round, until the request times out
            log.warning("rows can't be counted", request_id=request.submission.request_id, error=str(error))
            request.retry_ns = self._clock.monotonic_ns() + RETRY_NS
        finally:
            request.deciding = False
        if not request.ending:
            self._consider([request])  # its next wave may be covered already

    async def _cut_short(self, request: LiveRequest, status: Status, error: str) -> None:
        if request.ending:
            await self._store.commit(Batch())  # its end is on its way to disk
            return
        end_ns = request.submission.end_ns if request.submission.limit is None else request.planned_end_ns
        missing = self._board.missing(request, end_ns)
        if status is Status.TIMEOUT and missing:
            error = "; ".join([error, requests.describe_missing(missing)])
        now_ns = self._clock.wall_ns()
        outcome = requests.cut_short(status, error, end_ns=end_ns, missing=missing, completed_ns=now_ns)
        await self._finish(request, outcome, Batch())

    async def _finish(self, request: LiveRequest, outcome: Outcome, batch: Batch) -> None:
        request.ending = True
        submission = request.submission
        batch.finish(submission, outcome, self._board.progress(request, outcome.end_ns))
        self._board.leave(request, batch)
        self.quotas.leave(submission)
        self._ending[submission.request_id] = request  # off the board and not on disk yet
        await self._store.commit(batch)
        del self._ending[submission.request_id]
        self._metrics.finished.labels(outcome.status.name).inc()
        log.info(
            "request ended", request_id=submission.request_id, status=outcome.status.name, rows=outcome.row_count
        )  # fmt: skip
        self._changed([submission.request_id])
        for topic in submission.topics:
            self._signals.notify(f"topic:{topic}")

    def _changed(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._signals.notify(f"request:{request_id}")
