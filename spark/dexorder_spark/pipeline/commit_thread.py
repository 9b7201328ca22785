"""Thread that commits a batch while Spark decodes the next one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from dexorder_spark.pipeline.batch import DecodedBatch


class CommitThread:
    """Commits of decoded batches, one after the other. An error is raised by the next call, and ends the query."""

    def __init__(self, commit: Callable[[DecodedBatch], None]) -> None:
        self._commit = commit
        self._executor = ThreadPoolExecutor(1, "commit")
        self._last: Future[None] | None = None

    @property
    def is_idle(self) -> bool:
        """True if every batch is committed."""
        return self._last is None or (self._last.done() and self._last.exception() is None)

    @property
    def has_failed(self) -> bool:
        """True if a commit has failed."""
        return self._last is not None and self._last.done() and self._last.exception() is not None

    def wait(self) -> None:
        """Wait until the batch before is committed; raise its error."""
        if self._last is not None:
            self._last.result()

    def submit(self, batch: DecodedBatch) -> None:
        """Commit a batch in the thread; ``wait`` must have returned."""
        self._last = self._executor.submit(self._commit, batch)

    def close(self) -> None:
        """Wait for the running commit to end in any way, and forget it."""
        if self._last is not None:
            wait([self._last])
        self._last = None
