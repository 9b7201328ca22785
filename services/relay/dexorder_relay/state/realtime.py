"""Checks of subscriptions; events of subscriptions and realtime dispatches applied to the registry. Pure.

``realtime_job.py`` has the states of a job. Every change that must survive a restart is added to ``changes``, except
positions of trades: the caller writes the positions of ``registry.dirty`` every few seconds, because a lost position
only makes trades be produced again. A lost position of candles would look like a hole that history must fill.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from dexorder_common.model.datasets import TRADES, realtime_dataset
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.history import IssuedDispatch
from dexorder_common.model.instrument import Series
from dexorder_common.model.periods import ceil_to_grid, check_period, floor_to_grid
from dexorder_common.model.realtime import RealtimeDispatch, RealtimeStatus, StartedSubscription, Subscription
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import MAX_TIME_NS
from dexorder_relay.state.changes import (
    Changes,
    DispatchEnded,
    DispatchIssued,
    KnowledgeChanged,
    PositionChanged,
    PositionsReplaced,
    RealtimeJobForgotten,
    SubscriptionStopped,
    ValueStored,
)
from dexorder_relay.state.job import RetryPolicy
from dexorder_relay.state.leases import Assignment
from dexorder_relay.state.realtime_job import HistoryPart, RealtimeJob, Registry
from dexorder_relay.state.request import check_id, check_ticker
from dexorder_relay.state.workers import SlotKind


def check_subscription(subscription: Subscription, venues: Collection[str], *, wall_ns: int) -> None:
    """Raise InvalidRequest, with the field and its value, for a subscription that cannot be served."""
    check_id("subscription_id", subscription.subscription_id)
    if subscription.client_id:
        check_id("client_id", subscription.client_id)
    check_ticker(subscription.ticker, venues)
    if not subscription.params:
        raise InvalidRequest("params ask for nothing; set include_ticks, or include_ohlc with ohlc_period_seconds")
    for period in subscription.params.periods:
        check_period(period)
    since_ns = subscription.since_ns
    if since_ns is not None and not 0 < since_ns <= min(wall_ns, MAX_TIME_NS):
        raise InvalidRequest(f"since_ns {since_ns} is not between 1 and now, {wall_ns} nanoseconds")


def closed_parts(span: TimeRange, period: int, *, wall_ns: int) -> list[TimeRange]:
    """Split a range of candles at the end of the last closed one, so that history fetches the first part at once."""
    now_ns = min(max(floor_to_grid(wall_ns, period), span.start_ns), span.end_ns)
    return [part for part in (TimeRange(span.start_ns, now_ns), TimeRange(now_ns, span.end_ns)) if part]


def history_span(started: StartedSubscription, period: int) -> TimeRange | None:
    """Return the range of candles that a subscription asks for before its realtime candles; None without any."""
    if (since_ns := started.subscription.since_ns) is None:
        return None
    start_ns, end_ns = ceil_to_grid(since_ns, period), ceil_to_grid(started.started_ns, period)
    return TimeRange(start_ns, end_ns) if start_ns < end_ns else None


def start(
    registry: Registry, started: StartedSubscription, new_job_id: Callable[[], int], changes: Changes
) -> RealtimeJob:
    """Add a checked subscription, and the job of its instrument if it does not exist."""
    subscription = started.subscription
    registry.subscriptions[subscription.subscription_id] = started
    registry.last_sequence = max(registry.last_sequence, started.sequence)
    changes.append(ValueStored(started))
    job = registry.job_for(subscription.ticker)
    if job is None:
        job = RealtimeJob(new_job_id(), subscription.ticker)
        registry.add_job(job)
        registry.leases.queue(job.id, job.exchange, SlotKind.REALTIME)
    for period, missing in job.add(started):
        for part in closed_parts(missing, period, wall_ns=started.started_ns):
            _fetch(registry, job, started, period, part, changes)
    changes += [ValueStored(job), PositionsReplaced(job)]
    return job


def _fetch(
    registry: Registry, job: RealtimeJob, started: StartedSubscription, period: int, span: TimeRange, changes: Changes
) -> None:
    subscription = started.subscription
    part = HistoryPart(
        registry.new_id(), subscription.subscription_id, job.ticker, period, span, subscription.client_id
    )
    registry.history[part.request_id] = part
    changes.append(ValueStored(part))


def stop(registry: Registry, subscription_id: str, changes: Changes, *, wall_ns: int) -> RealtimeJob:
    """Remove a subscription. A job without any is removed too, or when its dispatch has stopped."""
    ticker = registry.subscriptions.pop(subscription_id).subscription.ticker
    job = registry.job_for(ticker)
    assert job is not None
    knows_less = job.remove(subscription_id)
    for part in [each for each in registry.history.values() if each.subscription_id == subscription_id]:
        _hand_over(registry, job, part, changes)
    changes += [SubscriptionStopped(subscription_id, wall_ns), PositionsReplaced(job)]
    if knows_less:
        changes.append(KnowledgeChanged(job.id, job.knowledge))
    _remove_if_idle(registry, job, changes)
    return job


def _hand_over(registry: Registry, job: RealtimeJob, part: HistoryPart, changes: Changes) -> None:
    """Have candles that were to be fetched for a stopped subscription fetched for another that has their period."""
    del registry.history[part.request_id]
    heirs = (each.subscription for each in job.subscriptions.values())
    heir = next((each for each in heirs if part.period_seconds in each.params.periods), None)
    if heir is not None:
        part = replace(part, subscription_id=heir.subscription_id, client_id=heir.client_id)
        registry.history[part.request_id] = part
        changes.append(ValueStored(part))


def _remove_if_idle(registry: Registry, job: RealtimeJob, changes: Changes) -> bool:
    if job.subscriptions or job.dispatch_id is not None:
        return False
    registry.leases.remove(job.id)
    registry.drop_job(job)
    changes.append(RealtimeJobForgotten(job.id))
    return True


def assign(registry: Registry, assignment: Assignment, changes: Changes, *, wall_ns: int) -> RealtimeDispatch:
    """Start the dispatch of a job that was given to a slot; the changes must be on disk before anything is sent."""
    job = registry.jobs[assignment.job]
    dispatch = job.assign(assignment.dispatch_id, assignment.slot.identity, wall_ns=wall_ns)
    anything = Series(job.ticker, 0, TRADES), TimeRange(0, MAX_TIME_NS)  # it may settle every series at any time
    issued = IssuedDispatch(dispatch.dispatch_id, *anything, is_realtime=True)
    changes += [DispatchIssued(issued, job.id, wall_ns), ValueStored(job)]
    return dispatch


def unsent(registry: Registry, assignment: Assignment, changes: Changes, *, wall_ns: int) -> None:
    """Queue a job again after its ingestor could not be reached; this is not a failure of the job."""
    job = registry.jobs[assignment.job]
    job.dispatches -= 1
    _end_dispatch(registry, job, changes, wall_ns=wall_ns)


def end(
    registry: Registry,
    dispatch_id: str,
    reason: str,
    policy: RetryPolicy,
    changes: Changes,
    *,
    wall_ns: int,
    now_ns: int,
    rejected_by: bytes | None = None,
) -> RealtimeJob:
    """End a current dispatch: the relay has stopped it, or else it has failed for a reason.

    The job is queued again while it has subscriptions; it is never given up.
    """
    job = registry.jobs[registry.leases.job_of(dispatch_id) or 0]
    if job.must_stop:
        _end_dispatch(registry, job, changes, wall_ns=wall_ns)
        return job
    job.lose(reason)
    if job.failures_in_a_row:
        registry.leases.lose(dispatch_id, now_ns=now_ns)
    wait_ns = policy.wait_ns(job.failures_in_a_row)
    job.next_attempt_ns = wall_ns + wait_ns if wait_ns else 0
    registry.leases.requeue(job.id, not_before_ns=now_ns + wait_ns, rejected_by=rejected_by)
    changes += [DispatchEnded(dispatch_id, wall_ns), ValueStored(job)]
    return job


def _end_dispatch(registry: Registry, job: RealtimeJob, changes: Changes, *, wall_ns: int) -> None:
    assert job.dispatch_id is not None
    changes.append(DispatchEnded(job.dispatch_id, wall_ns))
    job.end_dispatch()
    if not _remove_if_idle(registry, job, changes):
        registry.leases.requeue(job.id)
        changes.append(ValueStored(job))


def settle(
    registry: Registry,
    job: RealtimeJob,
    period: int,
    span: TimeRange,
    changes: Changes,
    *,
    current: bool,
    last_trade_id: str = "",
    compared_ns: int = 0,
) -> None:
    """Settle a span of a series that Kafka has; candles that realtime did not bring are fetched as history."""
    position, hole = job.settle(period, span, current=current, last_trade_id=last_trade_id)
    if position is None:
        return
    position.compared_ns = compared_ns or position.compared_ns
    if realtime_dataset(period) is TRADES:
        registry.dirty.add(job.id)
    else:
        changes.append(PositionChanged(job.id, period, job.positions[period]))
    if hole is not None:
        oldest = next(iter(job.subscriptions.values()))
        _fetch(registry, job, oldest, period, hole, changes)


def learn(registry: Registry, status: RealtimeStatus, changes: Changes) -> RealtimeJob | None:
    """Take the knowledge of a dispatch that is not in its records; return the job if clients see a change."""
    job = registry.current_job(status.dispatch_id)
    if job is None:
        return None
    must_be_kept, is_seen = job.learn(status.knowledge, status.number)
    if must_be_kept:
        changes.append(KnowledgeChanged(job.id, job.knowledge))
    return job if is_seen else None


def refetch(registry: Registry, job: RealtimeJob, period: int, span: TimeRange, changes: Changes) -> None:
    """Have candles fetched as history that the pipeline could not use."""
    if job.subscriptions:
        _fetch(registry, job, next(iter(job.subscriptions.values())), period, span, changes)


def flush(registry: Registry) -> Changes:
    """Return the positions that are not on disk as changes."""
    changes: Changes = [PositionsReplaced(registry.jobs[job_id]) for job_id in registry.dirty]
    registry.dirty.clear()
    return changes
