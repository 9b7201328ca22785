"""How often a job is attempted before it is given up. Pure.

An attempt is a dispatch that ended without a result. Of an ingestor's work the relay sees pages alone, told by the
ingestor once Kafka has them or by the pipeline once they are committed; so an attempt brought something when part of
what it was sent for is settled by the time it ends. What was verified and not yet in Kafka is gone with the ingestor,
and a heartbeat says only that it lives. An attempt that brought something leaves less to fetch, so a job of which
those alone are forgiven comes to an end; one that kills every ingestor at the same page is given up there.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_BACKOFF_NS = 30_000_000_000


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How much is borne of a job.

    Attributes:
        most_attempts: As many in a row that brought nothing, and it is given up.
        backoff_ns: Wait after the first of them; doubles with each further one.
    """

    max_attempts: int
    backoff_ns: int

    def ends(self, failures_in_a_row: int) -> bool:
        """Whether a job is given up after so many attempts in a row."""
        return failures_in_a_row >= self.max_attempts

    def wait_ns(self, failures_in_a_row: int) -> int:
        """How long it waits after them; not at all after an attempt that brought something."""
        return min(self.backoff_ns << min(failures_in_a_row - 1, 10), MOST_BACKOFF_NS) if failures_in_a_row else 0


def count_failures(failures_in_a_row: int, *, made_progress: bool) -> int:
    """Attempts in a row that brought nothing, after one more."""
    return 0 if made_progress else failures_in_a_row + 1
