"""Shortened campaigns of `tests/nightly/test_udf_campaign.py`."""

from __future__ import annotations

import pytest

from tests.nightly.udf_fuzz import fuzz
from tests.nightly.udf_kills import run

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]


def test_kills_lose_and_double_nothing() -> None:
    result = run(kills=100, seed=2)
    assert (result.lost, result.doubled, result.wrong) == (0, 0, 0)


@pytest.mark.parametrize("host", [True, False])
def test_mutated_frames_crash_nothing(host: bool) -> None:
    assert fuzz(200_000, seed=2, host=host).grown_kib < 100 * 1024
