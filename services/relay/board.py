"""Everything the relay knows, and the rules that join it: requests, their jobs, coverage. Pure; no I/O, time passed in.

Every method that changes what must survive adds statements to the batch it is given; the caller makes the batch durable
before it lets anyone outside see the change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from services.common.errors import InvalidRequest
from services.common.market import MAX_TIME_NS, TimeRange, count_periods, intersect, subtract, total_periods
from services.common.ranges import RangeSet
from services.common.retractions import Retractions
from services.relay import planning
from services.relay.attempts import Patience, in_a_row
from services.relay.dispatch import Assign, Dispatcher
from services.relay.jobs import Job, LiveRequest, Lost, Phase
from services.relay.model import (
    Dispatch,
    FinalResult,
    FinalStatus,
    Market,
    PageResult,
    Progress,
    Retraction,
    State,
    Submission,
)
from services.relay.schema import Batch, job_owner, market_owner


@dataclass(slots=True)
class Coverage:
    """What a market has in the table: committed ranges, and the verified-empty part of them."""

    covered: RangeSet = field(default_factory=RangeSet)
    empty: RangeSet = field(default_factory=RangeSet)


class Board:
    """The one owner of requests, jobs and coverage; single-threaded."""

    def __init__(self, dispatcher: Dispatcher, patience: Patience, *, job_periods: int, page_periods: int) -> None:
        self.dispatcher = dispatcher
        self._patience = patience
        self.requests: dict[str, LiveRequest] = {}
        self.jobs: dict[int, Job] = {}
        self.coverage: defaultdict[Market, Coverage] = defaultdict(Coverage)
        self.retractions: defaultdict[Market, Retractions] = defaultdict(Retractions)
        self.snapshot_id: int | None = None
        self.next_job = 1
        self._by_job_id: dict[str, int] = {}
        self._by_market: defaultdict[Market, dict[int, Job]] = defaultdict(dict)
        self._job_periods, self._page_periods = job_periods, page_periods

    # ---- requests --------------------------------------------------------------------------------------------------

    def accept(self, submission: Submission, batch: Batch, *, wall_ns: int, now_ns: int) -> LiveRequest:
        """Take a checked request on and plan it."""
        start_ns, end_ns, period = submission.start_ns, submission.end_ns, submission.period_seconds
        planned_end_ns = (
            end_ns if submission.limit is None else planning.wave_end(start_ns, end_ns, period, submission.limit)
        )
        request = LiveRequest(submission, wall_ns, planned_end_ns, now_ns)
        self.requests[submission.request_id] = request
        batch.accept(request)
        self.plan(request, request.planned, batch)
        return request

    def widen(self, request: LiveRequest, lacking_candles: int, batch: Batch, *, now_ns: int) -> None:
        """Plan the next wave of a request with a limit: as much again as so far, or what it lacks if that is more."""
        period = request.submission.period_seconds
        periods = max(lacking_candles, count_periods(request.planned, period))
        end_ns = planning.wave_end(request.planned_end_ns, request.submission.end_ns, period, periods)
        wave = TimeRange(request.planned_end_ns, end_ns)
        request.planned_end_ns, request.progress_ns = end_ns, now_ns
        batch.request(request)
        self.plan(request, wave, batch)

    def plan(self, request: LiveRequest, span: TimeRange, batch: Batch) -> None:
        """Attach the request to jobs in flight and make jobs for the rest of ``span``."""
        market = request.submission.market
        covered = self.coverage[market].covered
        near = ((number, job) for number, job in self._by_market[market].items() if job.span.overlaps(span))
        in_flight = {number: job.will_bring(covered) for number, job in near}
        made = planning.plan(
            span, market.period_seconds, covered=covered.within(span), in_flight=in_flight,
            most_periods=self._job_periods,
        )  # fmt: skip
        for number in made.attach:
            self._attach(request, self.jobs[number], batch)
        for part in made.new:
            job = Job(self.next_job, request.submission.request_id, request.submission.client_id, market, part)
            self.next_job += 1
            batch.job(job)
            self.add_job(job)
            self.dispatcher.queue(job.number, market.exchange)
            self._attach(request, job, batch)

    def _attach(self, request: LiveRequest, job: Job, batch: Batch) -> None:
        job.requests.add(request.submission.request_id)
        request.jobs.add(job.number)
        batch.attach(request.submission.request_id, job.number)
        if job.job_ids and request.state is State.QUEUED:
            request.state = State.RUNNING
            batch.request(request)

    def add_job(self, job: Job) -> None:
        """Put a job on the board; new, or read back at start."""
        self.jobs[job.number] = job
        self._by_market[job.market][job.number] = job
        self._by_job_id.update(dict.fromkeys(job.job_ids, job.number))

    def leave(self, request: LiveRequest, batch: Batch) -> None:
        """Take an ended request off the board; jobs nobody else waits for are fenced and forgotten."""
        request_id = request.submission.request_id
        del self.requests[request_id]
        for number in request.jobs:
            job = self.jobs[number]
            job.requests.discard(request_id)
            if not job.requests:
                self._forget(job, batch)

    def _forget(self, job: Job, batch: Batch) -> None:
        self.dispatcher.remove(job.number)
        del self.jobs[job.number]
        self._by_market[job.market].pop(job.number)
        for job_id in job.job_ids:
            del self._by_job_id[job_id]
        batch.forget(job.number)

    # ---- dispatches ------------------------------------------------------------------------------------------------

    def assign(self, batch: Batch, *, now_ns: int) -> list[tuple[Assign, Dispatch]]:
        """Give queued jobs to free slots; the batch must be on disk before anything is sent."""
        made = []
        for assign in self.dispatcher.assign(now_ns=now_ns):
            job = self.jobs[assign.job]
            # in time order, one contiguous range a dispatch; a further one goes out after this one's final
            job.sent = job.to_fetch(self.coverage[job.market].covered)[0]
            job.job_id, job.produced = assign.job_id, False
            job.job_ids[assign.job_id] = self.retractions[job.market].latest_ns
            self._by_job_id[assign.job_id] = job.number
            batch.dispatch(job)
            for request in self._requests_of(job):
                request.progress_ns = now_ns
                if request.state is State.QUEUED:
                    request.state = State.RUNNING
                    batch.request(request)
            made.append((assign, Dispatch(assign.job_id, job.request_id, job.market, job.sent, job.client_id)))
        return made

    def unsent(self, assign: Assign, batch: Batch) -> None:
        """A dispatch whose ingestor could not be reached: back to the front, no attempt counted."""
        if self.dispatcher.job_of(assign.job_id) == assign.job:
            self.dispatcher.requeue(assign.job)
            self._back(self.jobs[assign.job], batch)

    def produced(self, job_id: str, batch: Batch) -> bool:
        """The ingestor says that Kafka has the final record; whether the dispatch is current."""
        number = self.dispatcher.complete(job_id)
        if number is None:
            return False
        self.jobs[number].produced = True
        batch.job(self.jobs[number])
        return True

    def lose(
        self, job_id: str, reason: str, batch: Batch, *, now_ns: int, rejected_by: bytes | None = None
    ) -> Lost | None:
        """Take back a dispatch that ends without a result; None when it is not current."""
        number = self.dispatcher.job_of(job_id)
        if number is None:
            return None
        job = self.jobs[number]
        brought = job.brought(self.coverage[job.market].covered)
        job.fruitless = in_a_row(job.fruitless, brought=brought)
        dead = self._patience.ends(job.fruitless)
        if dead:
            self.dispatcher.remove(number)
            job.phase = Phase.ENDED
            job.error = f"given up after {job.fruitless} attempts in a row without a page, the last because {reason}"
        else:
            not_before_ns = now_ns + self._patience.wait_ns(job.fruitless)
            self.dispatcher.requeue(number, not_before_ns=not_before_ns, rejected_by=rejected_by)
        self._back(job, batch)
        return Lost(job, brought, dead)

    def _back(self, job: Job, batch: Batch) -> None:
        job.job_id, job.produced, job.sent = None, False, None
        for part in subtract(job.refused, job.acked):  # never reported, so the next dispatch fetches it again
            batch.ranges(job_owner(job.number), "refused", job.refused.remove(part))
        self._trim(job)
        batch.job(job)

    def _trim(self, job: Job) -> bool:
        """Stop a job without a dispatch that has nothing left to fetch; its pages are all in Kafka or committed."""
        if job.phase is Phase.OPEN and job.job_id is None and not job.to_fetch(self.coverage[job.market].covered):
            self.dispatcher.remove(job.number)
            job.phase = Phase.SETTLED
            return True
        return False

    def trim(self, batch: Batch) -> None:
        """Stop every queued job that has nothing left to fetch; after coverage came from elsewhere than a report."""
        for job in self.jobs.values():
            if self._trim(job):
                batch.job(job)

    # ---- reports ---------------------------------------------------------------------------------------------------

    def page(
        self, job_id: str, span: TimeRange, empty: Iterable[TimeRange], batch: Batch, *, now_ns: int
    ) -> Job | None:
        """A page that Kafka has acknowledged; the job, or None when the dispatch is not current.

        Raises:
            InvalidRequest: The page reaches beyond what the dispatch was asked for.
        """
        number = self.dispatcher.job_of(job_id)
        if number is None:
            return None
        job = self.jobs[number]
        if job.sent is None or not job.sent.contains(span):
            raise InvalidRequest(f"page {span} is not inside the range {job.sent} of job {job_id!r}")
        self.dispatcher.renew(job_id, now_ns=now_ns)
        for wanted in subtract([span], job.handled):  # not what was taken back since the dispatch
            batch.ranges(job_owner(number), "acked", job.acked.add(wanted))
            for part in intersect(empty, wanted):
                batch.ranges(job_owner(number), "acked_empty", job.acked_empty.add(part))
        for request in self._requests_of(job):
            request.progress_ns = now_ns
        return job

    def report(
        self,
        snapshot_id: int | None,
        pages: Iterable[PageResult],
        finals: Iterable[FinalResult],
        batch: Batch,
        *,
        now_ns: int,
    ) -> None:
        """What the pipeline committed: pages become coverage whoever fetched them, finals end current dispatches."""
        if snapshot_id is not None and snapshot_id != self.snapshot_id:
            self.snapshot_id = snapshot_id
            batch.snapshot(snapshot_id)
        landed: defaultdict[Market, list[TimeRange]] = defaultdict(list)
        for page in pages:
            landed[page.market].append(page.span)
            if page.refused is None:
                fetched_ns = max(page.fetched_ns, self._dispatched_ns(page.job_id))
                self.cover(page.market, page.span, page.empty, fetched_ns, batch)
            else:
                self._refuse(page, batch)
        for request in self.requests.values():
            if any(map(request.planned.intersect, landed.get(request.submission.market, ()))):
                request.progress_ns = now_ns
        for final in finals:
            self._final(final, batch, now_ns)
        for market, spans in landed.items():
            for job in self._by_market[market].values():
                if any(map(job.span.overlaps, spans)) and self._trim(job):
                    batch.job(job)

    def cover(self, market: Market, span: TimeRange, empty: Iterable[TimeRange], fetched_ns: int, batch: Batch) -> None:
        """A page whose rows are in the table covers what was not taken back since it was fetched.

        Empty is what every page calls so: where one has counted a row the table has it, whatever another says.
        """
        coverage, owner, empty = self.coverage[market], market_owner(market), tuple(empty)
        for claimed in self.retractions[market].claimed(span, fetched_ns):
            rows = subtract(coverage.covered.within(claimed), coverage.empty.within(claimed))
            batch.ranges(owner, "covered", coverage.covered.add(claimed))
            for part in subtract([claimed], empty):
                batch.ranges(owner, "empty", coverage.empty.remove(part))
            for part in subtract(intersect(empty, claimed), rows):
                batch.ranges(owner, "empty", coverage.empty.add(part))

    def _dispatched_ns(self, job_id: str) -> int:
        """Of a dispatch we know: no page of it was fetched before the retractions that had been made by then.

        By the time of those, not by the clock: the exchange's answer is dated by the ingestor's, which may be behind.
        """
        number = self._by_job_id.get(job_id)
        return 0 if number is None else self.jobs[number].job_ids[job_id]

    def _refuse(self, page: PageResult, batch: Batch) -> None:
        number = self._by_job_id.get(page.job_id)
        if number is None:
            return
        job = self.jobs[number]
        # what an earlier dispatch did not report, or the current one was asked for again, is still to come
        again = [job.sent] if job.sent else []
        parts = [page.span] if page.job_id == job.job_id else subtract(job.acked.within(page.span), again)
        for part in parts:
            batch.ranges(job_owner(number), "refused", job.refused.add(part))
        if parts:
            job.error = job.error or f"a page was refused: {page.refused}"
            batch.job(job)

    def _final(self, final: FinalResult, batch: Batch, now_ns: int) -> None:
        number = self.dispatcher.job_of(final.job_id)
        if number is None:
            return
        job = self.jobs[number]
        assert job.sent is not None
        batch.ranges(job_owner(number), "handled", job.handled.add(job.sent))
        job.job_id, job.produced, job.sent, job.fruitless = None, False, None, 0
        if final.status is FinalStatus.ERROR:
            job.error = final.error or "the ingestor gave no reason"
        if final.status is FinalStatus.ERROR or not job.to_fetch(self.coverage[job.market].covered):
            job.phase = Phase.ENDED
            self.dispatcher.remove(number)
        else:
            self.dispatcher.requeue(number)
        batch.job(job)
        for request in self._requests_of(job):
            request.progress_ns = now_ns

    # ---- taking back -----------------------------------------------------------------------------------------------

    def retract(self, market: Market, spans: Sequence[TimeRange], retracted_ns: int, batch: Batch) -> None:
        """Take coverage back, as the table of retractions already says; what is asked for next is fetched anew.

        Jobs on their way bring those ranges no more: what they have in hand was fetched before.
        """
        coverage, owner = self.coverage[market], market_owner(market)
        for span in spans:
            self.retractions[market].add(span, retracted_ns)
            batch.retraction(Retraction(market, span, retracted_ns))
            batch.ranges(owner, "covered", coverage.covered.remove(span))
            batch.ranges(owner, "empty", coverage.empty.remove(span))
        for number, job in self._by_market[market].items():
            in_hand = [*job.acked, *([job.sent] if job.sent else [])]
            stale = subtract(in_hand, subtract(in_hand, spans))
            for part in stale:
                batch.ranges(job_owner(number), "handled", job.handled.add(part))
                for kind in ("acked", "acked_empty", "refused"):
                    batch.ranges(job_owner(number), kind, getattr(job, kind).remove(part))
            if stale and self._trim(job):
                batch.job(job)

    def replan(self, market: Market, spans: Sequence[TimeRange], batch: Batch, but: str = "") -> None:
        """Plan what was taken back for every request that waits for it, except the one whose end is being written."""
        if not spans:
            return
        taken = RangeSet(spans)
        for request_id, request in self.requests.items():
            if request.submission.market == market and request_id != but and not request.ending:
                for part in taken.within(request.planned):
                    self.plan(request, part, batch)

    # ---- what others ask -------------------------------------------------------------------------------------------

    def is_over(self, number: int) -> bool:
        """Whether nothing more will come of a job."""
        job = self.jobs[number]
        return job.is_over(self.coverage[job.market].covered)

    def ready(self, request: LiveRequest) -> bool:
        """Whether all jobs of a request are over, so that its end, or its next wave, can be worked out."""
        return all(self.is_over(number) for number in request.jobs)

    def missing(self, request: LiveRequest, end_ns: int) -> list[TimeRange]:
        """What the table lacks of a request's range up to ``end_ns``."""
        span = TimeRange(request.submission.start_ns, end_ns)
        return self.coverage[request.submission.market].covered.holes(span)

    def empty(self, request: LiveRequest, end_ns: int) -> list[TimeRange]:
        """The verified-empty part of a request's range up to ``end_ns``."""
        span = TimeRange(request.submission.start_ns, end_ns)
        return self.coverage[request.submission.market].empty.within(span)

    def errors(self, request: LiveRequest) -> list[str]:
        """Why jobs of a request failed, in time order."""
        jobs = sorted((self.jobs[number] for number in request.jobs), key=lambda job: job.span)
        return [job.error for job in jobs if job.error]

    def waiting_since(self) -> dict[str, int]:
        """By exchange with queued jobs: when the oldest request that waits for one of them came, wall clock."""
        since: dict[str, int] = {}
        for number, job in self.jobs.items():
            if self.dispatcher.is_queued(number):
                came = (request.submitted_ns for request in self._requests_of(job))
                since[job.market.exchange] = min([since.get(job.market.exchange, MAX_TIME_NS), *came])
        return since

    def timed_out(self, timeout_ns: int, *, now_ns: int) -> Iterator[LiveRequest]:
        """Requests without progress for too long; time queued behind other jobs of the exchange does not count."""
        busy = self.dispatcher.busy_exchanges()
        for request in self.requests.values():
            if request.submission.market.exchange in busy and self._only_queued(request):
                request.progress_ns = now_ns
            elif now_ns - request.progress_ns >= timeout_ns and not request.ending:
                yield request

    def _only_queued(self, request: LiveRequest) -> bool:
        waiting = [number for number in request.jobs if not self.is_over(number)]
        return bool(waiting) and all(self.dispatcher.is_queued(number) for number in waiting)

    def progress(self, request: LiveRequest, end_ns: int | None = None) -> Progress:
        """How far a request is, up to ``end_ns`` (as far as it is planned)."""
        span = request.planned if end_ns is None else TimeRange(request.submission.start_ns, end_ns)
        period, coverage = request.submission.period_seconds, self.coverage[request.submission.market]
        jobs = [self.jobs[number] for number in request.jobs]
        acked = [part for job in jobs for part in job.acked.within(span)]
        acked_empty = [part for job in jobs for part in job.acked_empty.within(span)]
        expected = count_periods(span, period)
        settled = expected - total_periods(subtract(coverage.covered.holes(span), acked), period)
        candles = settled - total_periods([*coverage.empty.within(span), *acked_empty], period)
        expected_pages = -(-expected // self._page_periods)
        return Progress(
            expected_periods=expected,
            settled_periods=settled,
            candles=max(candles, 0),
            expected_pages=expected_pages,
            settled_pages=expected_pages if settled == expected else settled // self._page_periods,
            jobs=len(jobs),
            finished_jobs=sum(self.is_over(job.number) for job in jobs),
            running_jobs=sum(self.dispatcher.is_running(job.number) for job in jobs),
        )

    def _requests_of(self, job: Job) -> Iterator[LiveRequest]:
        return (self.requests[request_id] for request_id in job.requests)
