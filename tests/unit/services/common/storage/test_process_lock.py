"""Tests of the process lock; tests/integration/services/relay/store/test_sole_relay.py has the relay's error."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from services.common.config import BadSettings
from services.common.storage.process_lock import sole_owner

own = partial(sole_owner, variable="DEXORDER_RELAY_DB", owner="relay", harm="dispatch its jobs")


def test_lock_is_free_again_after_its_holder_and_stays_after_a_refusal(tmp_path: Path) -> None:
    db = tmp_path / "new" / "relay.db"
    for _ in range(2):
        with own(db):
            for _ in range(2):
                with pytest.raises(BadSettings, match="in use by another relay"), own(db):
                    pass


def test_failure_inside_is_not_taken_for_a_second_relay(tmp_path: Path) -> None:
    with pytest.raises(BlockingIOError), own(tmp_path / "relay.db"):
        raise BlockingIOError
