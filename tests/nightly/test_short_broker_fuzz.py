"""Shortened fuzz campaign of `tests/nightly/test_broker_campaign.py`, without its latencies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nightly import broker_campaign

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]


def test_invalid_frames_disturb_no_valid_job(tmp_path: Path) -> None:
    seen = broker_campaign.run(tmp_path, frames=2_000, rate=2_000, rounds=1)
    assert seen.requests and seen.quiet and seen.fuzzed and not seen.bad
    assert seen.dropped.keys() >= {"version", "type", "undecodable", "frame_count", "not_current", "exchange"}
