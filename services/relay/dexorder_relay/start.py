"""State of the relay at its start: the database, then newer retractions and claims in the tables."""

from __future__ import annotations

import asyncio

import structlog
from tenacity import AsyncRetrying, stop_after_attempt, wait_exponential

from dexorder_common.lake.coverage import Claim, Retraction
from dexorder_common.model.dispatch_id import DispatchNumbers
from dexorder_common.model.times import SECOND_NS
from dexorder_relay.config import RelaySettings
from dexorder_relay.requests.context import Context
from dexorder_relay.requests.retraction_log import RetractionTable
from dexorder_relay.state import coverage, planner
from dexorder_relay.state.changes import Changes, CoverageRead
from dexorder_relay.state.history import HistoryState
from dexorder_relay.state.job import RetryPolicy
from dexorder_relay.state.leases import Leases
from dexorder_relay.state.realtime_job import Registry
from dexorder_relay.state.workers import TrialRules
from dexorder_relay.store import triggers

log = structlog.get_logger(__name__)
LOAD_ATTEMPTS = 5
COVERAGE_MARGIN_NS = 24 * 3_600 * SECOND_NS
"""Largest difference between the clocks of relay and pipeline with which no claim is missed at start."""


def empty_state(settings: RelaySettings, numbers: DispatchNumbers) -> HistoryState:
    """Return the empty state of a relay that numbers its dispatches with ``numbers``."""
    leases = Leases(
        lease_ns=int(settings.lease_seconds * SECOND_NS),
        new_id=numbers.new_id,
        max_slots=settings.max_slots_per_ingestor,
        trials=TrialRules(),
    )
    retry_policy = RetryPolicy(settings.max_attempts, int(settings.retry_backoff_seconds * SECOND_NS))
    return HistoryState(
        leases,
        retry_policy,
        job_periods=settings.job_periods,
        page_periods=settings.page_periods,
        recheck_after_ns=[int(each * SECOND_NS) for each in settings.recheck_after_seconds],
    )


async def load(context: Context, registry: Registry, table: RetractionTable) -> int:
    """Load the database, then apply retractions and claims that only the tables have.

    Claims are read starting shortly before the last load, because the database has all earlier ones.

    Returns:
        The largest number of a dispatch or of a retraction that the database or a table has.
    """
    state, store, reader, clock = context.state, context.store, context.reader, context.clock
    await store.load(state, registry, now_ns=clock.monotonic_ns())
    read_ns, since_ns = clock.wall_ns(), max(0, await store.coverage_read_ns() - COVERAGE_MARGIN_NS)
    context.quotas.hold_triggers(await store.read(triggers.bytes_by_client))
    applied = await store.retractions()
    attempts = AsyncRetrying(stop=stop_after_attempt(LOAD_ATTEMPTS), wait=wait_exponential(0.2, max=5), reraise=True)
    made: list[Retraction] = await attempts(asyncio.to_thread, table.read)
    claims: list[Claim] = await attempts(asyncio.to_thread, lambda: list(reader.coverage(since_ns)))
    numbers = [await store.last_number(), await attempts(asyncio.to_thread, reader.last_dispatch)]
    numbers += [each.order.dispatch for each in made] + [claim.dispatch for claim in claims]
    changes, new = Changes(), [each for each in made if each not in applied]
    for each in new:
        coverage.retract(state, each.series, [each.span], each.order, changes)
    unknown = [state.covered(claim.series).holes(claim.span) for claim in claims]
    for claim in claims:
        coverage.cover(state, claim.series, claim.span, claim.empty, claim.order, changes)
    coverage.note_claims(state, zip(claims, unknown, strict=True), changes, now_ns=read_ns)
    for each in new:
        planner.replan(state, each.series, [each.span], changes)
    coverage.settle_jobs(state, changes)
    changes.append(CoverageRead(read_ns))
    await store.commit(changes)
    log.info(
        "loaded",
        requests=len(state.requests),
        jobs=len(state.jobs),
        covered_ranges=len(claims),
        subscriptions=len(registry.subscriptions),
    )
    return max(numbers)
