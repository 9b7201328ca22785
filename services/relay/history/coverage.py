"""What the table has of each market: claimed by pages, taken back by retractions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from services.common.lake.coverage import Retraction
from services.common.model.instrument import Series
from services.common.model.time_range import TimeRange, intersect, subtract
from services.relay.history.dispatches import trim_job
from services.relay.history.state import HistoryState
from services.relay.store.schema import Batch, job_owner, series_owner


def cover(
    state: HistoryState, series: Series, span: TimeRange, empty: Iterable[TimeRange], fetched_ns: int, batch: Batch
) -> None:
    """A page whose rows are in the table covers what was not taken back since it was fetched.

    Empty is what every page calls so: where one has counted a row the table has it, whatever another says.
    """
    coverage, owner, empty = state.coverage[series], series_owner(series), tuple(empty)
    for claimed in state.retractions[series].claimed(span, fetched_ns):
        rows = subtract(coverage.covered.within(claimed), coverage.empty.within(claimed))
        batch.ranges(owner, "covered", coverage.covered.add(claimed))
        for part in subtract([claimed], empty):
            batch.ranges(owner, "empty", coverage.empty.remove(part))
        for part in subtract(intersect(empty, claimed), rows):
            batch.ranges(owner, "empty", coverage.empty.add(part))


def retract(state: HistoryState, series: Series, spans: Sequence[TimeRange], retracted_ns: int, batch: Batch) -> None:
    """Take coverage back, as the table of retractions already says; what is asked for next is fetched anew.

    Jobs on their way bring those ranges no more: what they have in hand was fetched before.
    """
    coverage, owner = state.coverage[series], series_owner(series)
    for span in spans:
        state.retractions[series].add(span, retracted_ns)
        batch.retraction(Retraction(series, span, retracted_ns))
        batch.ranges(owner, "covered", coverage.covered.remove(span))
        batch.ranges(owner, "empty", coverage.empty.remove(span))
    for job in state.jobs_of(series):
        in_hand = [*job.acked, *([job.sent] if job.sent else [])]
        stale = subtract(in_hand, subtract(in_hand, spans))
        for part in stale:
            batch.ranges(job_owner(job.id), "handled", job.handled.add(part))
            for kind in ("acked", "acked_empty", "refused"):
                batch.ranges(job_owner(job.id), kind, getattr(job, kind).remove(part))
        if stale and trim_job(state, job):
            batch.job(job)
