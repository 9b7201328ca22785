"""Failures of a job: the rule as a table, and jobs whose ingestors all die."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import RangeSet, TimeRange
from dexorder_relay.state.job import MAX_BACKOFF_NS, Job, RetryPolicy

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
