"""Jobs go out to ingestors, and come back without a result. Pure."""

from __future__ import annotations

from services.common.model.history import Dispatch, State
from services.common.model.time_range import subtract
from services.relay.broker.leases import Assign
from services.relay.broker.retry_policy import in_a_row
from services.relay.history.job import Job, Lost, Phase
from services.relay.history.state import Board
from services.relay.store.schema import Batch, job_owner


def assign(board: Board, batch: Batch, *, now_ns: int) -> list[tuple[Assign, Dispatch]]:
    """Give queued jobs to free slots; the batch must be on disk before anything is sent."""
    made = []
    for given in board.dispatcher.assign(now_ns=now_ns):
        job = board.jobs[given.job]
        # in time order, one contiguous range a dispatch; a further one goes out after this one's final
        job.sent = job.to_fetch(board.coverage[job.market].covered)[0]
        board.add_dispatch(job, given.job_id)
        batch.dispatch(job)
        for request in board.requests_of(job):
            request.progress_ns = now_ns
            if request.state is State.QUEUED:
                request.state = State.RUNNING
                batch.request(request)
        made.append((given, Dispatch(given.job_id, job.request_id, job.market, job.sent, job.client_id)))
    return made


def unsent(board: Board, assign: Assign, batch: Batch) -> None:
    """A dispatch whose ingestor could not be reached: back to the front, no attempt counted."""
    if board.dispatcher.job_of(assign.job_id) == assign.job:
        board.dispatcher.requeue(assign.job)
        _back(board, board.jobs[assign.job], batch)


def produced(board: Board, job_id: str, batch: Batch) -> bool:
    """The ingestor says that Kafka has the final record; whether the dispatch is current."""
    number = board.dispatcher.complete(job_id)
    if number is None:
        return False
    board.jobs[number].produced = True
    batch.job(board.jobs[number])
    return True


def lose(
    board: Board, job_id: str, reason: str, batch: Batch, *, now_ns: int, rejected_by: bytes | None = None
) -> Lost | None:
    """Take back a dispatch that ends without a result; None when it is not current."""
    job = board.current_job(job_id)
    if job is None:
        return None
    brought = job.brought(board.coverage[job.market].covered)
    job.fruitless = in_a_row(job.fruitless, brought=brought)
    dead = board.patience.ends(job.fruitless)
    if dead:
        board.dispatcher.remove(job.number)
        job.phase = Phase.ENDED
        job.error = f"given up after {job.fruitless} attempts in a row without a page, the last because {reason}"
    else:
        not_before_ns = now_ns + board.patience.wait_ns(job.fruitless)
        board.dispatcher.requeue(job.number, not_before_ns=not_before_ns, rejected_by=rejected_by)
    _back(board, job, batch)
    return Lost(job, brought, dead)


def _back(board: Board, job: Job, batch: Batch) -> None:
    job.job_id = None
    job.produced = False
    job.sent = None
    for part in subtract(job.refused, job.acked):  # never reported, so the next dispatch fetches it again
        batch.ranges(job_owner(job.number), "refused", job.refused.remove(part))
    trim_job(board, job)
    batch.job(job)


def trim(board: Board, batch: Batch) -> None:
    """Stop every queued job that has nothing left to fetch; after coverage came from elsewhere than a report."""
    for job in board.jobs.values():
        if trim_job(board, job):
            batch.job(job)


def trim_job(board: Board, job: Job) -> bool:
    """Stop a job without a dispatch that has nothing left to fetch; its pages are all in Kafka or committed."""
    if job.phase is Phase.OPEN and job.job_id is None and not job.to_fetch(board.coverage[job.market].covered):
        board.dispatcher.remove(job.number)
        job.phase = Phase.SETTLED
        return True
    return False
