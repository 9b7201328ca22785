"""Jobs go out to ingestors, and come back without a result. Pure."""

from __future__ import annotations

from services.common.model.history import Dispatch, RequestState
from services.common.model.time_range import subtract
from services.relay.broker.leases import Assignment
from services.relay.broker.retry_policy import count_failures
from services.relay.history.job import Job, LostDispatch, Phase
from services.relay.history.state import HistoryState
from services.relay.store.schema import Batch, job_owner


def assign(state: HistoryState, batch: Batch, *, now_ns: int) -> list[tuple[Assignment, Dispatch]]:
    """Give queued jobs to free slots; the batch must be on disk before anything is sent."""
    made = []
    for given in state.leases.assign(now_ns=now_ns):
        job = state.jobs[given.job]
        # in time order, one contiguous range a dispatch; a further one goes out after this one's final
        job.sent = job.to_fetch(state.coverage[job.series].covered)[0]
        state.add_dispatch(job, given.dispatch_id)
        batch.dispatch(job)
        for request in state.requests_of(job):
            request.progress_ns = now_ns
            if request.state is RequestState.QUEUED:
                request.state = RequestState.RUNNING
                batch.request(request)
        made.append((given, Dispatch(given.dispatch_id, job.request_id, job.series, job.sent, job.client_id)))
    return made


def unsent(state: HistoryState, assign: Assignment, batch: Batch) -> None:
    """A dispatch whose ingestor could not be reached: back to the front, no attempt counted."""
    if state.leases.job_of(assign.dispatch_id) == assign.job:
        state.leases.requeue(assign.job)
        _back(state, state.jobs[assign.job], batch)


def produced(state: HistoryState, dispatch_id: str, batch: Batch) -> bool:
    """The ingestor says that Kafka has the final record; whether the dispatch is current."""
    number = state.leases.complete(dispatch_id)
    if number is None:
        return False
    state.jobs[number].produced = True
    batch.job(state.jobs[number])
    return True


def lose(
    state: HistoryState, dispatch_id: str, reason: str, batch: Batch, *, now_ns: int, rejected_by: bytes | None = None
) -> LostDispatch | None:
    """Take back a dispatch that ends without a result; None when it is not current."""
    job = state.current_job(dispatch_id)
    if job is None:
        return None
    made_progress = job.made_progress(state.coverage[job.series].covered)
    job.failures_in_a_row = count_failures(job.failures_in_a_row, made_progress=made_progress)
    dead = state.retry_policy.ends(job.failures_in_a_row)
    if dead:
        state.leases.remove(job.id)
        job.phase = Phase.ENDED
        job.error = (
            f"given up after {job.failures_in_a_row} attempts in a row without a page, the last because {reason}"
        )
    else:
        not_before_ns = now_ns + state.retry_policy.wait_ns(job.failures_in_a_row)
        state.leases.requeue(job.id, not_before_ns=not_before_ns, rejected_by=rejected_by)
    _back(state, job, batch)
    return LostDispatch(job, made_progress, dead)


def _back(state: HistoryState, job: Job, batch: Batch) -> None:
    job.dispatch_id = None
    job.produced = False
    job.sent = None
    for part in subtract(job.refused, job.acked):  # never reported, so the next dispatch fetches it again
        batch.ranges(job_owner(job.id), "refused", job.refused.remove(part))
    trim_job(state, job)
    batch.job(job)


def trim(state: HistoryState, batch: Batch) -> None:
    """Stop every queued job that has nothing left to fetch; after coverage came from elsewhere than a report."""
    for job in state.jobs.values():
        if trim_job(state, job):
            batch.job(job)


def trim_job(state: HistoryState, job: Job) -> bool:
    """Stop a job without a dispatch that has nothing left to fetch; its pages are all in Kafka or committed."""
    if job.phase is Phase.OPEN and job.dispatch_id is None and not job.to_fetch(state.coverage[job.series].covered):
        state.leases.remove(job.id)
        job.phase = Phase.SETTLED
        return True
    return False
