"""Series, streams and runs of the triggers of a ticker. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from dexorder_cep.compile.trigger import CompiledTrigger
from dexorder_cep.run.awake import MANY, AwakeRuns, OtherRun, Run
from dexorder_cep.run.delivery import Heard, Registration
from dexorder_cep.run.running import RunningCandles, RunningRun
from dexorder_cep.run.runs import PlainRun, start_run
from dexorder_cep.run.stream import MILLISECOND_NS, NO_TIME, Row, Stream
from dexorder_cep.run.thresholds import holds
from dexorder_common.model.times import SECOND_NS

MARKS_NS = 600 * SECOND_NS
"""Time for which it is known when a record was settled, for registrations that arrive late."""
Variant: TypeAlias = tuple[int, tuple[tuple[int, bool], ...]]
"""Delay in milliseconds and order of rows of one time: the streams of a series differ in them."""


@dataclass(slots=True)
class StreamRuns:
    """A stream and the runs on it, by trigger id. Alerts at rest have no run.

    Attributes:
        plain: Conditions.
        others: Patterns, and all runs that take derived rows.
        awake: Those of both that the next row can change.
        running: Conditions on running candles, by period and whether they look back; of streams of trades only.
    """

    stream: Stream
    plain: dict[str, PlainRun] = field(default_factory=dict)
    others: dict[str, OtherRun] = field(default_factory=dict)
    running: dict[tuple[int, bool], RunningCandles] = field(default_factory=dict)
    awake: AwakeRuns = field(default_factory=AwakeRuns)
    _added: int = 0

    def add(self, registration: Registration, run: Run) -> None:
        """Add a run, or put it into the place of the trigger's run."""
        name = registration.trigger_id
        old = self.find(name)
        if old is not None:
            self.awake.discard(old)
        run.trigger_id, run.order = name, self._next(registration) if old is None else old.order
        if isinstance(run, PlainRun):
            self.plain[name] = run
        else:
            self.others[name] = run
        self.awake.add(run, registration if registration.may_rest else None)

    def _next(self, registration: Registration) -> int:
        """Return a place behind all others: if possible, the registration's number, which takes no more memory."""
        self._added = max(self._added + 1, registration.number)
        return self._added

    def rest(self, registration: Registration) -> None:
        """Add an alert that is at rest from the start: its state follows from the newest row."""
        self.awake.rest([(self._next(registration), registration)])

    def find(self, trigger_id: str) -> Run | None:
        """Return the run of a trigger; None without one."""
        return self.plain.get(trigger_id) or self.others.get(trigger_id)

    def timed(self) -> list[OtherRun]:
        """Return the runs to which the passing of time matters now, in order."""
        return [each for each in self.awake.others() if each.timed]

    @property
    def _newest(self) -> Row:
        rows = self.stream.rows
        return rows[-1] if rows else ()

    def wake(self, row: Row) -> None:
        """Wake the runs that the next row changes."""
        for alert in self.awake.wake(self._newest, row):
            self._start(alert)

    def _start(self, alert: Registration) -> None:
        """Give an alert at rest its run."""
        run = PlainRun(alert.compiled)
        run.trigger_id, run.order, run.latch = alert.trigger_id, alert.place, self._latch(alert)
        self.plain[alert.trigger_id] = run
        self.awake.add(run, alert)

    def _latch(self, alert: Registration) -> bool | None:
        """Return the latch that an alert has after the newest row; None without a row."""
        newest, guard = self._newest, alert.guard
        assert guard is not None
        return holds(guard, newest) if newest else None

    def settle(self, row: Row) -> None:
        """Note that all runs that are awake have taken the newest row."""
        rested = self.awake.settle(row)
        for alert in rested:
            del self.plain[alert.trigger_id]
        if len(rested) > MANY:
            self.plain = dict(self.plain)

    def rouse(self, registration: Registration) -> None:
        """Give an alert a run, if it is at rest, which ends. This is between two rows, so that no row has woken it."""
        if registration.place:
            self._start(registration)
            self.awake.rouse(registration)

    def remove(self, registration: Registration) -> None:
        """Remove the runs of a trigger."""
        name = registration.trigger_id
        self.awake.rouse(registration)
        if (run := self.find(name)) is not None:
            self.awake.discard(run)
        self.plain.pop(name, None)
        self.others.pop(name, None)
        for key, candles in list(self.running.items()):
            candles.runs.pop(name, None)
            if not candles.runs:
                del self.running[key]

    def running_of(self, compiled: CompiledTrigger, settled_ns: int) -> RunningCandles:
        """Return the running candles of a trigger; closed ones that open before ``settled_ns`` are known."""
        key = compiled.period_seconds, compiled.looks_back
        if key not in self.running:
            period_ns = compiled.period_seconds * SECOND_NS
            self.running[key] = RunningCandles(period_ns, looks_back=key[1], settled_ns=settled_ns)
        return self.running[key]

    def dump(self) -> list[Any]:
        """Return the state as JSON values."""
        plain = [(run.order, name, run.dump()) for name, run in self.plain.items()]
        plain += [(each.place, each.trigger_id, self._latch(each)) for each in self.awake.resting()]
        runs = {name: latch for _, name, latch in sorted(plain)}
        runs |= {name: run.dump() for name, run in self.others.items()}
        return [self.stream.dump(), runs, [[*key, candles.dump()] for key, candles in self.running.items()]]

    def restore(self, state: list[Any], registered: Callable[[str], Registration]) -> None:
        """Take over a state that ``dump`` returned.

        Args:
            registered: Returns a trigger by its id.
        """
        stream, runs, running = state
        self.stream.restore(stream)
        resting = []
        for trigger_id, kept in runs.items():
            registration = registered(trigger_id)
            if registration.may_rest and self._latch(registration) is kept:
                resting.append((self._next(registration), registration))
                continue
            run = new_run(registration, self.stream.ticker)
            if kept is not None:
                run.restore(kept)
            self.add(registration, run)
        self.awake.rest(resting)
        for period_seconds, looks_back, kept in running:
            candles = RunningCandles(period_seconds * SECOND_NS, looks_back=looks_back)
            candles.restore(kept)
            for trigger_id, state_of_run in kept[-1].items():
                registration = registered(trigger_id)
                candles.runs[trigger_id] = RunningRun(registration.compiled, self.stream.ticker, registration.account)
                candles.runs[trigger_id].restore(state_of_run)
            self.running[period_seconds, looks_back] = candles


