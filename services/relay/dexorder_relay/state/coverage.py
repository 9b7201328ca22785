"""Coverage of each series: claimed by pages, taken back by retractions. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from dexorder_common.lake.coverage import Claim, Order, Retraction
from dexorder_common.model.instrument import Series
from dexorder_common.model.proof import proofs_of, provisional_ranges
from dexorder_common.model.time_range import RangeSet, TimeRange, intersect, subtract
from dexorder_relay.state.changes import AbsencesChanged, Changes, RangesChanged, ValueStored
from dexorder_relay.state.history import HistoryState
from dexorder_relay.state.job import Job


def cover(
    state: HistoryState, series: Series, span: TimeRange, empty: Iterable[TimeRange], order: Order, changes: Changes
) -> None:
    """Add a page with rows in the table, without the parts that were retracted since its dispatch.

    A period is empty only if every page says so: where one has counted a row, the table has it. Provisional ranges in
    which candles turned up are kept as found until they are announced. A dataset that is not covered is taken
    again by every request.
    """
    if not series.dataset.is_covered:
        return
    coverage, empty = state.coverage[series], tuple(empty)
    for claimed in state.retractions[series].claimed(span, order):
        rows = subtract(coverage.covered.within(claimed), coverage.empty.within(claimed))
        changes.append(RangesChanged(series, "covered", coverage.covered.add(claimed)))
        for part in subtract([claimed], empty):
            # including parts where coverage was retracted since
            turned_up = subtract(state.provisional.within(series, part), rows)
            for found in turned_up:
                changes.append(RangesChanged(series, "found", coverage.found.add(found)))
            changes.append(AbsencesChanged(series, state.provisional.remove(series, turned_up)))
            changes.append(RangesChanged(series, "empty", coverage.empty.remove(part)))
        for part in subtract(intersect(empty, claimed), rows):
            changes.append(RangesChanged(series, "empty", coverage.empty.add(part)))


def note_absences(
    state: HistoryState,
    series: Series,
    empty: Iterable[TimeRange],
    provisional: Iterable[TimeRange],
    changes: Changes,
    *,
    now_ns: int,
    since_ns: int | None = None,
) -> None:
    """Note which of the empty ranges of a page that coverage has are provisional, and that the others are final.

    Args:
        now_ns: Wall clock time.
        since_ns: Time at which the exchange was asked; the present by default.
    """
    absent = [part for each in empty for part in state.coverage[series].empty.within(each)]
    final = subtract(absent, provisional)
    changes.append(AbsencesChanged(series, state.provisional.remove(series, final)))
    young = subtract(absent, final)
    changes.append(AbsencesChanged(series, state.provisional.add(series, young, now_ns=now_ns, since_ns=since_ns)))


def note_claims(
    state: HistoryState, claims: Iterable[tuple[Claim, Sequence[TimeRange]]], changes: Changes, *, now_ns: int
) -> None:
    """Note the provisional absences of claims that were read from their table and are new to the state.

    The last claim of a range decides. One that is older than the last of its queries would be is final.

    Args:
        claims: Each with the part of its range that was not covered before it was read.
        now_ns: Wall clock time.
    """
    decided: defaultdict[Series, RangeSet] = defaultdict(RangeSet)
    for claim, unknown in sorted(claims, key=lambda each: each[0].order, reverse=True):
        parts = [part for each in unknown for part in decided[claim.series].holes(each)]
        for part in parts:
            decided[claim.series].add(part)
        empty = [each for part in parts for each in intersect(claim.empty, part)]
        proofs = proofs_of(claim.evidence)
        since_ns = min([claim.fetched_ns, *(proof.first_ns for proof in proofs)])
        if empty and state.provisional.is_open(since_ns, now_ns=now_ns):
            young = provisional_ranges(proofs, empty)
            note_absences(state, claim.series, empty, young, changes, now_ns=now_ns, since_ns=since_ns)


def retract(state: HistoryState, series: Series, spans: Sequence[TimeRange], order: Order, changes: Changes) -> None:
    """Take back coverage that the retraction table already lists, so that later requests fetch it again.

    Candles that turned up there and are not announced yet are announced once they have been fetched again.
    Jobs with a dispatch do not bring these ranges: the dispatch is earlier than the retraction.
    """
    coverage = state.coverage[series]
    for span in spans:
        state.retractions[series].add(span, order)
        changes.append(ValueStored(Retraction(series, span, order)))
        rows = subtract(coverage.covered.within(span), coverage.empty.within(span))
        # between absences of a thin market
        changes.append(AbsencesChanged(series, state.provisional.remove(series, rows)))
        changes.append(RangesChanged(series, "covered", coverage.covered.remove(span)))
        changes.append(RangesChanged(series, "empty", coverage.empty.remove(span)))
        turned_up = coverage.found.within(span)
        changes.append(RangesChanged(series, "found", coverage.found.remove(span)))
        changes.append(AbsencesChanged(series, state.provisional.add(series, turned_up, now_ns=order.time_ns)))
    for job in state.jobs_of(series):
        fetched = [*job.acked, *([job.sent] if job.sent else [])]
        for part in subtract(fetched, subtract(fetched, spans)):
            changes.append(RangesChanged(job.id, "handled", job.handled.add(part)))
            for kind in ("acked", "acked_empty", "refused"):
                changes.append(RangesChanged(job.id, kind, getattr(job, kind).remove(part)))


def replace(state: HistoryState, job: Job, spans: Sequence[TimeRange], order: Order, changes: Changes) -> None:
    """Take back older claims of ranges in which a refresh has found no candle, which are empty by its own pages.

    The retraction table lists the ranges already. Coverage counts throughout; the absence is queried again, because an
    exchange that fails to return a candle for a while must not cost a row.
    """
    coverage = state.coverage[job.series]
    for span in spans:
        state.retractions[job.series].add(span, order)
        changes.append(ValueStored(Retraction(job.series, span, order)))
    gone = state.vanished(job) if job.id in state.jobs else []  # a job that has ended misses newer pages
    for part in (common for each in gone for common in intersect(spans, each)):
        changes.append(RangesChanged(job.series, "empty", coverage.empty.add(part)))
        changes.append(AbsencesChanged(job.series, state.provisional.add(job.series, [part], now_ns=order.time_ns)))


def settle_jobs(state: HistoryState, changes: Changes) -> None:
    """Settle every queued job with its whole range fetched, after coverage that did not come from a report."""
    for job in state.jobs.values():
        if settle_job(state, job):
            changes.append(ValueStored(job))


def settle_job(state: HistoryState, job: Job) -> bool:
    """Settle a job without a dispatch if its whole range is fetched; return whether it was settled now."""
    if not job.settle(state.settled(job)):
        return False
    state.leases.remove(job.id)
    return True
