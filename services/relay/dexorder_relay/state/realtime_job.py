"""The realtime job of an instrument: the wanted series, and how far each is settled. Pure.

An instrument has one job while it has subscriptions; the registry has all jobs. The job has one dispatch after the
other, each without an end.

=========  =========  =====================================================  ==============================
State      Dispatch   Event                                                  Next
=========  =========  =====================================================  ==============================
WAITING    none       a slot is free                                         RUNNING
RUNNING    current    lease expired, rejected, failed, ended by itself       WAITING, after a wait that grows
                                                                             while dispatches settle no data
RUNNING    current    its last subscription stops; or one starts or stops    STOPPING
                      and changes the wanted series
STOPPING   current    the ingestor has stopped, or its lease has expired     WAITING, or gone without
                                                                             subscriptions
=========  =========  =====================================================  ==============================

A series' position is the time up to which Kafka has it. The next dispatch starts there, so a position is never later
than the data that Kafka has acknowledged; an earlier one only repeats data.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from dexorder_common.model.history import HistoryRequest
from dexorder_common.model.instrument import Instrument
from dexorder_common.model.periods import TRADES_PERIOD, ceil_to_grid, floor_to_grid
from dexorder_common.model.realtime import (
    Knowledge,
    ProvisionalSpan,
    RealtimeDispatch,
    RealtimeJobRecord,
    RealtimeParams,
    RealtimeState,
    Resumption,
    SeriesProgress,
    StartedSubscription,
    UncheckedCandles,
)
from dexorder_common.model.time_range import TimeRange, intersect, merge, subtract
from dexorder_common.model.times import SECOND_NS
from dexorder_relay.state.leases import Leases

MAX_FENCED = 10_000
_UNTOLD_NS = 600 * SECOND_NS
"""Time of the newest candles of a job without a status."""


@dataclass(slots=True)
class SeriesPosition:
    """Position up to which a series is settled.

    Attributes:
        from_ns: Where it starts: earlier data was not requested from realtime.
        next_ns: Kafka has [from_ns, next_ns), except for data that is lost for good or fetched as history.
        last_trade_id: Id of the last trade before ``next_ns``; empty for candles, or if it is not known.
        count: Trades or candles reported since the relay's start.
        reported_ns: Wall clock time of the last report; 0 without one.
        compared_ns: Time before which REST has shown the recorded values of all trades; 0 if that was never reported.
    """

    from_ns: int
    next_ns: int
    last_trade_id: str = ""
    count: int = 0
    reported_ns: int = 0
    lag_ns: int = 0
    compared_ns: int = 0

    @property
    def settled_ns(self) -> int:
        """Time up to which it is settled; 0 without a settled span."""
        return self.next_ns if self.next_ns > self.from_ns else 0

    def advance(self, span: TimeRange, last_trade_id: str) -> TimeRange | None:
        """Settle a span; return the hole before it, or None if it joins the settled range."""
        hole = TimeRange(self.next_ns, span.start_ns) if span.start_ns > self.next_ns else None
        if span.end_ns >= self.next_ns:
            self.next_ns = span.end_ns
            self.last_trade_id = last_trade_id or self.last_trade_id
        return hole


@dataclass(slots=True)
class RealtimeJob:
    """The job of one instrument.

    Attributes:
        subscriptions: By id, oldest first; empty only while the last dispatch stops.
        positions: By period of a wanted series, 0 for trades.
        sent: Series that the current dispatch must produce; None without one, and if it has started too late for a
            subscription. Its reports are ignored then.
        dispatches: Number of dispatches so far.
        error: Reason for which the last dispatch ended early.
        progressed: The current dispatch has settled something that none before it had.
        waited: Why the dispatch before settled no data, until the current one settles some: one that is lost soon after
            its start says no reason.
        told_to_stop: The ingestor of the current dispatch has a request to stop, which later subscriptions do not undo.
        identity: Socket of the ingestor that has the current dispatch; None until it is heard of after a restart.
        ingestor: Name that the ingestor has given; may be empty.
        next_attempt_ns: Wall clock time before which it is not dispatched again; 0 for no wait.
        knowledge: Knowledge of its dispatches that is not in their records; the next one continues with it.
        closing: Provisional spans that the dispatch has ended, with the end of the trades that Kafka had by then. They
            stay provisional until the table has later ones, and so those that ended them; a dispatch that is lost
            before that leaves them to the next one.
        told: Highest number of the statuses of the current dispatch; 0 without one since the relay's start.
    """

    id: int
    ticker: str
    subscriptions: dict[str, StartedSubscription] = field(default_factory=dict)
    positions: dict[int, SeriesPosition] = field(default_factory=dict)
    dispatch_id: str | None = None
    sent: RealtimeParams | None = None
    dispatched_ns: int = 0
    dispatches: int = 0
    failures_in_a_row: int = 0
    error: str = ""
    progressed: bool = False
    waited: str = ""
    told_to_stop: bool = False
    identity: bytes | None = None
    ingestor: str = ""
    next_attempt_ns: int = 0
    knowledge: Knowledge = field(default_factory=Knowledge)
    closing: dict[ProvisionalSpan, int] = field(default_factory=dict)
    told: int = 0

    @property
    def exchange(self) -> str:
        """The venue of the ticker."""
        return Instrument.parse(self.ticker).venue

    @property
    def wanted(self) -> RealtimeParams:
        """Outputs that its subscriptions ask for together."""
        return RealtimeParams.union(each.subscription.params for each in self.subscriptions.values())

    @property
    def must_stop(self) -> bool:
        """True if the current dispatch is not the one that is wanted."""
        return self.dispatch_id is not None and (self.told_to_stop or self.sent != self.wanted)

    @property
    def state(self) -> RealtimeState:
        """Its state."""
        if self.dispatch_id is None:
            return RealtimeState.WAITING
        return RealtimeState.STOPPING if self.must_stop else RealtimeState.RUNNING

    @property
    def waiting(self) -> str:
        """Why the current dispatch does not settle data, if known; empty without a reason.

        One that is new has not said why. Then it is the reason of the dispatch before, or why that one has ended, if it
        settled nothing either.
        """
        if self.dispatch_id is None:
            return ""
        if self.identity is None:
            return "the relay was started again, and the ingestor of this job has not reported since"
        before = self.error if self.failures_in_a_row else self.waited
        return self.knowledge.waiting or before

    def add(self, started: StartedSubscription) -> list[tuple[int, TimeRange]]:
        """Add a subscription; return by period the ranges of candles that must be fetched as history for it.

        Trades are wanted since the start of the subscription: if the job has started later, its next dispatch starts
        there. Candles start with the first one that opens after the subscription was accepted, because all of its
        trades are seen; history fetches earlier candles.
        """
        self.subscriptions[started.subscription.subscription_id] = started
        params, missing = started.subscription.params, []
        if params.include_ticks:
            known = self.positions.get(TRADES_PERIOD)
            if known is None or started.begin_ns < known.from_ns:
                self.positions[TRADES_PERIOD] = SeriesPosition(started.begin_ns, started.begin_ns)
                self.sent = None
        for period in params.periods:
            first_ns = ceil_to_grid(started.started_ns, period)
            position = self.positions.setdefault(period, SeriesPosition(first_ns, first_ns))
            if started.subscription.since_ns is not None:
                start_ns = ceil_to_grid(started.subscription.since_ns, period)
                if start_ns < position.from_ns:
                    missing.append((period, TimeRange(start_ns, position.from_ns)))
        return missing

    def remove(self, subscription_id: str) -> bool:
        """Remove a subscription, and what is known of series that no other asks for; return whether knowledge changed.

        Positions are not counted.
        """
        del self.subscriptions[subscription_id]
        wanted = self.wanted.series
        for period in [period for period in self.positions if period not in wanted]:
            del self.positions[period]
        before = self.knowledge.unchecked
        kept = tuple(each for each in before if each.period_seconds in wanted)
        self.knowledge = replace(self.knowledge, unchecked=kept)
        return kept != before

    def assign(self, dispatch_id: str, identity: bytes, *, wall_ns: int) -> RealtimeDispatch:
        """Start a dispatch."""
        self.closing.clear()  # it gets these spans as open ones
        self.dispatch_id, self.sent, self.identity = dispatch_id, self.wanted, identity
        self.dispatched_ns = wall_ns
        self.next_attempt_ns = 0
        self.ingestor = ""
        self.told = 0
        self.progressed = False
        self.dispatches += 1
        oldest = next(iter(self.subscriptions.values())).subscription
        return RealtimeDispatch(dispatch_id, oldest.subscription_id, self.ticker, self.sent, oldest.client_id)

    def end_dispatch(self) -> None:
        """End the current dispatch and fence its id."""
        self.waited = self.waiting
        self.dispatch_id = self.sent = self.identity = None
        self.dispatched_ns = 0
        self.ingestor = ""
        self.told_to_stop = False
        self.knowledge = replace(self.knowledge, corrected=0, late=0, waiting="")

    def learn(self, known: Knowledge, number: int = 0) -> tuple[bool, bool]:
        """Take the current dispatch's knowledge; return whether the next one must know it, and whether clients see it.

        Candles of a period without a subscription are left out, and so is a status that has been overtaken: its call
        was made, or repeated, while the relay was away.
        """
        if 0 < number < self.told:
            return False, False
        before, self.told = self.knowledge, max(number, self.told)
        unchecked = tuple(each for each in known.unchecked if each.period_seconds in self.positions)
        self._close(before.provisional, known.provisional)
        provisional = tuple(sorted({*known.provisional, *self.closing}))
        self.knowledge = known = replace(known, unchecked=unchecked, provisional=provisional)
        must_be_kept = (known.provisional, known.unchecked) != (before.provisional, before.unchecked)
        return must_be_kept, (known.provisional, known.waiting) != (before.provisional, before.waiting)

    def _close(self, before: Sequence[ProvisionalSpan], after: Sequence[ProvisionalSpan]) -> None:
        """Note the spans that lack other ids than before, or none: the table may not have these trades yet."""
        if (trades := self.positions.get(TRADES_PERIOD)) is None:
            return
        spans, known = [each.span for each in after], {each._replace(queries=0) for each in after}

        def ended(each: ProvisionalSpan) -> list[ProvisionalSpan]:
            if not each.first_id:  # such a span grows while it lasts
                return [each._replace(span=part) for part in subtract([each.span], spans)]
            return [] if each._replace(queries=0) in known else [each]

        # What a later status names again is open again.
        closing = {part: after_ns for each, after_ns in self.closing.items() for part in ended(each)}
        for each in before:
            for part in ended(each):
                closing.setdefault(part, trades.next_ns)
        self.closing = closing

    def landed(self, span: TimeRange) -> bool:
        """Take a record of trades that the table has; return whether a provisional span has ended with it."""
        over = [each for each, after_ns in self.closing.items() if span.end_ns > after_ns]
        for each in over:
            del self.closing[each]
        if over:
            kept = tuple(each for each in self.knowledge.provisional if each not in over)
            self.knowledge = replace(self.knowledge, provisional=kept)
        return bool(over)

    def provisional_in(self, period: int, span: TimeRange) -> list[TimeRange]:
        """Return the parts of a span that one source alone calls complete, as whole candles of a period."""
        spans = [each.span for each in self.knowledge.provisional]
        if period != TRADES_PERIOD:
            spans = [
                TimeRange(floor_to_grid(each.start_ns, period), ceil_to_grid(each.end_ns, period)) for each in spans
            ]
        return intersect(merge(spans), span)

    def lose(self, reason: str) -> None:
        """End a dispatch that the relay has not stopped; it is a failure unless it settled data."""
        self.error = reason
        self.failures_in_a_row = 0 if self.progressed else self.failures_in_a_row + 1
        self.end_dispatch()

    def begin_by(self, exchange_ns: int) -> bool:
        """Have each series without settled data start by the exchange's time; return whether one has changed."""
        changed = False
        for period, position in self.positions.items():
            first_ns = ceil_to_grid(exchange_ns, period)
            if not position.settled_ns and first_ns < position.next_ns:
                position.from_ns = position.next_ns = first_ns
                changed = True
        return changed

    def resumption(self) -> Resumption:
        """Return where the current dispatch starts."""
        trades = self.positions.get(TRADES_PERIOD)
        candles = {period: each.next_ns for period, each in self.positions.items() if period != TRADES_PERIOD}
        start_ns = trades.next_ns if trades else min(candles.values())
        first_ns = {period: self.positions[period].from_ns for period in candles}
        known = self.knowledge
        last_id = trades.last_trade_id if trades else ""
        compared_ns = (trades.compared_ns or trades.from_ns) if trades else None
        unchecked = *known.unchecked, *self._untold()
        return Resumption(start_ns, last_id, candles, first_ns, known.provisional, unchecked, compared_ns)

    def _untold(self) -> Iterator[UncheckedCandles]:
        """Return candles that the table has and no dispatch has told of: it was killed just after it had made them.

        A status has each candle for a day at least, so those after the last one that it has are meant; without any,
        the newest ones. Their values are not known here, so they differ from the exchange's, and are made again.
        """
        candles = {period: each for period, each in self.positions.items() if period != TRADES_PERIOD}
        for period, position in candles.items():
            told = [each.span.end_ns for each in self.knowledge.unchecked if each.period_seconds == period]
            newest_ns = floor_to_grid(position.next_ns - _UNTOLD_NS, period)
            start_ns = max(position.from_ns, max(told, default=newest_ns))
            if start_ns < position.next_ns:
                yield UncheckedCandles(period, TimeRange(start_ns, position.next_ns), 0, None)

    def settle(
        self, period: int, span: TimeRange, *, current: bool, last_trade_id: str = ""
    ) -> tuple[SeriesPosition | None, TimeRange | None]:
        """Settle a span of a series that Kafka has.

        Args:
            current: It comes from the current dispatch. Then a hole before ``span`` is there for good: trades are lost,
                and candles must be fetched as history. Otherwise only a span that joins the settled range counts.

        Returns:
            The position that has changed, or None; and the hole in the candles, or None.
        """
        position = self.positions.get(period)
        if position is None or (current and self.sent is None):
            return None, None
        if current and position.next_ns < span.end_ns:
            self.progressed = True
            self.failures_in_a_row = 0
            self.waited = ""
        elif not current and span.start_ns > position.next_ns:
            return None, None
        hole = position.advance(span, last_trade_id)
        return position, hole if period != TRADES_PERIOD else None

    def record(self) -> RealtimeJobRecord:
        """Return the job as clients see it."""
        series = tuple(
            SeriesProgress(period, each.settled_ns, each.count, each.reported_ns, each.lag_ns)
            for period, each in sorted(self.positions.items())
        )
        return RealtimeJobRecord(
            self.ticker,
            self.wanted,
            self.state,
            self.ingestor or (self.identity.hex() if self.identity else ""),
            self.dispatched_ns,
            max(self.dispatches - 1, 0),
            self.waiting or self.error,
            self.next_attempt_ns,
            series,
            self.knowledge.provisional,
            sum(1 for each in self.knowledge.unchecked if not each.comparisons),
            self.knowledge.corrected,
            self.knowledge.late,
        )


