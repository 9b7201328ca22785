"""View of one market's live data: its memory and its drawing. Pure; times are passed in."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dexorder.charts.bars import Bar
from dexorder.charts.text import DIM, DOWN, UP, lines, volume_line
from dexorder.cli.terminal.output import safe
from dexorder.client.live import LiveCandle, LiveTrade, LiveUpdate
from dexorder_common.model.periods import PERIODS
from dexorder_common.model.realtime import ProvisionalSpan, RealtimeState
from dexorder_common.model.times import SECOND_NS, to_datetime

_KEPT_CANDLES = 500
_KEPT_TRADES = 50
_LEGEND_WIDTH = 20
_SIDES = {"buy": UP, "sell": DOWN}


class WatchView:
    """State of a watched market: its candles by period, its last trades, and how many were not shown."""

    def __init__(self, ticker: str, periods: Sequence[int]) -> None:
        """Show ``ticker``; the chart is of the first of ``periods``."""
        self.ticker = ticker
        self.periods = tuple(periods)
        self.status = RealtimeState.WAITING
        self.waiting = ""
        self.provisional: Sequence[ProvisionalSpan] = ()
        self.missed = 0
        self._candles: dict[int, dict[int, LiveCandle]] = {each: {} for each in self.periods}
        self._trades: deque[LiveTrade] = deque(maxlen=_KEPT_TRADES)
        self._received_ns = 0
        self._lag_ns = 0

    def add_stored(self, candles: Iterable[LiveCandle]) -> None:
        """Add candles of the table, which live ones replace."""
        for candle in candles:
            self._candles[candle.period_seconds].setdefault(candle.open_ns, candle)

    def add(self, update: LiveUpdate, *, now_ns: int) -> None:
        """Add an update that arrived at ``now_ns``."""
        self.missed += sum(each.count for each in update.missed if not each.period_seconds)
        self.status = next((s for name, s in reversed(update.statuses) if name == self.ticker), self.status)
        self.waiting = update.waiting.get(self.ticker, self.waiting)
        self.provisional = update.provisional.get(self.ticker, self.provisional)
        for trade in update.trades:
            if not any(trade.trade_id == known.trade_id for known in self._trades):  # they may come again
                self._trades.append(trade)
        for candle in update.candles:
            if candle.period_seconds in self._candles:
                self._candles[candle.period_seconds][candle.open_ns] = candle
        for known in self._candles.values():
            for open_ns in sorted(known)[:-_KEPT_CANDLES]:
                del known[open_ns]
        if update.trades:
            self._received_ns = now_ns
            self._lag_ns = now_ns - update.trades[-1].time_ns

    def render(self, width: int, height: int, *, now_ns: int) -> RenderableType:
        """Return the view for a terminal of this size."""
        parts: list[RenderableType] = [self._heading(now_ns)]
        trades = max(3, min(10, height // 4))
        if self.periods:
            chart_height = max(4, height - trades - len(self.periods) - 9)
            parts += [self._chart(width, chart_height), self._newest_candles()]
        parts.append(self._last_trades(trades))
        return Group(*parts)

    def _heading(self, now_ns: int) -> Text:
        text = Text(f"{self.ticker}  ", style="bold")
        if last := self._last_price():
            text.append(f"{price_text(last)}  ", style="bold")
        style = UP if self.status is RealtimeState.RUNNING else "yellow"
        text.append(self.status.name.lower(), style=style)
        if self._received_ns:
            silent_s = max(0, now_ns - self._received_ns) // SECOND_NS
            text.append(f"  lag {self._lag_ns / 1e6:,.0f} ms, last trade {silent_s:,} s ago", style=DIM)
        elif self.status is RealtimeState.WAITING:
            text.append("  waiting for an ingestor; `dexorder realtime list` shows why", style=DIM)
        if self.missed:
            text.append(f"  {self.missed:,} trades not shown, as this terminal was too slow", style="yellow")
        if self.waiting:
            text.append(f"\nlive only, nothing is stored now: {self.waiting}", style="yellow")
        if self.provisional:
            count = len(self.provisional)
            spans = f"{count:,} provisional {'span' if count == 1 else 'spans'}"
            text.append(f"\n{spans} of trades: `dexorder realtime list` shows why", style="yellow")
        return text

    def _last_price(self) -> float | None:
        if self._trades:
            return self._trades[-1].price
        newest = [max(known.values(), key=lambda c: c.open_ns) for known in self._candles.values() if known]
        return max(newest, key=lambda c: (c.open_ns, c.period_seconds)).close if newest else None

    def _chart(self, width: int, height: int) -> RenderableType:
        known = self._candles[self.periods[0]]
        name = PERIODS[self.periods[0]]
        if not known:
            return Text(f"no {name} candle yet", style=DIM)
        shown = [known[open_ns] for open_ns in sorted(known)][-max(width - _LEGEND_WIDTH, 1) :]
        columns = [Bar(c.open_ns, c.open, c.high, c.low, c.close, c.volume) for c in shown]
        axis = Text(f"{name}, {_clock(columns[0].open_ns)} to {_clock(columns[-1].open_ns)} UTC", style=DIM)
        return Group(*lines(columns, height), volume_line(columns), axis)

    def _newest_candles(self) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name in ("period", "open time", "open", "high", "low", "close", "volume", "trades", ""):
            table.add_column(name, justify="left" if name in ("period", "open time", "") else "right", no_wrap=True)
        for period in self.periods:
            known = self._candles[period]
            if not known:
                continue
            candle = known[max(known)]
            prices = map(price_text, (candle.open, candle.high, candle.low, candle.close))
            count = "" if candle.trade_count is None else f"{candle.trade_count:,}"
            state = "amended" if candle.amends else "closed" if candle.closed else "open"
            table.add_row(PERIODS[period], _clock(candle.open_ns), *prices, f"{candle.volume:,.8g}", count, state)
        return table

    def _last_trades(self, count: int) -> RenderableType:
        if not self._trades:
            return Text("no trade yet", style=DIM)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name in ("trade time", "price", "amount", "side", "id"):
            table.add_column(name, justify="right" if name in ("price", "amount") else "left", no_wrap=True)
        for trade in list(self._trades)[: -count - 1 : -1]:
            style = _SIDES.get(trade.side, "")
            table.add_row(
                to_datetime(trade.time_ns).strftime("%H:%M:%S.%f")[:-3],
                Text(price_text(trade.price), style=style),
                f"{trade.amount:,.8g}",
                trade.side,
                safe(trade.trade_id),
            )
        return table


def price_text(value: float) -> str:
    """Return a price with as many digits as it has, up to eight after the point."""
    return f"{value:,.2f}" if abs(value) >= 1_000 else f"{value:,.8g}"


def _clock(time_ns: int) -> str:
    return to_datetime(time_ns).strftime("%m-%d %H:%M:%S")
