"""User events in virtual time: fixed seeds, a replay bit for bit, and a fault that is known."""

from __future__ import annotations

import pytest

from dexorder_gateway.events.ingress import unsent_acks
from tests.simulation import event_window, events, zmq_wires
from tests.simulation.run import Broken

SEEDS = range(72)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_promise_of_user_events_breaks(seed: int) -> None:
    story = events.simulate(seed).story
    assert any("delivers" in line for line in story) and any("receives" in line for line in story)


def test_a_seed_gives_the_same_story_again() -> None:
    assert events.simulate(7).story == events.simulate(7).story


def test_a_window_of_400_events_survives_a_gateway_that_stalls() -> None:
    event_window.simulate(0, in_flight=400)


@pytest.mark.parametrize("in_flight", [2_000, 8_000])
@pytest.mark.parametrize("seed", range(2))
def test_a_window_of_events_beyond_the_pipe_survives_a_gateway_that_stalls(seed: int, in_flight: int) -> None:
    event_window.simulate(seed, in_flight=in_flight)


def test_acks_that_the_pipe_does_not_take_would_be_missed_if_they_were_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsent_acks, "MAX_ACKS", 0)
    with pytest.raises(Broken, match="never answered"):
        event_window.simulate(0, in_flight=2_000)


def test_a_window_of_2_000_events_survives_if_the_pipe_takes_all_acks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipe's limit is what loses them, and nothing else of the model."""
    monkeypatch.setattr(zmq_wires, "SERVER_LIMIT", 100_000)
    event_window.simulate(0, in_flight=2_000)
