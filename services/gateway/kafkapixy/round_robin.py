"""Partitions in turn, for producers whose partitioner is ``roundrobin``. Pure."""

from __future__ import annotations

from collections.abc import Callable


class RoundRobin:
    """Each topic begins at partition 0.

    Args:
        partitions: How many a topic has, 0 for one that is not known.
    """

    def __init__(self, partitions: Callable[[str], int]) -> None:
        self._partitions = partitions
        self._last: dict[str, int] = {}

    def next(self, topic: str) -> int:
        """The partition of the topic's next record; -1, any, while it is not known how many there are."""
        count = self._partitions(topic)
        if count == 0:
            return -1
        self._last[topic] = (self._last.get(topic, -1) + 1) % count
        return self._last[topic]
