"""Tests of the process lock; tests/integration/services/relay/store/test_sole_relay.py has the relay's error."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from dexorder_common.config import BadSettings
from dexorder_common.storage.process_lock import sole_owner

own = partial(sole_owner, variable="DEXORDER_RELAY_DB", owner="relay", harm="dispatch its jobs")


def test_lock_is_released_by_its_holder_and_not_by_a_refused_process(tmp_path: Path) -> None:
    db = tmp_path / "new" / "relay.db"
    for _ in range(2):
        with own(db):
            for _ in range(2):
                with pytest.raises(BadSettings, match="in use by another relay"), own(db):
                    pass


def test_error_in_the_block_is_not_reported_as_a_second_owner(tmp_path: Path) -> None:
    with pytest.raises(BlockingIOError), own(tmp_path / "relay.db"):
        raise BlockingIOError
