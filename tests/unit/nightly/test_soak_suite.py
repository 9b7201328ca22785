"""What the soak takes for a leak of descriptors."""

from __future__ import annotations

import pytest

from tests.nightly.soak_suite import growth


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([], 0),
        ([40, 300, 480, 500, 510], 0),
        ([40, 300, 480, *[500, 510, 505] * 5], 0),
        ([40, 300, 480, 500, 505, 860, 510, 500, 505, 897, 510, 505], 0),
        ([40, 300, 480, *range(500, 650, 10)], 100),
    ],
    ids=["nothing", "a short life", "the start of a life", "processes that are forked", "a leak"],
)
def test_growth_of_descriptors_is_of_what_lasts(counts: list[int], expected: int) -> None:
    assert growth(counts) == pytest.approx(expected, abs=10)
