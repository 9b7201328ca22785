"""What ingestors and the pipeline say of pages and finals. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from services.common.model.errors import InvalidRequest
from services.common.model.history import FinalResult, FinalStatus, PageResult
from services.common.model.instrument import Series
from services.common.model.time_range import TimeRange, intersect, subtract
from services.relay.history.coverage import cover
from services.relay.history.dispatches import trim_job
from services.relay.history.job import Job, Phase
from services.relay.history.state import HistoryState
from services.relay.store.schema import Batch, job_owner


def page(
    state: HistoryState, dispatch_id: str, span: TimeRange, empty: Iterable[TimeRange], batch: Batch, *, now_ns: int
) -> Job | None:
    """A page that Kafka has acknowledged; the job, or None when the dispatch is not current.

    Raises:
        InvalidRequest: The page reaches beyond what the dispatch was asked for.
    """
    job = state.current_job(dispatch_id)
    if job is None:
        return None
    if job.sent is None or not job.sent.contains(span):
        raise InvalidRequest(f"page {span} is not inside the range {job.sent} of job {dispatch_id!r}")
    state.leases.renew(dispatch_id, now_ns=now_ns)
    for wanted in subtract([span], job.handled):  # not what was taken back since the dispatch
        batch.ranges(job_owner(job.id), "acked", job.acked.add(wanted))
        for part in intersect(empty, wanted):
            batch.ranges(job_owner(job.id), "acked_empty", job.acked_empty.add(part))
    for request in state.requests_of(job):
        request.progress_ns = now_ns
    return job


def report(
    state: HistoryState,
    snapshot_id: int | None,
    pages: Iterable[PageResult],
    finals: Iterable[FinalResult],
    batch: Batch,
    *,
    now_ns: int,
) -> None:
    """What the pipeline committed: pages become coverage whoever fetched them, finals end current dispatches."""
    if snapshot_id is not None and snapshot_id != state.snapshot_id:
        state.snapshot_id = snapshot_id
        batch.snapshot(snapshot_id)
    landed: defaultdict[Series, list[TimeRange]] = defaultdict(list)
    for page in pages:
        landed[page.series].append(page.span)
        if page.refused is None:
            fetched_ns = max(page.fetched_ns, _dispatched_ns(state, page.dispatch_id))
            cover(state, page.series, page.span, page.empty, fetched_ns, batch)
        else:
            _refuse(state, page, batch)
    for request in state.requests.values():
        if any(map(request.planned.intersect, landed.get(request.submission.series, ()))):
            request.progress_ns = now_ns
    for final in finals:
        _final(state, final, batch, now_ns)
    for series, spans in landed.items():
        for job in state.jobs_of(series):
            if any(map(job.span.overlaps, spans)) and trim_job(state, job):
                batch.job(job)


def _dispatched_ns(state: HistoryState, dispatch_id: str) -> int:
    """Of a dispatch we know: no page of it was fetched before the retractions that had been made by then.

    By the time of those, not by the clock: the exchange's answer is dated by the ingestor's, which may be behind.
    """
    job = state.job_of(dispatch_id)
    return 0 if job is None else job.dispatch_ids[dispatch_id]


def _refuse(state: HistoryState, page: PageResult, batch: Batch) -> None:
    job = state.job_of(page.dispatch_id)
    if job is None:
        return
    # what an earlier dispatch did not report, or the current one was asked for again, is still to come
    again = [job.sent] if job.sent else []
    parts = [page.span] if page.dispatch_id == job.dispatch_id else subtract(job.acked.within(page.span), again)
    for part in parts:
        batch.ranges(job_owner(job.id), "refused", job.refused.add(part))
    if parts:
        job.error = job.error or f"a page was refused: {page.refused}"
        batch.job(job)


def _final(state: HistoryState, final: FinalResult, batch: Batch, now_ns: int) -> None:
    job = state.current_job(final.dispatch_id)
    if job is None:
        return
    assert job.sent is not None
    batch.ranges(job_owner(job.id), "handled", job.handled.add(job.sent))
    job.dispatch_id = None
    job.produced = False
    job.sent = None
    job.failures_in_a_row = 0
    if final.status is FinalStatus.ERROR:
        job.error = final.error or "the ingestor gave no reason"
    if final.status is FinalStatus.ERROR or not job.to_fetch(state.coverage[job.series].covered):
        job.phase = Phase.ENDED
        state.leases.remove(job.id)
    else:
        state.leases.requeue(job.id)
    batch.job(job)
    for request in state.requests_of(job):
        request.progress_ns = now_ns
