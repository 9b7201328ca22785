"""A Kafka that accepts connections and does not answer."""

from __future__ import annotations

import asyncio

import pytest

from dexorder_common.model.errors import Unavailable
from dexorder_udsource import topic_monitor
from dexorder_udsource.config import UdsourceSettings
from dexorder_udsource.topic_monitor import TopicMonitor, TopicState


async def test_health_does_not_wait_for_the_timeouts_of_its_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: asyncio.Queue[TopicState] = asyncio.Queue()
    monitor = TopicMonitor(UdsourceSettings(socket=None, poll_seconds=0.01))
    monkeypatch.setattr(monitor, "_fetch", answers.get)
    monkeypatch.setattr(topic_monitor, "UNRESPONSIVE_S", 0.1)
    answers.put_nowait(TopicState(ends={0: 1}))
    assert (await monitor.probe()).ends == {0: 1}
    with pytest.raises(Unavailable, match=r"no answer within 0\.1 s"):
        await monitor.probe()
    assert monitor.failure is not None
    answers.put_nowait(TopicState(ends={0: 2}))  # the query was not cancelled: its late answer counts
    while not monitor.ready:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert monitor.state.ends == {0: 2}
    await monitor.close()


async def test_caller_may_limit_its_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: asyncio.Queue[TopicState] = asyncio.Queue()
    monitor = TopicMonitor(UdsourceSettings(socket=None))
    monkeypatch.setattr(monitor, "_fetch", answers.get)
    with pytest.raises(Unavailable, match=r"no answer within 0\.05 s"):
        await monitor.fresh(0, within_s=0.05)
    assert monitor.failure is None  # the query goes on, and decides
    answers.put_nowait(TopicState(ends={0: 1}))
    assert (await monitor.fresh(1.0)).ends == {0: 1}
    await monitor.close()
