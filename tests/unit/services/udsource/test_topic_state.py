"""A Kafka that stops in the middle: it takes connections and says nothing."""

from __future__ import annotations

import asyncio

import pytest

from services.common.model.errors import Unavailable
from services.udsource import topic_state
from services.udsource.config import UdsourceSettings
from services.udsource.topic_state import TopicMonitor, TopicState


async def test_health_does_not_wait_for_the_time_limits_of_its_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: asyncio.Queue[TopicState] = asyncio.Queue()
    watch = TopicMonitor(UdsourceSettings(socket=None, poll_seconds=0.01))
    monkeypatch.setattr(watch, "_fetch", answers.get)
    monkeypatch.setattr(topic_state, "HANGS_S", 0.1)
    answers.put_nowait(TopicState(ends={0: 1}))
    assert (await watch.look()).ends == {0: 1}
    with pytest.raises(Unavailable, match=r"no answer within 0\.1 s"):
        await watch.look()
    assert watch.failure is not None
    answers.put_nowait(TopicState(ends={0: 2}))  # the question was not given up: its late answer counts
    while not watch.ready:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert watch.state.ends == {0: 2}
    await watch.close()
