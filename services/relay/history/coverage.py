"""Coverage of each series: claimed by pages, taken back by retractions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from services.common.lake.coverage import Order, Retraction
from services.common.model.instrument import Series
from services.common.model.time_range import TimeRange, intersect, subtract
from services.relay.history.job import Job
from services.relay.history.state import HistoryState
from services.relay.store.schema import Batch, job_owner, series_owner


def cover(
    state: HistoryState, series: Series, span: TimeRange, empty: Iterable[TimeRange], order: Order, batch: Batch
) -> None:
    """Add a page whose rows are in the table, without the parts that were retracted since its dispatch.

    A period is empty only if every page says so: where one has counted a row, the table has it. Snapshots of tickers
    cover nothing, as every request for them takes new ones.
    """
    if series.is_snapshot:
        return
    coverage, owner, empty = state.coverage[series], series_owner(series), tuple(empty)
    for claimed in state.retractions[series].claimed(span, order):
        rows = subtract(coverage.covered.within(claimed), coverage.empty.within(claimed))
        batch.ranges(owner, "covered", coverage.covered.add(claimed))
        for part in subtract([claimed], empty):
            batch.ranges(owner, "empty", coverage.empty.remove(part))
        for part in subtract(intersect(empty, claimed), rows):
            batch.ranges(owner, "empty", coverage.empty.add(part))


def retract(state: HistoryState, series: Series, spans: Sequence[TimeRange], order: Order, batch: Batch) -> None:
    """Take back coverage that the retraction table already lists, so that later requests fetch it again.

    Jobs with a dispatch do not bring these ranges: the dispatch is earlier than the retraction.
    """
    coverage, owner = state.coverage[series], series_owner(series)
    for span in spans:
        state.retractions[series].add(span, order)
        batch.retraction(Retraction(series, span, order))
        batch.ranges(owner, "covered", coverage.covered.remove(span))
        batch.ranges(owner, "empty", coverage.empty.remove(span))
    for job in state.jobs_of(series):
        fetched = [*job.acked, *([job.sent] if job.sent else [])]
        stale = subtract(fetched, subtract(fetched, spans))
        for part in stale:
            batch.ranges(job_owner(job.id), "handled", job.handled.add(part))
            for kind in ("acked", "acked_empty", "refused"):
                batch.ranges(job_owner(job.id), kind, getattr(job, kind).remove(part))
        if stale and settle_job(state, job):
            batch.job(job)


def settle_jobs(state: HistoryState, batch: Batch) -> None:
    """Settle every queued job with nothing left to fetch, after coverage that came from elsewhere than a report."""
    for job in state.jobs.values():
        if settle_job(state, job):
            batch.job(job)


def settle_job(state: HistoryState, job: Job) -> bool:
    """Settle a job without a dispatch that has nothing left to fetch; return whether it was settled now."""
    if not job.settle(state.covered(job.series)):
        return False
    state.leases.remove(job.id)
    return True
