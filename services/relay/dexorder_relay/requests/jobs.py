"""Jobs of history at the dispatcher, and the reports of ingestors and pipeline about them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dexorder_common.model.history import Delay, Dispatch, FinalResult, PageResult
from dexorder_common.model.time_range import TimeRange
from dexorder_relay.requests.completion import Completion
from dexorder_relay.requests.context import Context
from dexorder_relay.state import dispatches
from dexorder_relay.state.changes import Changes
from dexorder_relay.state.job import Phase
from dexorder_relay.state.leases import Assignment, Loss


class HistoryJobs:
    """Applies events of dispatches of history; a `JobOwner`."""

    def __init__(self, context: Context, completion: Completion) -> None:
        """Look for requests to end whenever a job may be over."""
        self._context = context
        self._completion = completion
        self.reported_ns = context.clock.monotonic_ns()
        """Monotonic time of the pipeline's last report, or of the start."""

    def owns(self, job: int) -> bool:
        """Return whether this is a job of history."""
        return job in self._context.state.jobs

    def assign(self, assignment: Assignment, changes: Changes) -> Dispatch:
        """Start a dispatch."""
        clock = self._context.clock
        return dispatches.begin(
            self._context.state, assignment, changes, wall_ns=clock.wall_ns(), now_ns=clock.monotonic_ns()
        )

    def sent(self, assignment: Assignment) -> None:
        """Notify the watching clients."""
        self._context.changed(self._context.state.jobs[assignment.job].requests)

    def unsent(self, assignment: Assignment, changes: Changes) -> None:
        """Queue the job again."""
        dispatches.unsent(self._context.state, assignment, changes)

    def complete(self, dispatch_id: str, changes: Changes) -> None:
        """Record that Kafka has the final record."""
        dispatches.produced(self._context.state, dispatch_id, changes)

    def lose(self, dispatch_id: str, reason: str, changes: Changes, *, rejected_by: bytes | None = None) -> Loss:
        """Take back a dispatch."""
        context = self._context
        state = context.state
        job = state.current_job(dispatch_id)
        assert job is not None
        made_progress = job.made_progress(state.settled(job))
        dispatches.lose(
            state, dispatch_id, reason, changes, now_ns=context.clock.monotonic_ns(), rejected_by=rejected_by
        )
        context.changed(job.requests)
        return Loss(job.series.exchange, made_progress, job.phase is Phase.ENDED)

    def heard(self, dispatch_id: str, identity: bytes) -> None:
        """Do nothing: the sender of the heartbeat may have reconnected."""

    def take_stops(self) -> list[tuple[bytes, str]]:
        """Return an empty list: a dispatch of history ends by itself."""
        return []

    def ended(self) -> None:
        """End requests if all their jobs are over."""
        self._completion.check_ready()

    async def report_page(self, dispatch_id: str, span: TimeRange, empty: Sequence[TimeRange], calls: int = 0) -> bool:
        """Record a page that Kafka has acknowledged, and the dispatch's calls of the exchange up to it.

        Returns:
            Whether the dispatch is current.
        """
        context, changes = self._context, Changes()
        job = dispatches.page(context.state, dispatch_id, span, empty, changes, now_ns=context.clock.monotonic_ns())
        if job is None:
            return False
        job.calls = job.earlier_calls + calls
        context.changed(job.requests)
        await context.store.commit(changes)
        return True

    def report_delay(self, dispatch_id: str, delay: Delay | None) -> bool:
        """Keep the delay of a dispatch for watching clients; return whether the dispatch is current."""
        job = self._context.state.current_job(dispatch_id)
        if job is None:
            return False
        if job.delay != delay:
            job.delay = delay
            self._context.changed(job.requests)
        return True

    def _touched(self, pages: Iterable[PageResult], finals: Iterable[FinalResult]) -> set[str]:
        """Return the requests of the series of pages, and the requests that wait for the jobs of final records."""
        state, touched = self._context.state, set[str]()
        landed = {page.series for page in pages}
        touched.update(r for r, live in state.requests.items() if live.request.series in landed)
        for final in finals:
            if (job := state.job_of(final.dispatch_id)) is not None:
                touched |= job.requests
        return touched

    async def report_jobs(self, pages: Sequence[PageResult], finals: Sequence[FinalResult]) -> None:
        """Apply a micro-changes of the pipeline; on disk when this returns. Outcomes of requests follow later."""
        context, changes = self._context, Changes()
        self.reported_ns = context.clock.monotonic_ns()
        wall_ns = context.clock.wall_ns()
        dispatches.report(context.state, pages, finals, changes, wall_ns=wall_ns, now_ns=self.reported_ns)
        context.changed(self._touched(pages, finals))
        await context.store.commit(changes)
        context.wake.set()  # a final may have left another range of its job to fetch
        self._completion.check_ready()
