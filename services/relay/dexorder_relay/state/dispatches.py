"""Events of dispatches applied to the state: assigned, lost, reported by ingestors and by the pipeline. Pure.

``job.py`` has the states of a job. Every change that must survive a restart is added to ``changes``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from dexorder_common.lake.coverage import Order
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.history import Dispatch, FinalResult, IssuedDispatch, PageResult
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange, intersect, subtract
from dexorder_relay.state.changes import Changes, DispatchIssued, RangesChanged, RequestChanged, ValueStored
from dexorder_relay.state.coverage import cover, note_absences, settle_job
from dexorder_relay.state.history import HistoryState
from dexorder_relay.state.job import Job, Phase
from dexorder_relay.state.leases import Assignment


def begin(state: HistoryState, assignment: Assignment, changes: Changes, *, wall_ns: int, now_ns: int) -> Dispatch:
    """Start the dispatch of a job that was given to a slot; the changes must be on disk before anything is sent."""
    job = state.jobs[assignment.job]
    dispatch = state.add_dispatch(job, assignment.dispatch_id)
    issued = IssuedDispatch(dispatch.dispatch_id, dispatch.series, dispatch.span)
    changes += [DispatchIssued(issued, job.id, wall_ns), ValueStored(job)]
    for live in state.requests_of(job):
        live.progress_ns = now_ns
        if live.start():
            changes.append(RequestChanged(live))
    return dispatch


def unsent(state: HistoryState, assignment: Assignment, changes: Changes) -> None:
    """Queue a job again after its ingestor could not be reached; this is not a failure of the job."""
    state.leases.requeue(assignment.job)
    _end_dispatch(state, state.jobs[assignment.job], changes)


def produced(state: HistoryState, dispatch_id: str, changes: Changes) -> bool:
    """Record the ingestor's report that Kafka has the final record; return whether the dispatch is current."""
    job_id = state.leases.complete(dispatch_id)
    if job_id is None:
        return False
    state.jobs[job_id].produced = True
    changes.append(ValueStored(state.jobs[job_id]))
    return True


def lose(
    state: HistoryState,
    dispatch_id: str,
    reason: str,
    changes: Changes,
    *,
    now_ns: int,
    rejected_by: bytes | None = None,
) -> Job | None:
    """Take back a dispatch that ended without a final record; return its job, or None if it is not current."""
    job = state.current_job(dispatch_id)
    if job is None:
        return None
    settled, policy = state.settled(job), state.retry_policy
    if not job.made_progress(settled) and state.leases.lose(dispatch_id, now_ns=now_ns):
        new_not_before_ns = now_ns + policy.wait_ns(job.failures_in_a_row + 1)
        state.leases.requeue(job.id, new_not_before_ns=new_not_before_ns, rejected_by=rejected_by)
        _end_dispatch(state, job, changes)
        return job
    job.lose(reason, settled, policy)
    if job.phase is Phase.ENDED:
        state.leases.remove(job.id)
    else:
        not_before_ns = now_ns + policy.wait_ns(job.failures_in_a_row)
        state.leases.requeue(job.id, not_before_ns=not_before_ns, rejected_by=rejected_by)
    _end_dispatch(state, job, changes)
    return job


def _end_dispatch(state: HistoryState, job: Job, changes: Changes) -> None:
    job.end_dispatch()
    for part in subtract(job.refused, job.acked):  # never reported by the ingestor, so it is fetched again
        changes.append(RangesChanged(job.id, "refused", job.refused.remove(part)))
    settle_job(state, job)
    changes.append(ValueStored(job))


def page(
    state: HistoryState, dispatch_id: str, span: TimeRange, empty: Iterable[TimeRange], changes: Changes, *, now_ns: int
) -> Job | None:
    """Record a page that Kafka has acknowledged; return its job, or None if the dispatch is not current.

    InvalidRequest if the page is not inside the range of the dispatch.
    """
    job = state.current_job(dispatch_id)
    if job is None:
        return None
    if job.sent is None or not job.sent.contains(span):
        raise InvalidRequest(f"page {span} is not inside the range {job.sent} of job {dispatch_id!r}")
    state.leases.page(dispatch_id, now_ns=now_ns)
    if not job.series.dataset.pages_count:
        return job
    for part in subtract([span], job.handled):  # not the ranges retracted since the dispatch
        changes.append(RangesChanged(job.id, "acked", job.acked.add(part)))
        for hole in intersect(empty, part):
            changes.append(RangesChanged(job.id, "acked_empty", job.acked_empty.add(hole)))
    job.delay = None
    for live in state.requests_of(job):
        live.progress_ns = now_ns
    return job


