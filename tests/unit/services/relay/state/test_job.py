"""Failures of a job: the rule as a table, and jobs whose ingestors all die."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.model.history import FinalResult, FinalStatus
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import RangeSet, TimeRange, subtract
from dexorder_relay.state.job import MAX_BACKOFF_NS, Job, Phase, RetryPolicy
from tests.fakes.pages import dispatch_id

SECOND_NS = 1_000_000_000
SPAN = TimeRange(0, 10)


def count_failures(failures_in_a_row: int, *, made_progress: bool) -> int:
    """Return a job's failures in a row after one more lost dispatch."""
    acked = RangeSet([TimeRange(0, 5)] if made_progress else [])
    job = Job(1, "r", "", Series("BTC/USDT.SIM", 60), SPAN, failures_in_a_row=failures_in_a_row, sent=SPAN, acked=acked)
    assert job.made_progress(RangeSet()) == made_progress
    job.lose("x", RangeSet(), RetryPolicy(10**9, 0))
    assert (job.failures_in_a_row == 0) == made_progress
    return job.failures_in_a_row


@pytest.mark.parametrize(
    ("attempts", "counted"),
    [
        ("", 0),
        ("-", 1),
        ("+", 0),
        ("-----", 5),
        ("+++++", 0),
        ("----+----", 4),  # eight that brought nothing, but never five in a row
        ("+-----", 5),
        ("-----+", 0),
    ],
)
def test_only_attempts_in_a_row_that_brought_nothing_count(attempts: str, counted: int) -> None:
    failures_in_a_row = 0
    for each in attempts:
        failures_in_a_row = count_failures(failures_in_a_row, made_progress=each == "+")
    assert failures_in_a_row == counted


@pytest.mark.parametrize(
    ("failures_in_a_row", "wait_seconds", "ends"),
    [(0, 0, False), (1, 1, False), (2, 2, False), (4, 8, False), (5, 16, True), (6, 30, True), (5_000, 30, True)],
)
def test_each_of_them_is_followed_by_a_longer_wait(failures_in_a_row: int, wait_seconds: int, ends: bool) -> None:
    retry_policy = RetryPolicy(5, SECOND_NS)
    assert (retry_policy.wait_ns(failures_in_a_row), retry_policy.gives_up(failures_in_a_row)) == (
        wait_seconds * SECOND_NS,
        ends,
    )
    assert RetryPolicy(5, MAX_BACKOFF_NS).wait_ns(failures_in_a_row) in (0, MAX_BACKOFF_NS)


@given(most=st.integers(1, 6), deaths=st.lists(st.booleans()), pages=st.integers(0, 8))
def test_a_job_that_never_gets_through_ends_after_a_bounded_number_of_attempts(
    most: int, deaths: Sequence[bool], pages: int
) -> None:
    """``deaths`` has for each attempt whether it reports a page first; the number of pages is limited."""
    retry_policy, failures_in_a_row, attempts, left = RetryPolicy(most, 0), 0, 0, pages
    for brings in [*deaths, *[False] * most]:
        attempts += 1
        made_progress = brings and left > 0
        left -= made_progress
        failures_in_a_row = count_failures(failures_in_a_row, made_progress=made_progress)
        if retry_policy.gives_up(failures_in_a_row):
            break
    assert retry_policy.gives_up(failures_in_a_row) and attempts <= (pages + 1) * most


def new_job() -> Job:
    return Job(1, "r", "", Series("BTC/USDT.SIM", 60), SPAN)


def test_a_new_job_has_counted_nothing_and_the_numbers_of_phases_are_those_of_the_database() -> None:
    job = new_job()
    assert (job.failures_in_a_row, job.calls, job.earlier_calls, job.row_count, job.taken_ns) == (0, 0, 0, 0, 0)
    assert [(each.name, each.value) for each in Phase] == [("OPEN", 1), ("SETTLED", 2), ("ENDED", 3)]


@pytest.mark.parametrize(
    ("final", "left", "phase", "error"),
    [
        (FinalResult("d", FinalStatus.OK), [], Phase.ENDED, ""),
        (FinalResult("d", FinalStatus.OK), [TimeRange(5, 10)], Phase.OPEN, ""),
        (FinalResult("d", FinalStatus.ERROR, "banned"), [TimeRange(5, 10)], Phase.ENDED, "banned"),
        (FinalResult("d", FinalStatus.ERROR), [], Phase.ENDED, "the ingestor gave no reason"),
    ],
)
def test_a_final_record_ends_the_dispatch_and_the_job_if_nothing_is_left_or_it_failed(
    final: FinalResult, left: list[TimeRange], phase: Phase, error: str
) -> None:
    job = new_job()
    for number in (7, 9):
        job.assign(dispatch_id(number), RangeSet())
        assert (job.first_dispatch, job.sent) == (7, SPAN)
    job.failures_in_a_row, job.calls, job.produced = 2, 5, True
    job.finish(final, RangeSet(subtract([SPAN], left)))
    assert (job.phase, job.error, job.failures_in_a_row, job.earlier_calls) == (phase, error, 0, 5)
    assert (job.dispatch_id, job.sent, job.produced, job.row_count) == (None, None, False, 0)
    assert job.to_fetch(RangeSet(subtract([SPAN], left))) == left
