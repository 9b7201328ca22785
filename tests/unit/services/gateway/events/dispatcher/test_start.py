"""Garbage collection around the start: paused, then restored, with the built objects exempt."""

from __future__ import annotations

import gc

import pytest

from dexorder_gateway.events.dispatcher.start import collect_old_objects_rarely, collector_paused


def test_objects_built_in_the_block_are_exempt_from_collections() -> None:
    before = gc.get_freeze_count()
    try:
        with collector_paused():
            assert not gc.isenabled()
            built = [[number] for number in range(1_000)]
        assert gc.isenabled() and gc.get_freeze_count() >= before + len(built)
    finally:
        gc.unfreeze()


def test_collector_runs_again_after_a_failure() -> None:
    with pytest.raises(ValueError), collector_paused():
        raise ValueError
    assert gc.isenabled()


def test_full_collections_become_rare_and_young_ones_do_not() -> None:
    before = gc.get_threshold()
    try:
        collect_old_objects_rarely()
        assert gc.get_threshold()[:2] == before[:2] and gc.get_threshold()[2] == 1_000
    finally:
        gc.set_threshold(*before)
