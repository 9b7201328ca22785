"""What ingestors and the pipeline say of pages and finals. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from services.common.model.errors import InvalidRequest
from services.common.model.history import FinalResult, FinalStatus, Market, PageResult
from services.common.model.time_range import TimeRange, intersect, subtract
from services.relay.history.coverage import cover
from services.relay.history.dispatches import trim_job
from services.relay.history.job import Job, Phase
from services.relay.history.state import Board
from services.relay.store.schema import Batch, job_owner


def page(
    board: Board, job_id: str, span: TimeRange, empty: Iterable[TimeRange], batch: Batch, *, now_ns: int
) -> Job | None:
    """A page that Kafka has acknowledged; the job, or None when the dispatch is not current.

    Raises:
        InvalidRequest: The page reaches beyond what the dispatch was asked for.
    """
    job = board.current_job(job_id)
    if job is None:
        return None
    if job.sent is None or not job.sent.contains(span):
        raise InvalidRequest(f"page {span} is not inside the range {job.sent} of job {job_id!r}")
    board.dispatcher.renew(job_id, now_ns=now_ns)
    for wanted in subtract([span], job.handled):  # not what was taken back since the dispatch
        batch.ranges(job_owner(job.number), "acked", job.acked.add(wanted))
        for part in intersect(empty, wanted):
            batch.ranges(job_owner(job.number), "acked_empty", job.acked_empty.add(part))
    for request in board.requests_of(job):
        request.progress_ns = now_ns
    return job


def report(
    board: Board,
    snapshot_id: int | None,
    pages: Iterable[PageResult],
    finals: Iterable[FinalResult],
    batch: Batch,
    *,
    now_ns: int,
) -> None:
    """What the pipeline committed: pages become coverage whoever fetched them, finals end current dispatches."""
    if snapshot_id is not None and snapshot_id != board.snapshot_id:
        board.snapshot_id = snapshot_id
        batch.snapshot(snapshot_id)
    landed: defaultdict[Market, list[TimeRange]] = defaultdict(list)
    for page in pages:
        landed[page.market].append(page.span)
        if page.refused is None:
            fetched_ns = max(page.fetched_ns, _dispatched_ns(board, page.job_id))
            cover(board, page.market, page.span, page.empty, fetched_ns, batch)
        else:
            _refuse(board, page, batch)
    for request in board.requests.values():
        if any(map(request.planned.intersect, landed.get(request.submission.market, ()))):
            request.progress_ns = now_ns
    for final in finals:
        _final(board, final, batch, now_ns)
    for market, spans in landed.items():
        for job in board.jobs_of(market):
            if any(map(job.span.overlaps, spans)) and trim_job(board, job):
                batch.job(job)


def _dispatched_ns(board: Board, job_id: str) -> int:
    """Of a dispatch we know: no page of it was fetched before the retractions that had been made by then.

    By the time of those, not by the clock: the exchange's answer is dated by the ingestor's, which may be behind.
    """
    job = board.job_of(job_id)
    return 0 if job is None else job.job_ids[job_id]


def _refuse(board: Board, page: PageResult, batch: Batch) -> None:
    job = board.job_of(page.job_id)
    if job is None:
        return
    # what an earlier dispatch did not report, or the current one was asked for again, is still to come
    again = [job.sent] if job.sent else []
    parts = [page.span] if page.job_id == job.job_id else subtract(job.acked.within(page.span), again)
    for part in parts:
        batch.ranges(job_owner(job.number), "refused", job.refused.add(part))
    if parts:
        job.error = job.error or f"a page was refused: {page.refused}"
        batch.job(job)


def _final(board: Board, final: FinalResult, batch: Batch, now_ns: int) -> None:
    job = board.current_job(final.job_id)
    if job is None:
        return
    assert job.sent is not None
    batch.ranges(job_owner(job.number), "handled", job.handled.add(job.sent))
    job.job_id = None
    job.produced = False
    job.sent = None
    job.fruitless = 0
    if final.status is FinalStatus.ERROR:
        job.error = final.error or "the ingestor gave no reason"
    if final.status is FinalStatus.ERROR or not job.to_fetch(board.coverage[job.market].covered):
        job.phase = Phase.ENDED
        board.dispatcher.remove(job.number)
    else:
        board.dispatcher.requeue(job.number)
    batch.job(job)
    for request in board.requests_of(job):
        request.progress_ns = now_ns
