"""Running candles, built from trades while they form, and conditions on them (``on=tick``, ``on=bar``). Pure.

A condition sees one row at every trade, the candle so far. The rows before it, for OVER and LAG, are the closed
candles. Trades and closed candles come from two topics, in any order between them; the result must not depend on it:

- a trade waits until the candles before its own are settled (only if the condition looks back);
- a closed candle becomes a row before once a trade of a later one is evaluated, or trades are settled up to its end.

A candle with unknown first trades is left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from dexorder_cep.compile.arithmetic import TriggerFailed
from dexorder_cep.compile.plans import PlainPlan
from dexorder_cep.compile.trigger import CompiledTrigger
from dexorder_cep.run.account import Account
from dexorder_cep.run.runs import PlainRun, RunResult
from dexorder_cep.run.stages import RowStage
from dexorder_cep.run.stream import NO_TIME, Row, RowsOfTicker

TRADE_ID_SLOT, TRADE_TIME_SLOT = 8, 9
"""Slots of a running candle after the candle's slots: id and time of its newest trade."""
MAX_WAITING_TRADES = 100_000
"""Trades of a ticker that may wait for a closed candle."""
_ALWAYS = 2**63 - 1


class Formed(NamedTuple):
    """A running candle after a trade, and the closed candles that are rows before it since the trade before."""

    candle: Row
    closed: tuple[Row, ...]


class RunningCandles:
    """Candle of one ticker and period that forms, and the conditions on it.

    Attributes:
        runs: The conditions by trigger id.
        looks_back: Whether they need the closed candles before it.
    """

    __slots__ = ("_candle", "_closed", "_period_ns", "_settled_ns", "_trades", "looks_back", "runs")

    def __init__(self, period_ns: int, *, looks_back: bool, settled_ns: int = NO_TIME) -> None:
        """Start without a trade; closed candles that open before ``settled_ns`` are known."""
        self.runs: dict[str, RunningRun] = {}
        self.looks_back = looks_back
        self._period_ns = period_ns
        self._settled_ns = settled_ns if looks_back else _ALWAYS
        self._candle: Row | None = None
        self._trades: deque[Row] = deque()
        self._closed: deque[Row] = deque()

    @property
    def first_waiting_ns(self) -> int:
        """Open time of the first closed candle that is not a row before yet."""
        return int(self._closed[0][0]) if self._closed else _ALWAYS

    def trade(self, row: Row, since_ns: int) -> Iterator[Formed]:
        """Take a trade; trades are known from ``since_ns`` on.

        Raises:
            TriggerFailed: Too many trades wait for the closed candles.
        """
        if row[0] - row[0] % self._period_ns < since_ns:
            return
        if len(self._trades) >= MAX_WAITING_TRADES:
            self._trades.clear()
            raise TriggerFailed(
                f"{MAX_WAITING_TRADES} trades wait for the closed candles before them, which do not come"
            )
        self._trades.append(row)
        yield from self._ready()

    def close(self, candles: Sequence[Row]) -> None:
        """Take closed candles, which are rows before the trades of later ones."""
        if self.looks_back:
            self._closed.extend(candles)

    def settle(self, until_ns: int) -> Iterator[Formed]:
        """Note that every candle that opens before a time is closed."""
        if self.looks_back:
            self._settled_ns = max(self._settled_ns, until_ns)
            yield from self._ready()

    def passed(self, until_ns: int) -> tuple[Row, ...]:
        """Return the closed candles that become rows before because all trades before a time are known."""
        return () if self._trades else self._before(until_ns - self._period_ns + 1)

    def _before(self, open_ns: int) -> tuple[Row, ...]:
        found = []
        while self._closed and self._closed[0][0] < open_ns:
            found.append(self._closed.popleft())
        return tuple(found)

    def _ready(self) -> Iterator[Formed]:
        while self._trades and self._trades[0][0] - self._trades[0][0] % self._period_ns <= self._settled_ns:
            trade = self._trades.popleft()
            open_ns = trade[0] - trade[0] % self._period_ns
            self._candle = _with_trade(self._candle, open_ns, trade)
            yield Formed(self._candle, self._before(open_ns))

    def dump(self) -> list[Any]:
        """Return the state as JSON values."""
        state = [self._settled_ns, self._candle, list(self._trades), list(self._closed)]
        return [*state, {trigger_id: run.dump() for trigger_id, run in self.runs.items()}]

    def restore(self, state: Sequence[Any]) -> None:
        """Take over a state that ``dump`` returned, without its runs."""
        self._settled_ns = state[0]
        self._candle = tuple(state[1]) if state[1] is not None else None
        self._trades = deque(map(tuple, state[2]))
        self._closed = deque(map(tuple, state[3]))


def _with_trade(candle: Row | None, open_ns: int, trade: Row) -> Row:
    time_ns, trade_id, price, amount = trade[:4]
    if candle is None or candle[0] != open_ns:
        return (open_ns, price, price, price, price, amount, price * amount, 1, trade_id, time_ns)
    _, opened, high, low, _, volume, quote_volume, trades, _, _ = candle
    return (
        open_ns,
        opened,
        max(high, price),
        min(low, price),
        price,
        volume + amount,
        quote_volume + price * amount,
        trades + 1,
        trade_id,
        time_ns,
    )


class RunningRun:
    """Plain condition on the running candle of one ticker."""

    __slots__ = ("_filtered", "_inner", "_newest", "_rows", "_stages")

    def __init__(self, trigger: CompiledTrigger, ticker: str, account: Account) -> None:
        assert isinstance(trigger.plan, PlainPlan)
        self._inner = PlainRun(trigger)
        self._stages = [RowStage(step, account) for step in trigger.plan.rows_steps]
        self._filtered = trigger.plan.filtered
        self._newest: tuple[Row | None, bool] | None = None
        self._rows = RowsOfTicker(ticker)

    def on_closed(self, candles: Sequence[Row]) -> None:
        """Take closed candles as rows before the running one."""
        ticker = self._rows.ticker
        for each in candles:
            row: Row | None = each
            for stage in self._stages:
                row = stage.push(row, ticker) if row is not None else None

    def on_candle(self, candle: Row, silent: bool) -> RunResult | None:
        """Take the candle after a trade; ``silent`` for a trade that was known at the registration."""
        row: Row | None = candle[:TRADE_ID_SLOT] if self._stages else candle
        for stage in self._stages:
            row = stage.peek(row, self._rows.ticker) if row is not None else None
        if row is not None or self._filtered:
            self._newest = row, silent
        if row is not None:
            found = self._inner.on_row(self._rows, 0, row, silent)
        else:
            found = self._inner.missed(self._rows, candle, silent) if self._filtered else None
        return found._replace(first=candle, last=candle, time_ns=candle[TRADE_TIME_SLOT]) if found is not None else None

    def dump(self) -> Any:
        """Return the state of the stages and the latch."""
        return [[stage.dump() for stage in self._stages], self._inner.dump(), self._newest]

    def take_over(self, old: RunningRun) -> None:
        """Continue after the run of an edited trigger with the same rows."""
        fresh = self._inner.latch
        self.restore(old.dump())
        latch, self._inner.latch = self._inner.latch, fresh
        self._inner.take_over(latch, self._rows, self._newest)

    def restore(self, state: Any) -> None:
        """Take over a state."""
        stages, latch, *more = state
        if more and more[0] is not None:
            row, silent = more[0]
            self._newest = tuple(row) if row is not None else None, silent
        for stage, kept in zip(self._stages, stages, strict=True):
            stage.restore(kept)
        self._inner.restore(latch)