@dataclass(frozen=True, slots=True)
class HistoryPart:
    """A range of candles that is fetched as history for a subscription, once it is over."""

    request_id: str
    subscription_id: str
    ticker: str
    period_seconds: int
    span: TimeRange
    client_id: str

    @property
    def request(self) -> HistoryRequest:
        """The request that fetches it."""
        span = self.span
        return HistoryRequest(
            self.request_id, self.ticker, span.start_ns, span.end_ns, self.period_seconds, client_id=self.client_id
        )


class Registry:
    """The one owner of subscriptions, realtime jobs, and candles still to fetch; single-threaded.

    ``realtime.py`` changes it. A change that must survive a restart is also added to the list of changes that the
    caller passes; the caller commits it before anyone outside sees the change.
    """

    def __init__(self, leases: Leases, new_id: Callable[[], str]) -> None:
        """Take the ids of requests for history from ``new_id``."""
        self.leases = leases
        self.new_id = new_id
        self.subscriptions: dict[str, StartedSubscription] = {}
        self.jobs: dict[int, RealtimeJob] = {}
        self.history: dict[str, HistoryPart] = {}
        self.last_sequence = 0
        self.dirty: set[int] = set()
        """Jobs with positions of trades that are not on disk."""
        self._by_ticker: dict[str, RealtimeJob] = {}
        self._fenced: OrderedDict[str, None] = OrderedDict()

    def job_for(self, ticker: str) -> RealtimeJob | None:
        """Return the job of an instrument."""
        return self._by_ticker.get(ticker)

    def current_job(self, dispatch_id: str) -> RealtimeJob | None:
        """Return the job with this current dispatch."""
        job_id = self.leases.job_of(dispatch_id)
        return None if job_id is None else self.jobs.get(job_id)

    def provisional(self, ticker: str) -> tuple[ProvisionalSpan, ...]:
        """Return the provisional spans of an instrument's trades."""
        job = self.job_for(ticker)
        return job.knowledge.provisional if job else ()

    def waiting(self, ticker: str) -> str:
        """Return why the running job of an instrument does not settle data; empty if it does."""
        job = self.job_for(ticker)
        return job.waiting if job else ""

    def add_job(self, job: RealtimeJob) -> None:
        """Add a job that is new, or read from the database at start."""
        self.jobs[job.id] = self._by_ticker[job.ticker] = job

    def drop_job(self, job: RealtimeJob) -> None:
        """Forget a job."""
        del self.jobs[job.id], self._by_ticker[job.ticker]
        self.dirty.discard(job.id)

    def fence(self, dispatch_id: str) -> None:
        """Remember a dispatch that ended without its ingestor; the ingestor is stopped if it is heard of again."""
        self._fenced[dispatch_id] = None
        if len(self._fenced) > MAX_FENCED:
            self._fenced.popitem(last=False)

    def is_fenced(self, dispatch_id: str) -> bool:
        """Return whether the dispatch ended recently without its ingestor."""
        return dispatch_id in self._fenced
