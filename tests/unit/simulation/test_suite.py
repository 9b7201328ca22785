"""The whole suite under one clock and one seed, all parts of it at the same time."""

from __future__ import annotations

import pytest

from tests.simulation.events import EventsRun
from tests.simulation.run import Broken, silence
from tests.simulation.suite import Suite, simulate

SEEDS = range(1, 4)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_holds_whatever_fails_in_any_part(seed: int) -> None:
    simulate(seed)


def test_a_recorded_trade_and_the_end_of_a_request_reach_a_user() -> None:
    """The parts are joined: what one of them tells arrives at the end of the chain. All promises hold here as well."""
    with silence():
        suite = Suite(0)
        suite.check()
        suite.run.loop.close()
    assert suite.recorded
    received = [line for line in suite.run.story if "ann's phone receives" in line]
    assert any("e-fired" in line for line in received)
    assert any("e-ready" in line for line in received)


def test_an_end_of_a_request_that_no_user_hears_of_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    has_reached = EventsRun._has_reached

    def lost(events: EventsRun, event_id: str) -> bool:
        return not event_id.startswith("e-ready") and has_reached(events, event_id)

    monkeypatch.setattr(EventsRun, "_has_reached", lost)
    with pytest.raises(Broken, match="e-ready"):
        simulate(0)
