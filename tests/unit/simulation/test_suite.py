"""The whole suite under one clock and one seed, all parts of it at the same time."""

from __future__ import annotations

import pytest

from tests.simulation.events import EventsRun
from tests.simulation.run import Broken
from tests.simulation.suite import simulate

SEEDS = range(1)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_holds_and_trades_and_ends_of_requests_reach_a_user(seed: int) -> None:
    """The parts are joined: what one of them tells arrives at the end of the chain, whatever fails in any part."""
    story = simulate(seed).story
    received = [line for line in story if "ann's phone receives" in line]
    assert any("e-fired" in line for line in received)
    assert any("e-ready" in line for line in received)


@pytest.mark.nightly
def test_an_end_of_a_request_that_no_user_hears_of_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    has_reached = EventsRun._has_reached

    def lost(events: EventsRun, event_id: str) -> bool:
        return not event_id.startswith("e-ready") and has_reached(events, event_id)

    monkeypatch.setattr(EventsRun, "_has_reached", lost)
    with pytest.raises(Broken, match="e-ready"):
        simulate(0)