def report(
    state: HistoryState,
    pages: Iterable[PageResult],
    finals: Iterable[FinalResult],
    changes: Changes,
    *,
    wall_ns: int,
    now_ns: int,
) -> None:
    """Apply committed records: pages of any dispatch become coverage, finals end current dispatches."""
    landed: defaultdict[Series, list[TimeRange]] = defaultdict(list)
    for result in pages:
        landed[result.series].append(result.span)
        job = state.job_of(result.dispatch_id)
        if not result.series.dataset.pages_count:
            if job is not None and result.dispatch_id == job.dispatch_id:
                _take(job, result, changes)
        elif result.refused is None:
            order = Order(result.dispatch, result.fetched_ns)
            # a page of an ended job in a covered range is old: it is late, or is reported again
            news = [result.span] if job is not None else state.covered(result.series).holes(result.span)
            cover(state, result.series, result.span, result.empty, order, changes)
            empty = [each for part in news for each in intersect(result.empty, part)]
            note_absences(state, result.series, empty, result.provisional, changes, now_ns=wall_ns)
            if job is not None and job.again:
                for part in intersect([result.span], job.span):
                    changes.append(RangesChanged(job.id, "landed", job.landed.add(part)))
            _note_present(state, result, changes)
        elif job is not None:
            _refuse(job, result, changes)
    for live in state.requests.values():
        if any(map(live.planned.intersect, landed.get(live.request.series, ()))):
            live.progress_ns = now_ns
    for final in finals:
        _finish(state, final, changes, now_ns)
    for series, spans in landed.items():
        for job in state.jobs_of(series):
            if any(map(job.span.overlaps, spans)) and settle_job(state, job):
                changes.append(ValueStored(job))


def _note_present(state: HistoryState, result: PageResult, changes: Changes) -> None:
    """Note where a page has candles for the jobs that fetch its range again and were dispatched before it."""
    candles = subtract([result.span], result.empty)
    for job in state.jobs_of(result.series):
        if job.again and job.dispatch_ids and job.first_dispatch <= result.dispatch:
            for part in intersect(candles, job.span):
                changes.append(RangesChanged(job.id, "present", job.present.add(part)))


def _take(job: Job, result: PageResult, changes: Changes) -> None:
    """Note a page of the current dispatch, of which only the final record counts."""
    if result.refused is None:
        job.taken_ns = max(job.taken_ns, result.span.end_ns)
    else:
        job.error = job.error or f"a page was refused: {result.refused}"
    changes.append(ValueStored(job))


def _refuse(job: Job, result: PageResult, changes: Changes) -> None:
    # ranges that an earlier dispatch did not report, or that the current one fetches again, are still to come
    again = [job.sent] if job.sent else []
    current = result.dispatch_id == job.dispatch_id
    own = intersect([result.span], job.span) if result.series == job.series else []  # it may be refused for its range
    parts = own if current else subtract([part for each in own for part in job.acked.within(each)], again)
    for part in parts:
        changes.append(RangesChanged(job.id, "refused", job.refused.add(part)))
    if parts:
        job.error = job.error or f"a page was refused: {result.refused}"
        changes.append(ValueStored(job))


def _finish(state: HistoryState, final: FinalResult, changes: Changes, now_ns: int) -> None:
    job = state.current_job(final.dispatch_id)
    if job is None:  # fenced: the dispatch that took its place fetches the rest
        return
    assert job.sent is not None
    state.leases.page(final.dispatch_id, now_ns=now_ns)
    changes.append(RangesChanged(job.id, "handled", job.handled.add(job.sent)))
    job.finish(final, state.settled(job))
    if job.phase is Phase.ENDED:
        state.leases.remove(job.id)
    else:
        state.leases.requeue(job.id)
    changes.append(ValueStored(job))
    for live in state.requests_of(job):
        live.progress_ns = now_ns
