"""The realtime chain in simulated time: profiles of faults under which every promise holds, and the replay of a run."""

from __future__ import annotations

from tests.simulation.realtime import RealtimeProfile, RealtimeStory

HONEST = RealtimeProfile("honest exchange", seconds=3_600.0)


def test_an_hour_of_an_honest_exchange_is_recorded_as_it_was() -> None:
    story = RealtimeStory(1, HONEST)
    assert story.play() == []
    assert len(story.storage.tables.trades["BTC/USDT.SIM"]) > 100
    assert len(story.storage.tables.candles) > 50
    assert any("dispatch" in line for line in story.run.story)


def test_one_seed_has_one_story() -> None:
    first, second = (RealtimeStory(7, RealtimeProfile("replay", seconds=900.0, lost_calls=0.05)) for _ in range(2))
    assert first.play() == second.play()
    assert first.run.story == second.run.story
    assert first.run.loop.steps == second.run.loop.steps
    records = ([(each.time_ns, each.headers.span) for each in story.storage.records] for story in (first, second))
    assert next(records) == next(records)
