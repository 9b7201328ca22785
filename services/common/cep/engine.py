"""Engine of the triggers: rows in, events out. Pure.

The caller feeds closed candles and trades in batches, registers and removes triggers between them, and stores ``dump``
with the events of each batch: an engine that is loaded from it and fed the same rows returns the same events with the
same ids.

A trigger that fails is suspended: the caller gets a ``Suspension`` and the trigger is removed. No other trigger
notices.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from dexorder.services.common.cep.arithmetic import TriggerFailed
from dexorder.services.common.cep.compiled import CompiledTrigger, compile_trigger
from dexorder.services.common.cep.delivery import Delivered, Registration, deliver
from dexorder.services.common.cep.outcomes import Ended, Outcome, Suspension
from dexorder.services.common.cep.parameters import MAX_WARMUP_ROWS
from dexorder.services.common.cep.runs import DerivedRun, MatchRun, PlainRun, Result, start_run
from dexorder.services.common.cep.stream import MILLISECOND_NS, Row, Stream
from dexorder.services.common.model.errors import InvalidRequest

STATE_VERSION = 1
RING_ROWS = MAX_WARMUP_ROWS + 1_000
"""Newest rows of a ticker that are kept for the warm-up of new triggers and for PREV."""
IDLE_GRACE_SECONDS = 30
"""Time by which a closed candle or a trade may reach the engine after its event time, when no newer row has come."""
_SECOND_NS = 1_000_000_000
_DECIMAL_KEY = "$decimal"

Run = PlainRun | MatchRun | DerivedRun
Variant = tuple[int, tuple[tuple[int, bool], ...]]
"""Delay in milliseconds and order of rows of one time: what tells the streams of a ticker apart."""


@dataclass(slots=True)
class _Lane:
    """A stream and the runs on it, by trigger id."""

    stream: Stream
    plain: dict[str, PlainRun] = field(default_factory=dict)
    others: dict[str, MatchRun | DerivedRun] = field(default_factory=dict)
    timed: dict[str, Run] = field(default_factory=dict)

    def add(self, trigger_id: str, run: Run) -> None:
        if isinstance(run, PlainRun):
            self.plain[trigger_id] = run
        else:
            self.others[trigger_id] = run
        if run.timed:
            self.timed[trigger_id] = run

    def remove(self, trigger_id: str) -> None:
        for runs in (self.plain, self.others, self.timed):
            runs.pop(trigger_id, None)

    def runs(self) -> Iterator[tuple[str, Run]]:
        yield from self.plain.items()
        yield from self.others.items()


@dataclass(slots=True)
class _Series:
    """Streams of a ticker's candles of one period, or of its trades."""

    ticker: str
    period_seconds: int
    lanes: dict[Variant, _Lane] = field(default_factory=dict)


