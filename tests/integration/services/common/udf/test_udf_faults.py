"""Short forms of the campaigns with UDFs: kills, and mutated frames in both directions."""

from __future__ import annotations

import pytest

from tests.nightly.udf_fuzz import fuzz
from tests.nightly.udf_kills import run


def test_kills_neither_lose_nor_double_nor_change_a_point() -> None:
    result = run(kills=4, seed=1)
    assert (result.lost, result.doubled, result.wrong) == (0, 0, 0)
    assert result.kills == 4 and result.points > 100


@pytest.mark.parametrize("host", [True, False])
def test_mutated_frames_are_refused_and_nothing_else(host: bool) -> None:
    result = fuzz(5_000, seed=1, host=host)
    assert result.streams // 2 < result.refused < result.streams
    assert result.grown_kib < 50 * 1024
