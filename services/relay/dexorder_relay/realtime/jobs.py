"""Subscriptions and realtime jobs: accepted from clients, dispatched to ingestors, followed by their reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from secrets import token_hex

import structlog

from dexorder_common.model.datasets import TRADES
from dexorder_common.model.errors import InvalidRequest, NotFound, Unavailable
from dexorder_common.model.history import PageResult
from dexorder_common.model.instrument import Series
from dexorder_common.model.realtime import (
    RealtimeDispatch,
    RealtimeJobRecord,
    RealtimeReport,
    RealtimeState,
    RealtimeStatus,
    Resumption,
    StartedSubscription,
    Subscription,
)
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_common.rpc.identity import Caller
from dexorder_relay import access
from dexorder_relay.realtime.live import LiveHub
from dexorder_relay.requests.context import Context
from dexorder_relay.requests.submitter import Submitter
from dexorder_relay.state import realtime as rules
from dexorder_relay.state import request as history_request
from dexorder_relay.state.changes import Changes, HistoryPartSubmitted, KnowledgeChanged
from dexorder_relay.state.leases import Assignment, Loss
from dexorder_relay.state.realtime_job import HistoryPart, RealtimeJob, Registry
from dexorder_relay.store import loading as store

log = structlog.get_logger(__name__)
FLUSH_SECONDS = 2.0
CLOSED_NS = 5 * SECOND_NS
"""Time after the end of a candle before it is requested as history."""
REPEAT_NS, RECENT_NS = 60 * SECOND_NS, 1_800 * SECOND_NS
"""Time after which candles that a request could not settle are requested again, and their age up to which they are."""


def new_request_id() -> str:
    """Return the id of a request for history that belongs to a subscription."""
    return f"realtime-{token_hex(8)}"


class RealtimeJobs:
    """The only part that changes subscriptions and realtime jobs; a `JobOwner`."""

    def __init__(self, context: Context, registry: Registry, submitter: Submitter, live: LiveHub) -> None:
        self._context = context
        self.registry = registry
        self._submitter = submitter
        self._live = live
        self._stops: list[tuple[bytes, str]] = []
        self._submitted: dict[str, HistoryPart] | None = None
        self._not_before_ns: dict[str, int] = {}

    async def start(self, wanted: Subscription, caller: Caller | None = None) -> bool:
        """Accept a subscription, which is on disk when this returns; return whether it is new.

        The first ``since_ns`` stays if the same subscription is started again with a later one.

        Raises:
            InvalidRequest: A field cannot be served, or the id was used before for another or a stopped subscription.
            Exhausted: The caller has too many subscriptions, or asks for more history than its quotas allow.
        """
        context, registry = self._context, self.registry
        rules.check_subscription(wanted, self._context.venues, wall_ns=context.clock.wall_ns())
        subscription_id = wanted.subscription_id
        if (known := registry.subscriptions.get(subscription_id)) is None:
            found = await context.store.read(store.find_subscription, subscription_id)
            known = registry.subscriptions.get(subscription_id)  # another caller may have started it during the read
            if known is None and found is not None:
                use = "stopped" if found[0].subscription.serves(wanted) else "used for another subscription"
                raise InvalidRequest(f"subscription_id {subscription_id!r} was {use}; choose a new one")
        if known is not None:
            if not known.subscription.serves(wanted):
                raise InvalidRequest(f"subscription_id {subscription_id!r} was used for another subscription")
            await context.store.commit(())  # the first one, given before, is on disk then
            return False
        context.store.check_space()
        context.quotas.submit(caller, now_ns=context.clock.monotonic_ns())
        context.quotas.subscribe(caller, self._owned(wanted.client_id))
        started = StartedSubscription(wanted, context.clock.wall_ns(), registry.last_sequence + 1)
        self._count_history(started, caller)
        changes = Changes()
        job = rules.start(registry, started, context.state.new_job_id, changes)
        await context.store.commit(changes)
        self._follow(job)
        await self._submit_history()
        return True

    def _owned(self, client_id: str) -> int:
        return sum(each.subscription.client_id == client_id for each in self.registry.subscriptions.values())

    def _count_history(self, started: StartedSubscription, caller: Caller | None) -> None:
        """Check the history that a subscription brings, and count it as if the caller had requested it."""
        context, wanted, requests = self._context, started.subscription, []
        for period in wanted.params.periods:
            span = rules.history_span(started, period)
            if span:
                part = HistoryPart("-", "-", wanted.ticker, period, span, "-")
                history_request.check(part.request, context.venues, context.settings.max_request_periods)
                context.quotas.admit(caller, part.request)
                requests.append(part.request)
        context.quotas.spend(caller, requests, again=False, now_ns=context.clock.monotonic_ns())

    async def stop(self, subscription_id: str, caller: Caller | None = None) -> None:
        """Stop a subscription; on disk when this returns. NotFound if it was never accepted, or is another client's."""
        context, registry = self._context, self.registry
        context.store.check_space()
        known = registry.subscriptions.get(subscription_id)
        if known is None:
            found = await context.store.read(store.find_subscription, subscription_id)
            known = registry.subscriptions.get(subscription_id) or (found[0] if found else None)
        if known is None or not access.owns(caller, known.subscription.client_id):
            raise NotFound(f"subscription_id {subscription_id[:64]!r} is not known")
        changes = Changes()
        if subscription_id in registry.subscriptions:
            job = rules.stop(registry, subscription_id, changes, wall_ns=context.clock.wall_ns())
            self._follow(job)
        await context.store.commit(changes)  # even if another caller has stopped it: its change is on disk then

    def listed(
        self, client_id: str, ticker: str, after: int, size: int
    ) -> tuple[list[StartedSubscription], list[RealtimeJobRecord]]:
        """Return a page of subscriptions by sequence, after one, and the jobs that serve them."""
        found = [
            each
            for each in self.registry.subscriptions.values()
            if each.sequence > after
            and (not client_id or each.subscription.client_id == client_id)
            and (not ticker or each.subscription.ticker == ticker)
        ][:size]
        tickers = dict.fromkeys(each.subscription.ticker for each in found)
        return found, [job.record() for ticker in tickers if (job := self.registry.job_for(ticker))]

    async def history_ids(self, found: Sequence[StartedSubscription], limit: int) -> dict[str, list[str]]:
        """Return the latest requests for history of each subscription."""
        ids = [each.subscription.subscription_id for each in found]
        return await self._context.store.read(store.read_history_ids, ids, limit)

    def resume(self, dispatch_id: str, ingestor: str, exchange_ns: int | None) -> Resumption | None:
        """Return where a dispatch starts, and renew its lease; None if it is not current.

        Args:
            exchange_ns: The exchange's time, where the ingestor knows it.
        """
        job = self.registry.current_job(dispatch_id)
        if job is None:
            return None
        if job.must_stop:  # it has not started and ends at once
            changes = Changes()
            self.lose(dispatch_id, "it was stopped", changes)
            self._context.store.commit(changes)
            self._context.wake.set()
            return None
        if exchange_ns is not None and job.begin_by(exchange_ns):
            self.registry.dirty.add(job.id)
        job.ingestor = ingestor
        self.registry.leases.renew(dispatch_id, now_ns=self._context.clock.monotonic_ns())
        return job.resumption()

    async def report(self, reports: Iterable[RealtimeReport], statuses: Iterable[RealtimeStatus] = ()) -> list[str]:
        """Settle records that Kafka has acknowledged, and renew leases; return the ids that are not current.

        Positions of candles and the jobs' knowledge are on disk when this returns, positions of trades within
        ``FLUSH_SECONDS``.
        """
        context, changes, fenced = self._context, Changes(), dict[str, None]()
        now_ns, wall_ns = context.clock.monotonic_ns(), context.clock.wall_ns()
        for each in reports:
            job, period = self.registry.current_job(each.dispatch_id), each.series.period_seconds
            if job is None or job.ticker != each.series.ticker:
                fenced[each.dispatch_id] = None
                continue
            self.registry.leases.page(each.dispatch_id, now_ns=now_ns)
            rules.settle(
                self.registry,
                job,
                period,
                each.span,
                changes,
                current=True,
                last_trade_id=each.last_trade_id,
                compared_ns=each.compared_ns,
            )
            if (position := job.positions.get(period)) is not None:
                position.count += each.count
                position.reported_ns, position.lag_ns = wall_ns, each.lag_ns
            context.metrics.realtime_settled.labels(job.exchange, each.series.dataset.name).inc(each.count)
        seen = [job for status in statuses if (job := rules.learn(self.registry, status, changes)) is not None]
        if changes:
            await context.store.commit(changes)
        for job in seen:
            self._live.changed(job.ticker)
        return list(fenced)

    async def landed(self, pages: Iterable[PageResult]) -> None:
        """Settle records that the pipeline has committed, for workers that know only the frames and do not report.

        Candles that the pipeline refused are fetched as history. On disk when this returns.
        """
        changes, ended = Changes(), set[str]()
        for page in sorted(pages, key=lambda each: each.span):
            job = self.registry.job_for(page.series.ticker)
            if job is None:
                continue
            period, current = page.series.period_seconds, job.dispatch_id == page.dispatch_id
            if page.refused is None:
                rules.settle(self.registry, job, period, page.span, changes, current=current)
                if page.series.dataset is TRADES and job.landed(page.span):
                    changes.append(KnowledgeChanged(job.id, job.knowledge))
                    ended.add(job.ticker)
            elif self._context.state.job_of(page.dispatch_id) is None:
                log.error("realtime record refused", ticker=job.ticker, period_seconds=period, reason=page.refused)
                if page.series.dataset.has_periods and period in job.positions:
                    rules.refetch(self.registry, job, period, page.span, changes)
        if changes:
            await self._context.store.commit(changes)
        for ticker in ended:
            self._live.changed(ticker)

    def owns(self, job: int) -> bool:
        """Return whether this is a realtime job."""
        return job in self.registry.jobs

    def assign(self, assignment: Assignment, changes: Changes) -> RealtimeDispatch:
        """Start a dispatch."""
        return rules.assign(self.registry, assignment, changes, wall_ns=self._context.clock.wall_ns())

    def sent(self, assignment: Assignment) -> None:
        """Notify the watching clients; stop the ingestor if the job has changed since it was assigned."""
        self._follow(self.registry.jobs[assignment.job])

    def unsent(self, assignment: Assignment, changes: Changes) -> None:
        """Queue the job again."""
        rules.unsent(self.registry, assignment, changes, wall_ns=self._context.clock.wall_ns())

    def complete(self, dispatch_id: str, changes: Changes) -> None:
        """End a dispatch that the relay has stopped; any other dispatch should not have ended."""
        self._end(dispatch_id, "the ingestor ended it", changes)

    def lose(self, dispatch_id: str, reason: str, changes: Changes, *, rejected_by: bytes | None = None) -> Loss:
        """Take back a dispatch."""
        self.registry.fence(dispatch_id)
        job = self._end(dispatch_id, reason, changes, rejected_by)
        return Loss(job.exchange, not job.failures_in_a_row)

    def _end(self, dispatch_id: str, reason: str, changes: Changes, rejected_by: bytes | None = None) -> RealtimeJob:
        context = self._context
        job = rules.end(
            self.registry,
            dispatch_id,
            reason,
            context.state.retry_policy,
            changes,
            wall_ns=context.clock.wall_ns(),
            now_ns=context.clock.monotonic_ns(),
            rejected_by=rejected_by,
        )
        self._live.changed(job.ticker)
        return job

    def heard(self, dispatch_id: str, identity: bytes) -> None:
        """Note who has a dispatch, and tell it to stop one that is fenced or not wanted any more."""
        job = self.registry.current_job(dispatch_id)
        if job is not None:
            if job.identity is None:
                self._live.changed(job.ticker)
            job.identity = identity
            self._follow(job)
        elif self.registry.is_fenced(dispatch_id):
            self._stops.append((identity, dispatch_id))

    def take_stops(self) -> list[tuple[bytes, str]]:
        """Return the dispatches to stop, with the sockets of their ingestors; each is returned once."""
        stops, self._stops = self._stops, []
        return stops

    def ended(self) -> None:
        """Do nothing: the job is queued again or gone."""

    def _follow(self, job: RealtimeJob) -> None:
        if job.must_stop and job.identity is not None and job.dispatch_id is not None:
            job.told_to_stop = True
            self._stops.append((job.identity, job.dispatch_id))
        self._live.changed(job.ticker)
        self._context.wake.set()

    def live_ticker(self, dispatch_id: str) -> str | None:
        """Return the ticker of a dispatch that is current, else None."""
        job = self.registry.current_job(dispatch_id)
        return job.ticker if job else None

    def provisional_in(self, series: Series, span: TimeRange) -> list[TimeRange]:
        """Return the parts of a series of trades or candles in which one source alone calls the trades complete."""
        job = self.registry.job_for(series.ticker) if series.dataset.in_realtime else None
        return job.provisional_in(series.period_seconds, span) if job else []

    def state(self, ticker: str) -> RealtimeState:
        """Return the state of an instrument's job."""
        job = self.registry.job_for(ticker)
        return job.state if job else RealtimeState.WAITING

    async def tick(self) -> None:
        """Write the positions that have changed, and request history that is due; called every ``FLUSH_SECONDS``."""
        if self.registry.dirty:
            await self._context.store.commit(rules.flush(self.registry))
        await self._repeat_history()
        await self._submit_history()

    async def _repeat_history(self) -> None:
        """Have candles requested again that an ended request lacks, such as the newest one of a quiet market."""
        context, registry, submitted = self._context, self.registry, await self._recently_submitted()
        for part in [each for each in submitted.values() if each.request_id not in context.state.requests]:
            record = await context.store.record(part.request_id)
            if record is None:
                continue  # its end is not on disk yet
            del submitted[part.request_id]
            job = registry.job_for(part.ticker)
            if job is None or record.outcome is None or part.period_seconds not in job.positions:
                continue
            changes, known, now_ns = Changes(), set(registry.history), context.clock.wall_ns()
            for span in record.outcome.missing:
                if span.end_ns > now_ns - RECENT_NS:
                    rules.refetch(registry, job, part.period_seconds, span, changes)
            self._not_before_ns.update(dict.fromkeys(registry.history.keys() - known, now_ns + REPEAT_NS))
            if changes:
                await context.store.commit(changes)

    async def _recently_submitted(self) -> dict[str, HistoryPart]:
        """Return the ranges of requests that may have ended without some candles, in this run and in earlier ones."""
        if self._submitted is None:
            after_ns = self._context.clock.wall_ns() - RECENT_NS
            parts = await self._context.store.read(store.read_parts, "submitted AND end_ns > ?", after_ns)
            self._submitted = {part.request_id: part for part in parts}
        return self._submitted

    async def _submit_history(self) -> None:
        now_ns, due = self._context.clock.wall_ns(), list[HistoryPart]()
        for part in self.registry.history.values():
            if max(part.span.end_ns + CLOSED_NS, self._not_before_ns.get(part.request_id, 0)) <= now_ns:
                due.append(part)
        for part in due:
            try:
                await self._submitter.submit(part.request)
            except Unavailable as error:
                log.warning("history of a subscription waits", request_id=part.request_id, error=str(error))
                continue
            except InvalidRequest as error:
                log.error("history of a subscription cannot be fetched", request_id=part.request_id, error=str(error))
            self._not_before_ns.pop(part.request_id, None)
            if self.registry.history.pop(part.request_id, None) is not None:  # else its subscription was stopped
                (await self._recently_submitted())[part.request_id] = part
                await self._context.store.commit([HistoryPartSubmitted(part.request_id)])
