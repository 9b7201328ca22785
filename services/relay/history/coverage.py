"""What the table has of each market: claimed by pages, taken back by retractions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from services.common.model.history import Market, Retraction
from services.common.model.time_range import TimeRange, intersect, subtract
from services.relay.history.dispatches import trim_job
from services.relay.history.state import Board
from services.relay.store.schema import Batch, job_owner, market_owner


def cover(
    board: Board, market: Market, span: TimeRange, empty: Iterable[TimeRange], fetched_ns: int, batch: Batch
) -> None:
    """A page whose rows are in the table covers what was not taken back since it was fetched.

    Empty is what every page calls so: where one has counted a row the table has it, whatever another says.
    """
    coverage, owner, empty = board.coverage[market], market_owner(market), tuple(empty)
    for claimed in board.retractions[market].claimed(span, fetched_ns):
        rows = subtract(coverage.covered.within(claimed), coverage.empty.within(claimed))
        batch.ranges(owner, "covered", coverage.covered.add(claimed))
        for part in subtract([claimed], empty):
            batch.ranges(owner, "empty", coverage.empty.remove(part))
        for part in subtract(intersect(empty, claimed), rows):
            batch.ranges(owner, "empty", coverage.empty.add(part))


def retract(board: Board, market: Market, spans: Sequence[TimeRange], retracted_ns: int, batch: Batch) -> None:
    """Take coverage back, as the table of retractions already says; what is asked for next is fetched anew.

    Jobs on their way bring those ranges no more: what they have in hand was fetched before.
    """
    coverage, owner = board.coverage[market], market_owner(market)
    for span in spans:
        board.retractions[market].add(span, retracted_ns)
        batch.retraction(Retraction(market, span, retracted_ns))
        batch.ranges(owner, "covered", coverage.covered.remove(span))
        batch.ranges(owner, "empty", coverage.empty.remove(span))
    for job in board.jobs_of(market):
        in_hand = [*job.acked, *([job.sent] if job.sent else [])]
        stale = subtract(in_hand, subtract(in_hand, spans))
        for part in stale:
            batch.ranges(job_owner(job.number), "handled", job.handled.add(part))
            for kind in ("acked", "acked_empty", "refused"):
                batch.ranges(job_owner(job.number), kind, getattr(job, kind).remove(part))
        if stale and trim_job(board, job):
            batch.job(job)