def new_run(registration: Registration, ticker: str) -> Run:
    """Return a run of a trigger without any row."""
    if registration.may_rest:  # without an account, which it does not use
        return PlainRun(registration.compiled)
    return start_run(registration.compiled, ticker, registration.account)


class Mark(NamedTuple):
    """Moment at which a record was settled.

    Attributes:
        stamp_ns: The time.
        new_ns: Time from which the rows of the record are new.
        trade_ids: Trades before it that have the same millisecond.
    """

    stamp_ns: int
    new_ns: int
    trade_ids: Sequence[str] = ()


@dataclass(slots=True)
class TickerSeries:
    """Streams of a ticker's candles of one period, or of its trades.

    Attributes:
        settled_ns: Time before which all rows were fed.
        since_ns: Time from which on they were fed without a gap.
        marks: The records of the last minutes.
        deaf: Triggers that no record has reached which was settled after their registration.
    """

    ticker: str
    period_seconds: int
    settled_ns: int = NO_TIME
    since_ns: int = NO_TIME
    streams: dict[Variant, StreamRuns] = field(default_factory=dict)
    marks: deque[Mark] = field(default_factory=deque)
    deaf: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.on_stream((0 if self.period_seconds else 1, ()))

    @property
    def default(self) -> StreamRuns:
        """The first stream, which has every row of the series."""
        return next(iter(self.streams.values()))

    def on_stream(self, variant: Variant) -> StreamRuns:
        """Return the stream with a delay and an order, with the rows that the first one has."""
        on_stream = self.streams.get(variant)
        if on_stream is None:
            delay_ms, order = variant
            lead = (self.period_seconds * 1_000 - 1 if self.period_seconds else 0) - delay_ms
            on_stream = self.streams[variant] = StreamRuns(Stream(self.ticker, lead * MILLISECOND_NS, order))
            on_stream.stream.seed(next(iter(self.streams.values())).stream)
        return on_stream

    def mark(self, stamp_ns: int, since_ns: int) -> Mark:
        """Note that the next rows, all from ``since_ns`` on, were settled at ``stamp_ns``."""
        new_ns = max(since_ns, self.settled_ns)
        same = () if self.period_seconds else self.default.stream.after(_before_millisecond(new_ns))
        mark = Mark(stamp_ns, new_ns, [row[1] for row in same])
        self.marks.append(mark)
        while self.marks[0].stamp_ns < stamp_ns - MARKS_NS:
            self.marks.popleft()
        return mark

    def mark_after(self, at_ns: int) -> Mark | None:
        """Return the mark of the first record that was settled after a time; None without one."""
        return next((each for each in self.marks if each.stamp_ns > at_ns), None)

    def stamp_of(self, time_ns: int, identity: object) -> int:
        """Return when a row was settled; 0 if that is not known.

        A row may be evaluated behind later records, because it waits for the watermark.

        Args:
            time_ns: Open time of the candle, or time of the trade.
            identity: Id of the trade; anything else for a candle.
        """
        for each in reversed(self.marks):
            begins_ns = each.new_ns if self.period_seconds else _before_millisecond(each.new_ns) + 1
            if time_ns >= begins_ns and identity not in each.trade_ids:
                return each.stamp_ns
        return 0

    def hear(self, registration: Registration, mark: Mark) -> None:
        """Let rows fire a trigger that were settled with a record or later."""
        known_ns = mark.new_ns if self.period_seconds else _before_millisecond(mark.new_ns)
        known_ns = min(registration.at_ns, known_ns)
        registration.hear(self.ticker, Heard(known_ns, frozenset(mark.trade_ids)))
        self.deaf.discard(registration.trigger_id)

    def dump(self) -> list[Any]:
        """Return the state as JSON values."""
        streams = [[variant, on_stream.dump()] for variant, on_stream in self.streams.items()]
        return [self.period_seconds, self.settled_ns, self.since_ns, streams, list(self.marks)]

    @classmethod
    def restored(cls, ticker: str, state: list[Any], registered: Callable[[str], Registration]) -> TickerSeries:
        """Return the series that ``dump`` described."""
        period_seconds, settled_ns, since_ns, streams, *marks = state
        series = cls(ticker, period_seconds, settled_ns, since_ns)
        series.marks.extend(Mark(*mark) for each in marks for mark in each)
        for (delay_ms, order), kept in streams:
            variant = (delay_ms, tuple((slot, descending) for slot, descending in order))
            series.on_stream(variant).restore(kept, registered)
        return series


def _before_millisecond(time_ns: int) -> int:
    """Return the last nanosecond before the millisecond of a time."""
    return time_ns - time_ns % MILLISECOND_NS - 1


AllSeries: TypeAlias = Mapping[tuple[int, str], TickerSeries]
"""Series by period and ticker."""


def running_candles(series: AllSeries, ticker: str, period_seconds: int) -> Iterator[tuple[StreamRuns, RunningCandles]]:
    """Yield the running candles of a ticker and period that look back at the closed ones, with their streams."""
    trades = series.get((0, ticker))
    for on_stream in list(trades.streams.values()) if trades else []:
        candles = on_stream.running.get((period_seconds, True))
        if candles is not None:
            yield on_stream, candles
