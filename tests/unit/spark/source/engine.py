"""The order in which Spark 4.1 asks a stream's planner, without Spark: its logs, its triggers, its crashes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dexorder_spark.source.options import SourceOptions
from dexorder_spark.source.udsource import UdStreamReader, read_partition

Row = dict[str, Any]


class Crash(Exception):
    """The process is gone."""


@dataclass
class Checkpoint:
    """Offset log, and the part of it that is in the commit log."""

    offsets: list[dict[str, Any]] = field(default_factory=list)
    committed: int = 0


class Engine:
    """One run of a query; ``poll`` is one look of its trigger. ``available_now``: with Spark's wrapper for it."""

    def __init__(
        self,
        options: SourceOptions,
        checkpoint: Checkpoint,
        sink: Callable[[list[Row]], object],
        *,
        available_now: bool = False,
        on_committed: Callable[[list[Row]], object] = lambda rows: None,
    ) -> None:
        self.reader = UdStreamReader(options)
        self._options = options
        self._checkpoint = checkpoint
        self._sink = sink
        self._on_committed = on_committed
        self._fixed = self.reader.latestOffset() if available_now else None
        if not checkpoint.offsets:
            return
        self.reader.partitions(checkpoint.offsets[-1], checkpoint.offsets[-1])
        if checkpoint.committed < len(checkpoint.offsets):
            self._run()

    def poll(self, crash: str = "") -> bool:
        """Whether there was a batch.

        Args:
            crash: "planning", "sink" or "commit": what the process does not come to any more.
        """
        offsets = self._checkpoint.offsets
        if self._fixed is None:
            end = self.reader.latestOffset()
        else:
            if not offsets:
                self.reader.initialOffset()
            end = self._fixed
            self.reader.latestOffset()  # for metrics
        if offsets and end == offsets[-1]:
            return False
        offsets.append(end)
        if len(offsets) > 1:
            self.reader.commit(offsets[-2])
        self._run(crash)
        return True

    def run_to_idle(self) -> int:
        """Return the number of batches until there are no new records, which ends Trigger.AvailableNow."""
        batches = 0
        while self.poll():
            batches += 1
        return batches

    def _run(self, crash: str = "") -> None:
        offsets = self._checkpoint.offsets
        start = offsets[-2] if len(offsets) > 1 else self.reader.initialOffset()
        if crash == "planning":
            raise Crash
        parts = self.reader.partitions(start, offsets[-1])
        rows = [row for part in parts for batch in read_partition(self._options, part) for row in batch.to_pylist()]
        if crash == "sink":
            raise Crash
        self._sink(rows)
        if crash == "commit":
            raise Crash
        self._checkpoint.committed = len(offsets)
        self._on_committed(rows)
