"""When a job is given up: the rule by table, and lives of jobs whose ingestors all die."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.relay.broker.retry_policy import MOST_BACKOFF_NS, Patience, in_a_row

SECOND_NS = 1_000_000_000


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
    fruitless = 0
    for each in attempts:
        fruitless = in_a_row(fruitless, brought=each == "+")
    assert fruitless == counted


@pytest.mark.parametrize(
    ("fruitless", "wait_seconds", "ends"),
    [(0, 0, False), (1, 1, False), (2, 2, False), (4, 8, False), (5, 16, True), (6, 30, True), (5_000, 30, True)],
)
def test_each_of_them_is_followed_by_a_longer_wait(fruitless: int, wait_seconds: int, ends: bool) -> None:
    patience = Patience(5, SECOND_NS)
    assert (patience.wait_ns(fruitless), patience.ends(fruitless)) == (wait_seconds * SECOND_NS, ends)
    assert Patience(5, MOST_BACKOFF_NS).wait_ns(fruitless) in (0, MOST_BACKOFF_NS)


@given(most=st.integers(1, 6), deaths=st.lists(st.booleans()), pages=st.integers(0, 8))
def test_a_job_that_never_gets_through_ends_after_a_bounded_number_of_attempts(
    most: int, deaths: Sequence[bool], pages: int
) -> None:
    """``deaths`` says of each attempt whether it brings a page first; there are only so many pages."""
    patience, fruitless, attempts, left = Patience(most, 0), 0, 0, pages
    for brings in [*deaths, *[False] * most]:
        attempts += 1
        brought = brings and left > 0
        left -= brought
        fruitless = in_a_row(fruitless, brought=brought)
        if patience.ends(fruitless):
            break
    assert patience.ends(fruitless) and attempts <= (pages + 1) * most
