"""Topics that replays read: the topic of plain reads, and others, which the metadata ``x-topic`` names.

Nothing is opened for another topic before the first call that names it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from dexorder_common.model.errors import InvalidRequest
from dexorder_udsource.config import UdsourceSettings
from dexorder_udsource.replay_reader import ReplayPool
from dexorder_udsource.topic_monitor import TopicMonitor


@dataclass(frozen=True)
class ReplayTopic:
    """One topic: its state, and the consumers of its ranges."""

    monitor: TopicMonitor
    ranges: ReplayPool


class ReplayTopics:
    """All topics of one process."""

    def __init__(self, settings: UdsourceSettings, main: ReplayTopic) -> None:
        """Create the topics; ``main`` is the topic of plain reads."""
        self._settings = settings
        self._opened = {settings.topic: main}

    def of(self, name: str) -> ReplayTopic:
        """Return a topic by its name, the one of plain reads for an empty name; InvalidRequest if it is not served."""
        topic = self._opened.get(name or self._settings.topic)
        if topic is None:
            if name not in self._settings.further_topics:
                served = ", ".join([self._settings.topic, *self._settings.further_topics])
                raise InvalidRequest(f"metadata x-topic {name!r} is not one of the topics served: {served}")
            settings = self._settings.model_copy(update={"topic": name})
            monitor = TopicMonitor(settings, has_plain_reads=False)
            topic = self._opened[name] = ReplayTopic(monitor, ReplayPool(settings, monitor))
        return topic

    @property
    def active(self) -> int:
        """Ranges that are being read."""
        return sum(each.ranges.active for each in self._opened.values())

    def trim(self) -> None:
        """Close consumers that were not used for some time; call periodically."""
        for each in self._opened.values():
            each.ranges.trim()

    async def close(self) -> None:
        """Close everything; call when no range is being read."""
        topics = self._opened.values()
        await asyncio.gather(*(each.ranges.close(reachable=each.monitor.ready) for each in topics))
        await asyncio.gather(*(each.monitor.close() for each in topics))
