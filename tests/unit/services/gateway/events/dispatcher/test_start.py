"""The collector is left as it was, whatever happens, and what was built is out of its sight."""

from __future__ import annotations

import gc

import pytest

from services.gateway.events.dispatcher.start import collect_old_objects_rarely, collector_paused


def test_what_the_block_builds_is_not_looked_through_again() -> None:
    before = gc.get_freeze_count()
    try:
        with collector_paused():
            assert not gc.isenabled()
            built = [[number] for number in range(1_000)]
        assert gc.isenabled() and gc.get_freeze_count() >= before + len(built)
    finally:
        gc.unfreeze()


def test_a_failure_leaves_it_at_work() -> None:
    with pytest.raises(ValueError), collector_paused():
        raise ValueError
    assert gc.isenabled()


def test_all_is_looked_through_seldom_and_the_young_as_ever() -> None:
    before = gc.get_threshold()
    try:
        collect_old_objects_rarely()
        assert gc.get_threshold()[:2] == before[:2] and gc.get_threshold()[2] == 1_000
    finally:
        gc.set_threshold(*before)