class Engine:
    """Triggers and their state on all tickers."""

    def __init__(self, *, idle_grace_seconds: int = IDLE_GRACE_SECONDS) -> None:
        self._registrations: dict[str, Registration] = {}
        self._series: dict[tuple[int, str], _Series] = {}
        self._grace_ns = idle_grace_seconds * _SECOND_NS

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
    ) -> list[Outcome]:
        """Register a trigger; it examines the newest rows of its tickers without firing.

        Args:
            trigger_id: Not registered yet.
            registration_number: Differs from that of every earlier registration of the id.
            compiled: The trigger.
            at_ns: Time of the registration; rows whose candle was closed, or that were traded, by then never fire.
            tickers: Markets; None or none for all.
        Returns:
            A suspension if the trigger fails on those rows.
        """
        if trigger_id in self._registrations:
            raise InvalidRequest(f"trigger_id {trigger_id!r} is registered")
        chosen = frozenset(tickers) if tickers else None
        registration = Registration(trigger_id, registration_number, compiled, at_ns, chosen)
        self._registrations[trigger_id] = registration
        found: list[Outcome] = []
        for series in list(self._series.values()):
            if series.period_seconds == compiled.period_seconds and registration.wants(series.ticker):
                found += self._begin(registration, series)
                if found:
                    break
        return found

    def remove(self, trigger_id: str) -> None:
        """Remove a trigger; nothing happens if it is not registered."""
        if self._registrations.pop(trigger_id, None) is not None:
            for series in self._series.values():
                for lane in series.lanes.values():
                    lane.remove(trigger_id)

    def feed_candles(self, ticker: str, period_seconds: int, rows: Iterable[Sequence[Any]]) -> list[Outcome]:
        """Take closed candles of a series.

        Args:
            ticker: The market.
            period_seconds: Their period.
            rows: Open time in ns, open, high, low, close, volume, quote volume or None, number of trades or None: the
                order of ``dexorder.services.common.model.page.Candle``. A candle that is not newer than those before
                it is late.
        """
        return self._feed(ticker, period_seconds, (tuple(row) for row in rows))

    def feed_ticks(self, ticker: str, rows: Iterable[Sequence[Any]]) -> list[Outcome]:
        """Take trades of a market.

        Args:
            ticker: The market.
            rows: Time in ns, the exchange's id, price, amount, side or None. Times are cut to milliseconds, as Flink
                does.
        """
        return self._feed(ticker, 0, ((row[0] - row[0] % MILLISECOND_NS, *row[1:]) for row in rows))

    def advance(self, now_ns: int) -> list[Outcome]:
        """Move the watermarks of tickers without new rows, and end the triggers that expire.

        A watermark follows the clock at the distance of the period, the delay and ``idle_grace_seconds``, so that a row
        that is on its way is not late.
        """
        found: list[Outcome] = []
        for registration in list(self._registrations.values()):
            expires = registration.compiled.parameters.expires_ns
            if expires is not None and now_ns >= expires:
                found.append(Ended(registration.trigger_id, registration.number, expires, "expired"))
                self.remove(registration.trigger_id)
        for series in self._series.values():
            for (delay_ms, _), lane in series.lanes.items():
                distance = self._grace_ns + series.period_seconds * _SECOND_NS + delay_ms * MILLISECOND_NS
                if now_ns - distance > lane.stream.watermark_ns:
                    found += self._process(series, lane, lane.stream.release(now_ns - distance))
                    found += self._time(series, lane)
        return found

    def settle(self, ticker: str, period_seconds: int, until_ns: int) -> list[Outcome]:
        """Move the watermark of a series, of which every candle that opens, or trade, before a time has been fed.

        So windows close and WITHIN ends in a quiet market, and no row is late because of a clock.
        """
        series = self._series.get((period_seconds, ticker))
        found: list[Outcome] = []
        if series is None:
            return found
        for (delay_ms, _), lane in series.lanes.items():
            watermark_ns = until_ns - (1 + delay_ms) * MILLISECOND_NS
            if watermark_ns > lane.stream.watermark_ns:
                found += self._process(series, lane, lane.stream.release(watermark_ns))
                found += self._time(series, lane)
        return found

    def _feed(self, ticker: str, period_seconds: int, rows: Iterable[Row]) -> list[Outcome]:
        series = self._series.get((period_seconds, ticker))
        if series is None:
            series = self._open(ticker, period_seconds)
        found: list[Outcome] = []
        lanes = list(series.lanes.values())
        for row in rows:
            for lane in lanes:
                if row[0] <= lane.stream.watermark_ns:
                    self._late(series, lane, row)
                    continue
                released = lane.stream.offer(row)
                if released:
                    found += self._process(series, lane, released)
                    found += self._time(series, lane)
        for lane in lanes:
            runs = lane.others.values()
            lane.stream.trim(RING_ROWS, lambda runs=runs: min((run.oldest for run in runs), default=2**62))  # type: ignore[misc]
        return found

    def _late(self, series: _Series, lane: _Lane, row: Row) -> None:
        """Count a late row. Windows take a late trade while they are open; a late candle was known before."""
        lane.stream.late += 1
        if not series.period_seconds:
            for run in lane.timed.values():
                if isinstance(run, DerivedRun):
                    run.on_late(row)

    def _open(self, ticker: str, period_seconds: int) -> _Series:
        series = _Series(ticker, period_seconds)
        self._series[period_seconds, ticker] = series
        self._lane(series, (_default_delay(period_seconds), ()))
        for registration in self._registrations.values():
            if registration.compiled.period_seconds == period_seconds and registration.wants(ticker):
                self._begin(registration, series)
        return series

    def _lane(self, series: _Series, variant: Variant) -> _Lane:
        lane = series.lanes.get(variant)
        if lane is None:
            delay_ms, order = variant
            lead = (series.period_seconds * 1_000 - 1 if series.period_seconds else 0) - delay_ms
            lane = series.lanes[variant] = _Lane(Stream(series.ticker, lead * MILLISECOND_NS, order))
            first = next(iter(series.lanes.values()))
            lane.stream.seed(first.stream)
        return lane

    def _begin(self, registration: Registration, series: _Series) -> list[Outcome]:
        """Start a trigger on a ticker: examine the newest rows without firing."""
        parameters = registration.compiled.parameters
        lane = self._lane(series, (parameters.delay_ms, registration.compiled.order))
        run = start_run(registration.compiled, series.ticker)
        lane.add(registration.trigger_id, run)
        stream = lane.stream
        count = min(parameters.warmup, len(stream.rows))
        first = len(stream.rows) - count
        whole, base = stream.rows, stream.base
        found: list[Outcome] = []
        stream.rows = whole[:first]
        try:
            for index in range(first, len(whole)):
                stream.rows.append(whole[index])
                run.on_row(stream, base + index, whole[index], True)
        except Exception as error:
            found = self._suspend(registration, stream, error)
        stream.rows = whole
        return found

    def _process(self, series: _Series, lane: _Lane, released: list[Row]) -> list[Outcome]:
        found: list[Outcome] = []
        stream = lane.stream
        ticker, period_ns = series.ticker, series.period_seconds * _SECOND_NS
        for row in released:
            n = stream.next
            stream.rows.append(row)
            known_ns = row[0] + period_ns
            for trigger_id, plain in list(lane.plain.items()):
                try:
                    fits = plain.test(row, ticker)
                    if fits is plain.latch:
                        continue
                except Exception as error:
                    found += self._suspend(self._registrations[trigger_id], stream, error)
                    continue
                found += self._step(series, stream, trigger_id, plain, n, row, known_ns)
            for trigger_id, run in list(lane.others.items()):
                found += self._step(series, stream, trigger_id, run, n, row, known_ns)
        return found

    def _step(
        self,
        series: _Series,
        stream: Stream,
        trigger_id: str,
        run: Run,
        n: int,
        row: Row,
        known_ns: int,
    ) -> list[Outcome]:
        registration = self._registrations.get(trigger_id)
        if registration is None:
            return []
        try:
            result = run.on_row(stream, n, row, known_ns <= registration.at_ns)
        except Exception as error:
            return self._suspend(registration, stream, error)
        return self._deliver(registration, series, stream, result) if result is not None else []

    def _time(self, series: _Series, lane: _Lane) -> list[Outcome]:
        found: list[Outcome] = []
        stream = lane.stream
        for trigger_id, run in list(lane.timed.items()):
            registration = self._registrations.get(trigger_id)
            if registration is None:
                continue
            try:
                results = run.on_time(stream, stream.watermark_ns, registration.at_ns)
            except Exception as error:
                found += self._suspend(registration, stream, error)
                continue
            for result in results:
                found += self._deliver(registration, series, stream, result)
        return found

    def _deliver(self, registration: Registration, series: _Series, stream: Stream, result: Result) -> list[Outcome]:
        if registration.trigger_id not in self._registrations:
            return []
        found = deliver(registration, stream, result, series.period_seconds * _SECOND_NS)
        if found and isinstance(found[-1], Ended):
            self.remove(registration.trigger_id)
        return found

    def _suspend(self, registration: Registration, stream: Stream, error: Exception) -> list[Outcome]:
        self.remove(registration.trigger_id)
        reason = str(error) if isinstance(error, TriggerFailed) else f"internal error: {type(error).__name__}: {error}"
        time_ns = max(stream.newest_ns, 0)
        return [Suspension(registration.trigger_id, registration.number, stream.ticker, time_ns, reason)]

    def dump(self) -> bytes:
        """Return the triggers and their state, with a version."""
        triggers = [
            [
                each.trigger_id,
                each.number,
                each.compiled.sql,
                dict(each.compiled.given),
                each.at_ns,
                sorted(each.tickers) if each.tickers is not None else None,
                {ticker: [d.until_ns, d.suppressed, d.open] for ticker, d in each.delivered.items()},
            ]
            for each in self._registrations.values()
        ]
        series = [
            [
                each.ticker,
                each.period_seconds,
                [
                    [variant, lane.stream.dump(), {trigger_id: run.dump() for trigger_id, run in lane.runs()}]
                    for variant, lane in each.lanes.items()
                ],
            ]
            for each in self._series.values()
        ]
        state = {"version": STATE_VERSION, "triggers": triggers, "series": series}
        return json.dumps(state, separators=(",", ":"), default=_encode).encode()

    @classmethod
    def load(cls, state: bytes, *, idle_grace_seconds: int = IDLE_GRACE_SECONDS) -> Engine:
        """Return the engine that ``dump`` described.

        Raises:
            InvalidRequest: The state has another version.
        """
        found = json.loads(state, object_hook=_decode)
        if found.get("version") != STATE_VERSION:
            raise InvalidRequest(f"state of triggers has version {found.get('version')!r}; this is {STATE_VERSION}")
        engine = cls(idle_grace_seconds=idle_grace_seconds)
        known: dict[tuple[str, str], CompiledTrigger] = {}
        for trigger_id, number, sql, given, at_ns, tickers, delivered in found["triggers"]:
            key = sql, json.dumps(given, sort_keys=True)
            if key not in known:
                known[key] = compile_trigger(sql, given)
            chosen = frozenset(tickers) if tickers is not None else None
            sent = {ticker: Delivered(*values) for ticker, values in delivered.items()}
            engine._registrations[trigger_id] = Registration(trigger_id, number, known[key], at_ns, chosen, sent)
        for ticker, period_seconds, lanes in found["series"]:
            series = engine._series[period_seconds, ticker] = _Series(ticker, period_seconds)
            for (delay_ms, order), stream, runs in lanes:
                lane = engine._lane(series, (delay_ms, tuple((slot, descending) for slot, descending in order)))
                lane.stream.restore(stream)
                for trigger_id, kept in runs.items():
                    run = start_run(engine._registrations[trigger_id].compiled, ticker)
                    if kept is not None:
                        run.restore(kept)
                    lane.add(trigger_id, run)
        return engine


def _default_delay(period_seconds: int) -> int:
    return 0 if period_seconds else 1


def _encode(value: Any) -> dict[str, str]:
    """Return JSON for a DECIMAL, the only value that has none."""
    if not isinstance(value, Decimal):
        raise TypeError(f"{type(value).__name__} in the state of triggers")
    return {_DECIMAL_KEY: str(value)}


def _decode(value: dict[str, Any]) -> Any:
    return Decimal(value[_DECIMAL_KEY]) if len(value) == 1 and _DECIMAL_KEY in value else value
