"""Engine of the triggers: rows in, events out. Pure.

The caller feeds closed candles and trades in batches, registers and removes triggers between them, and stores ``dump``
with the events of each batch: an engine that is loaded from it and fed the same rows returns the same events with the
same ids.

A trigger that fails is suspended: the caller gets a ``Suspension`` and the trigger is removed. No other trigger
notices.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any

from dexorder_cep.compile.arithmetic import TriggerFailed
from dexorder_cep.compile.edits import differences
from dexorder_cep.compile.parameters import MAX_WARMUP_ROWS
from dexorder_cep.compile.texts import METER
from dexorder_cep.compile.trigger import CompiledTrigger, compile_trigger, find_alert
from dexorder_cep.run.awake import Run
from dexorder_cep.run.delivery import (
    Delivered,
    Heard,
    Outcome,
    Registration,
    Suspension,
    TriggerEnded,
    deliver,
    kind_of,
    with_entry,
)
from dexorder_cep.run.edits import change, replace_runs
from dexorder_cep.run.engine_state import EngineState, from_json, to_json
from dexorder_cep.run.pauses import decoded, encoded, released, skip, withhold
from dexorder_cep.run.running import TRADE_ID_SLOT, TRADE_TIME_SLOT, Formed, RunningCandles, RunningRun
from dexorder_cep.run.runs import DerivedRun, RunResult
from dexorder_cep.run.stream import MILLISECOND_NS, NO_TIME, Row, Stream
from dexorder_cep.run.stream_runs import StreamRuns, TickerSeries, new_run, running_candles
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.periods import TRADES_PERIOD
from dexorder_common.model.times import MAX_TIME_NS, SECOND_NS

RING_ROWS = MAX_WARMUP_ROWS + 1_000
"""Newest rows of a ticker that are kept for the warm-up of new triggers and for PREV."""
IDLE_GRACE_SECONDS = 30
"""Time by which a closed candle or a trade may reach the engine after its event time, when no newer row has come."""
_KNOWN_TEXTS = 1_024
"""Texts of which the triggers share the compiled one when they are loaded."""


class Engine:
    """Triggers and their state on all tickers."""

    def __init__(self, *, idle_grace_seconds: int = IDLE_GRACE_SECONDS) -> None:
        self._registrations: dict[str, Registration] = {}
        self._series: dict[tuple[int, str], TickerSeries] = {}
        self._grace_ns = idle_grace_seconds * SECOND_NS
        self._stamp_ns = 0

    @property
    def registrations(self) -> Mapping[str, Registration]:
        """The triggers by id."""
        return self._registrations

    def add(
        self,
        trigger_id: str,
        registration_number: int,
        compiled: CompiledTrigger,
        at_ns: int,
        tickers: Collection[str] | None = None,
        *,
        revision: int = 1,
        is_paused: bool = False,
        pauses: Sequence[Sequence[int]] = (),
    ) -> list[Outcome]:
        """Register a trigger; it examines the newest rows of its tickers.

        Only rows that were settled after the registration fire. ``stamp`` says when rows were settled; without it,
        these are candles that closed, and trades that were made, after the registration.

        Args:
            trigger_id: Not registered yet.
            registration_number: Differs from the number of every earlier registration of the id.
            compiled: The trigger.
            at_ns: Time of the registration.
            tickers: Markets; None or none for all.
            revision: Number of its edits so far, from 1.
            is_paused: Whether it starts with a pause on its tickers.
            pauses: Start and end of each time in which it was paused before, oldest first.
        Returns:
            Firings for rows that were settled since then, and a suspension if the trigger fails on a row.
        """
        if trigger_id in self._registrations:
            raise InvalidRequest(f"trigger_id {trigger_id!r} is registered")
        chosen = _together(frozenset(tickers)) if tickers else None
        for ticker in sorted(chosen or ()) if compiled.is_running else ():
            self._find(ticker, TRADES_PERIOD)  # closed candles now wait for their trades
        kind, level = kind_of(compiled)
        registration = Registration(trigger_id, registration_number, kind, level, at_ns, chosen, revision=revision)
        if is_paused:
            registration.withheld = {ticker: [] for ticker in chosen or ()}
        for ticker in chosen or () if pauses else ():
            skip(registration, ticker, pauses)
        self._registrations[trigger_id] = registration
        found: list[Outcome] = []
        for series in self._of(registration):
            found += self._begin(registration, series)
            if trigger_id not in self._registrations:
                break
        return found

    def _of(self, registration: Registration) -> list[TickerSeries]:
        """Return the series with rows on which a trigger is evaluated."""
        period = registration.series_period
        if registration.tickers is None:
            return [each for each in self._series.values() if each.period_seconds == period]
        keys = ((period, ticker) for ticker in sorted(registration.tickers))
        return [self._series[key] for key in keys if key in self._series]

    def _streams_of(self, registration: Registration) -> Iterator[StreamRuns]:
        """Yield the streams on which a trigger is evaluated."""
        for series in self._of(registration):
            if (on_stream := series.streams.get(registration.variant)) is not None:
                yield on_stream

    def remove(self, trigger_id: str) -> None:
        """Remove a trigger; do nothing if it is not registered."""
        registration = self._registrations.pop(trigger_id, None)
        if registration is not None:
            for on_stream in self._streams_of(registration):
                on_stream.remove(registration)

    def edit(self, trigger_id: str, revision: int, compiled: CompiledTrigger) -> list[Outcome]:
        """Change the text and the parameters of a trigger, which keeps its state; see ``differences``.

        Rows that are fed from now on are evaluated with them. A trigger that can't keep its state is suspended.
        """
        registration = self._registrations.get(trigger_id)
        if registration is None:
            return []
        names = differences(registration.compiled, compiled)
        try:
            if names:
                raise TriggerFailed(f"it can't be edited, as {', '.join(names)} differ")
            streams = [*self._streams_of(registration)]
            for on_stream in streams:
                on_stream.rouse(registration)
            change(registration, compiled, revision)
            for on_stream in streams:
                replace_runs(registration, on_stream)
        except Exception as error:
            return self._suspend(registration, Stream("", 0), error)
        return []

    def pause(self, trigger_id: str, ticker: str) -> None:
        """Let a trigger take rows of a ticker without firing."""
        if (registration := self._registrations.get(trigger_id)) is not None:
            registration.withheld = with_entry(registration.withheld, ticker, registration.withheld.get(ticker, []))

    def resume(self, trigger_id: str, ticker: str, at_ns: int) -> list[Outcome]:
        """End a pause at a time; return the outcomes of rows that were settled after it."""
        registration = self._registrations.get(trigger_id)
        found = released(registration, ticker, at_ns) if registration is not None else []
        if found and isinstance(found[-1], TriggerEnded):
            self.remove(trigger_id)
        return found

    def skip_pauses(self, trigger_id: str, ticker: str, pauses: Iterable[Sequence[int]]) -> None:
        """Take pauses of a trigger of which the engine learns after their end; `resume` ends one that it knows."""
        if (registration := self._registrations.get(trigger_id)) is not None:
            skip(registration, ticker, pauses)

    def feed_candles(self, ticker: str, period_seconds: int, rows: Iterable[Sequence[Any]]) -> list[Outcome]:
        """Take closed candles of a series.

        Args:
            ticker: The market.
            period_seconds: Their period.
            rows: Open time in ns, open, high, low, close, volume, quote volume or None, number of trades or None: the
                order of ``dexorder_common.model.page.Candle``. A candle that is not newer than those before
                it is late.
        """
        return self._feed(ticker, period_seconds, (tuple(row) for row in rows))

    def feed_ticks(self, ticker: str, rows: Iterable[Sequence[Any]], *, since_ns: int | None = None) -> list[Outcome]:
        """Take trades of a market.

        Args:
            ticker: The market.
            rows: Time in ns, the exchange's id, price, amount, side or None. Times are cut to milliseconds, as Flink
                does.
            since_ns: Time since which the trades are complete. If it is after the settled time, there is a gap, and
                running candles start with the next one.
        """
        series = self._find(ticker, TRADES_PERIOD)
        if since_ns is not None and since_ns > series.settled_ns:
            series.since_ns = since_ns
        cut = [(row[0] - row[0] % MILLISECOND_NS, *row[1:]) for row in rows]
        if series.since_ns == NO_TIME and cut:
            series.since_ns = cut[0][0] + 1  # others of this time may be missing
        return self._feed(ticker, TRADES_PERIOD, cut)

    def stamp(self, ticker: str, period_seconds: int, stamp_ns: int, since_ns: int) -> None:
        """Note that the next rows of a series, all since ``since_ns``, were settled at ``stamp_ns``.

        It decides which rows fire the triggers that were registered before that time.
        """
        series = self._find(ticker, period_seconds)
        self._stamp_ns = stamp_ns
        mark = series.mark(stamp_ns, since_ns)
        for trigger_id in sorted(series.deaf):
            registration = self._registrations.get(trigger_id)
            if registration is None:
                series.deaf.discard(trigger_id)
            elif registration.at_ns < stamp_ns:
                series.hear(registration, mark)

    def advance(self, now_ns: int) -> list[Outcome]:
        """Move the watermarks of tickers without new rows, and end the triggers that expire.

        A watermark follows the clock at the distance of the period, the delay and ``idle_grace_seconds``, so that a row
        that is on its way is not late.
        """
        found: list[Outcome] = []
        for registration in list(self._registrations.values()):
            expires = registration.kind.parameters.expires_ns
            if expires is not None and now_ns >= expires:
                found.append(TriggerEnded(registration.trigger_id, registration.number, expires, "expired"))
                self.remove(registration.trigger_id)
        for series in self._series.values():
            for (delay_ms, _), on_stream in series.streams.items():
                distance = self._grace_ns + series.period_seconds * SECOND_NS + delay_ms * MILLISECOND_NS
                if now_ns - distance > on_stream.stream.watermark_ns:
                    found += self._process(series, on_stream, on_stream.stream.release(now_ns - distance))
                    found += self._time(series, on_stream)
        return found

    def settle(self, ticker: str, period_seconds: int, until_ns: int) -> list[Outcome]:
        """Move the watermark of a series, of which every candle that opens, or trade, before a time has been fed.

        So windows close and WITHIN ends in a quiet market, and no row is late because of a clock.
        """
        found: list[Outcome] = []
        series = self._series.get((period_seconds, ticker))
        if series is not None:
            series.settled_ns = max(series.settled_ns, until_ns)
            for (delay_ms, _), on_stream in series.streams.items():
                watermark_ns = until_ns - (1 + delay_ms) * MILLISECOND_NS
                if watermark_ns > on_stream.stream.watermark_ns:
                    found += self._process(series, on_stream, on_stream.stream.release(watermark_ns))
                    found += self._time(series, on_stream)
                for candles in list(on_stream.running.values()):
                    found += self._pass(on_stream, candles, candles.passed(until_ns))
        if period_seconds != TRADES_PERIOD:
            for on_stream, candles in running_candles(self._series, ticker, period_seconds):
                found += self._form(on_stream, candles, candles.settle(until_ns))
        return found

    def _find(self, ticker: str, period_seconds: int) -> TickerSeries:
        return self._series.get((period_seconds, ticker)) or self._open(ticker, period_seconds)

    def _feed(self, ticker: str, period_seconds: int, rows: Iterable[Row]) -> list[Outcome]:
        series = self._find(ticker, period_seconds)
        found: list[Outcome] = []
        streams = list(series.streams.values())
        for row in rows:
            if period_seconds != TRADES_PERIOD and row[0] > series.default.stream.watermark_ns:
                for _, candles in running_candles(self._series, ticker, period_seconds):
                    candles.close([row])
            for on_stream in streams:
                if row[0] <= on_stream.stream.watermark_ns:
                    self._late(series, on_stream, row)
                    continue
                released = on_stream.stream.offer(row)
                if released:
                    found += self._process(series, on_stream, released)
                    found += self._time(series, on_stream)
        for on_stream in streams:
            awake = on_stream.awake  # a run that is not needs no row
            on_stream.stream.trim(RING_ROWS, lambda awake=awake: min((r.oldest for r in awake.others()), default=2**62))  # type: ignore[misc]
        return found

    def _late(self, series: TickerSeries, on_stream: StreamRuns, row: Row) -> None:
        """Count a late row. Windows take a late trade while they are open; a late candle was known before."""
        on_stream.stream.late += 1
        if not series.period_seconds:
            for run in on_stream.timed():
                if isinstance(run, DerivedRun):
                    run.on_late(row)

    def _open(self, ticker: str, period_seconds: int) -> TickerSeries:
        series = self._series[period_seconds, ticker] = TickerSeries(ticker, period_seconds)
        for registration in self._registrations.values():
            if registration.series_period == period_seconds and registration.wants(ticker):
                self._begin(registration, series)
        return series

    def _begin(self, registration: Registration, series: TickerSeries) -> list[Outcome]:
        """Start a trigger on a ticker: examine the newest rows; rows that were settled since its registration fire."""
        parameters = registration.kind.parameters
        mark = series.mark_after(registration.at_ns)
        series.deaf.add(registration.trigger_id)
        if mark is not None:
            series.hear(registration, mark)
        on_stream = series.on_stream(registration.variant)
        if registration.kind.is_running:
            return self._begin_running(registration, on_stream)
        stream = on_stream.stream
        whole, base, period_ns = stream.rows, stream.base, series.period_seconds * SECOND_NS
        silent_ns = registration.silent_until(series.ticker) - period_ns
        fires = len(whole) if mark is None else bisect_right(whole, silent_ns, key=itemgetter(0))
        if registration.may_rest and fires == len(whole) and (parameters.warmup or not whole):
            on_stream.rest(registration)  # as after all these rows
            return []
        run = new_run(registration, series.ticker)
        on_stream.add(registration, run)
        first = max(0, fires - parameters.warmup)
        found: list[Outcome] = []
        stream.rows = whole[:first]
        try:
            for index in range(first, len(whole)):
                row = whole[index]
                stream.rows.append(row)
                silent = index < fires or registration.knew(series.ticker, row[0] + period_ns, row[1])
                result = run.on_row(stream, base + index, row, silent)
                _charge(registration, row[0])
                if result is not None and not silent:
                    found += self._deliver(registration, series, stream, result, (row[0], row[1]))
        except Exception as error:
            found += self._suspend(registration, stream, error)
        stream.rows = whole
        return found

    def _begin_running(self, registration: Registration, on_stream: StreamRuns) -> list[Outcome]:
        """Start a condition on running candles: closed ones become rows before, without firing."""
        compiled, ticker = registration.kind, on_stream.stream.ticker
        closed = self._series.get((compiled.period_seconds, ticker))
        candles = on_stream.running_of(compiled, closed.settled_ns if closed else NO_TIME)
        run = candles.runs[registration.trigger_id] = RunningRun(registration.compiled, ticker, registration.account)
        known = (
            closed.default.stream.rows[-compiled.parameters.warmup :] if closed and compiled.parameters.warmup else []
        )
        try:
            run.on_closed([row for row in known if row[0] < candles.first_waiting_ns])
            _charge(registration, candles.first_waiting_ns)
        except Exception as error:
            return self._suspend(registration, on_stream.stream, error)
        return []

    def _process(self, series: TickerSeries, on_stream: StreamRuns, released: list[Row]) -> list[Outcome]:
        found: list[Outcome] = []
        stream = on_stream.stream
        ticker, period_ns = series.ticker, series.period_seconds * SECOND_NS
        for row in released:
            n = stream.next
            on_stream.wake(row)
            stream.rows.append(row)
            known_ns = row[0] + period_ns
            for plain in on_stream.awake.plain():
                try:
                    fits = plain.test(row, ticker)
                    if METER.steps:
                        _charge(self._registrations[plain.trigger_id], row[0])
                    if fits is plain.latch:
                        continue
                except Exception as error:
                    found += self._suspend(self._registrations[plain.trigger_id], stream, error)
                    continue
                found += self._step(series, stream, plain, n, row, known_ns)
            for run in on_stream.awake.others():
                found += self._step(series, stream, run, n, row, known_ns)
            on_stream.settle(row)
            for candles in list(on_stream.running.values()):
                found += self._form(on_stream, candles, candles.trade(row, series.since_ns))
        return found

    def _form(self, on_stream: StreamRuns, candles: RunningCandles, formed: Iterable[Formed]) -> list[Outcome]:
        """Evaluate the conditions on a running candle after each of its trades."""
        found: list[Outcome] = []
        try:
            for each in formed:
                for trigger_id in list(candles.runs):
                    found += self._form_one(on_stream, candles, trigger_id, each)
        except TriggerFailed as error:
            for trigger_id in list(candles.runs):
                found += self._suspend(self._registrations[trigger_id], on_stream.stream, error)
        return found

    def _pass(self, on_stream: StreamRuns, candles: RunningCandles, closed: Sequence[Row]) -> list[Outcome]:
        found: list[Outcome] = []
        for trigger_id, run in list(candles.runs.items()) if closed else []:
            try:
                run.on_closed(closed)
                _charge(self._registrations[trigger_id], closed[-1][0])
            except Exception as error:
                found += self._suspend(self._registrations[trigger_id], on_stream.stream, error)
        return found

    def _form_one(
        self, on_stream: StreamRuns, candles: RunningCandles, trigger_id: str, formed: Formed
    ) -> list[Outcome]:
        registration, run = self._registrations.get(trigger_id), candles.runs.get(trigger_id)
        ticker = on_stream.stream.ticker
        if registration is None or run is None:
            return []
        try:
            if formed.closed:
                run.on_closed(formed.closed)
            candle = formed.candle
            silent = registration.knew(ticker, candle[TRADE_TIME_SLOT], candle[TRADE_ID_SLOT])
            result = run.on_candle(candle, silent)
            _charge(registration, candle[0])
        except Exception as error:
            return self._suspend(registration, on_stream.stream, error)
        if result is None:
            return []
        row = candle[TRADE_TIME_SLOT], candle[TRADE_ID_SLOT]
        return self._deliver(registration, self._series[TRADES_PERIOD, ticker], on_stream.stream, result, row)

    def _step(
        self,
        series: TickerSeries,
        stream: Stream,
        run: Run,
        n: int,
        row: Row,
        known_ns: int,
    ) -> list[Outcome]:
        registration = self._registrations.get(run.trigger_id)
        if registration is None:
            return []
        try:
            result = run.on_row(stream, n, row, registration.knew(series.ticker, known_ns, row[1]))
            if METER.steps:
                _charge(registration, row[0])
        except Exception as error:
            return self._suspend(registration, stream, error)
        if result is None:
            return []
        return self._deliver(registration, series, stream, result, (row[0], row[1]))

    def _time(self, series: TickerSeries, on_stream: StreamRuns) -> list[Outcome]:
        found: list[Outcome] = []
        stream = on_stream.stream
        for run in on_stream.timed():
            registration = self._registrations.get(run.trigger_id)
            if registration is None:
                continue
            try:
                results = run.on_time(stream, stream.watermark_ns, registration.silent_until(series.ticker))
                _charge(registration, stream.watermark_ns)
            except Exception as error:
                found += self._suspend(registration, stream, error)
                continue
            for result in results:
                found += self._deliver(registration, series, stream, result)
        return found

    def _deliver(
        self,
        registration: Registration,
        series: TickerSeries,
        stream: Stream,
        result: RunResult,
        row: tuple[int, object] | None = None,
    ) -> list[Outcome]:
        """Return the outcomes of a result that a row has given, by its time and identity, or else the watermark."""
        if registration.trigger_id not in self._registrations:
            return []
        period_ns, stamp_ns = series.period_seconds * SECOND_NS, self._stamp_ns
        if row is not None and registration.has_been_paused(stream.ticker):
            stamp_ns = series.stamp_of(*row)
        if registration.is_silenced(stream.ticker, stamp_ns):
            found = withhold(registration, stream, result, period_ns, stamp_ns)
        else:
            found = deliver(registration, stream, result, period_ns)
        if found and isinstance(found[-1], TriggerEnded):
            self.remove(registration.trigger_id)
        return found

    def _suspend(self, registration: Registration, stream: Stream, error: Exception) -> list[Outcome]:
        self.remove(registration.trigger_id)
        METER.take()  # its steps are not the next trigger's
        reason = str(error) if isinstance(error, TriggerFailed) else f"internal error: {type(error).__name__}: {error}"
        time_ns = max(stream.newest_ns, 0)
        return [Suspension(registration.trigger_id, registration.number, stream.ticker, time_ns, reason)]

    def dump(self) -> EngineState:
        """Return the triggers and their state, with a version."""
        triggers = (
            [
                each.trigger_id,
                each.number,
                *each.text(),
                each.at_ns,
                sorted(each.tickers) if each.tickers is not None else None,
                each.revision,
            ]
            for each in self._registrations.values()
        )
        noted: dict[str, list[Registration]] = {series.ticker: [] for series in self._series.values()}
        for each in self._registrations.values():
            for ticker in each.noted_on():
                noted.setdefault(ticker, []).append(each)
        several: dict[str, list[TickerSeries]] = {}
        for series in self._series.values():
            several.setdefault(series.ticker, []).append(series)
        # one ticker after another, because what becomes JSON takes several times the memory of the triggers
        parts = {ticker: to_json(_part(ticker, several.get(ticker, ()), noted[ticker])) for ticker in sorted(noted)}
        return EngineState.of(triggers, parts)

    @classmethod
    def load(cls, state: EngineState, *, idle_grace_seconds: int = IDLE_GRACE_SECONDS) -> Engine:
        """Return the engine that ``dump`` described.

        Raises:
            InvalidRequest: The state has another version.
        """
        engine = cls(idle_grace_seconds=idle_grace_seconds)
        known: dict[tuple[Any, ...], CompiledTrigger] = {}
        last_ns = 0
        for trigger_id, number, sql, given, at_ns, tickers, *edited in state.registrations():
            last_ns = at_ns if at_ns != last_ns else last_ns  # one number for all triggers of a call
            kind, level = find_alert(sql, given) or kind_of(_shared(known, sql, given))
            chosen = _together(frozenset(tickers)) if tickers is not None else None
            revision = edited[0] if edited else 1
            engine._registrations[trigger_id] = Registration(
                trigger_id, number, kind, level, last_ns, chosen, revision=revision
            )
        for ticker, part in state.tickers.items():
            delivered, several, *more = from_json(part)
            heard, paused, silent = [*more, {}, {}, {}][:3]  # an earlier version has fewer of them
            for trigger_id, values in heard.items():
                until_ns, trade_ids = values if isinstance(values, list) else (values, ())  # of an earlier version
                engine._registrations[trigger_id].hear(ticker, Heard(until_ns, frozenset(trade_ids)))
            for trigger_id, spans in silent.items():
                spans = [[0, spans]] if isinstance(spans, int) else spans  # of an earlier version: the last one's end
                registration = engine._registrations[trigger_id]
                registration.silent = with_entry(registration.silent, ticker, [(start, end) for start, end in spans])
            for trigger_id, values in paused.items():
                registration = engine._registrations[trigger_id]
                kept = decoded(values, registration, ticker)
                registration.withheld = with_entry(registration.withheld, ticker, kept)
            for trigger_id, values in delivered.items():
                registration = engine._registrations[trigger_id]
                registration.delivered = with_entry(registration.delivered, ticker, Delivered(*values))
            for each in several:
                series = TickerSeries.restored(ticker, each, lambda name: engine._registrations[name])
                engine._series[series.period_seconds, ticker] = series
        for registration in engine._registrations.values():
            for series in engine._of(registration):
                if series.ticker not in registration.heard:
                    series.deaf.add(registration.trigger_id)
        return engine


def _part(ticker: str, several: Iterable[TickerSeries], registrations: Iterable[Registration]) -> list[Any]:
    """Return the state of a ticker as JSON values."""
    delivered, heard, paused, silent = dict[str, Any](), dict[str, Any](), dict[str, Any](), dict[str, Any]()
    for each in registrations:
        name = each.trigger_id
        if (sent := each.delivered.get(ticker)) is not None:
            delivered[name] = [sent.until_ns, sent.suppressed, sent.open]
        if (known := each.heard.get(ticker)) is not None:
            heard[name] = [known.until_ns, sorted(known.trade_ids)]
        if ticker in each.withheld:
            paused[name] = encoded(each.withheld[ticker])
        if ticker in each.silent:
            silent[name] = list(map(list, each.silent[ticker]))
    return [delivered, [series.dump() for series in several], heard, paused, silent]


@lru_cache(maxsize=4_096)
def _together(tickers: frozenset[str]) -> frozenset[str]:
    """Return markets that all triggers on them share."""
    return tickers


def _shared(known: dict[tuple[Any, ...], CompiledTrigger], sql: str, given: Mapping[str, str]) -> CompiledTrigger:
    """Return a trigger that those with the same text share."""
    key = sql, *given.items()
    if key not in known:
        if len(known) == _KNOWN_TEXTS:
            known.clear()
        known[key] = compile_trigger(sql, given)
    return known[key]


def _charge(registration: Registration, time_ns: int) -> None:
    """Charge a trigger for the texts of a row; TriggerFailed if they are too much."""
    if METER.steps:
        registration.account.spend(METER.take(), time_ns, because="bytes of texts", remedy="use shorter texts")


def backtest(
    compiled: CompiledTrigger,
    ticker: str,
    rows: Sequence[Sequence[Any]],
    candles: Sequence[Sequence[Any]] = (),
    *,
    since_ns: int = 0,
) -> list[Outcome]:
    """Return the events of a trigger over past rows of a ticker, oldest first.

    Args:
        compiled: The trigger.
        ticker: The market.
        rows: As ``Engine.feed_candles`` or ``Engine.feed_ticks`` takes them: trades for a running candle.
        candles: The closed candles of the same time, for a running candle.
        since_ns: Start of the known trades.

    Returns:
        Events (``Firing``) in order. The last one is a ``TriggerEnded`` or a ``Suspension`` if the trigger would have
        ended.
    """
    engine = Engine()
    engine.add("backtest", 1, compiled, 0)
    if not compiled.is_running and compiled.source == "ohlc":
        return engine.feed_candles(ticker, compiled.period_seconds, rows)
    if not compiled.is_running:
        return engine.feed_ticks(ticker, rows)
    engine.feed_ticks(ticker, [], since_ns=since_ns)
    found = engine.feed_candles(ticker, compiled.period_seconds, candles)
    found += engine.settle(ticker, compiled.period_seconds, MAX_TIME_NS)
    return found + engine.feed_ticks(ticker, rows) + engine.settle(ticker, 0, MAX_TIME_NS)
