"""Records of trades and ticker snapshots as the ingestor writes them, for the pipeline's tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from dexorder_common.model.page import Kind, PageHeaders
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS, parse_time
from dexorder_protos.dexorder.market.v1 import market_pb2 as pb
from tests.fakes.pages import TICKER, Record
from tests.rig.dispatches import dispatch_id, realtime_dispatch_id

MIDNIGHT_NS = parse_time("2024-02-01T00:00:00Z")
VENUE = "BINANCE"


class MadeTrade(NamedTuple):
    """A trade; its number is its id, and decides its values."""

    number: int
    time_ns: int

    @property
    def price(self) -> float:
        return 100.0 + self.number % 7

    @property
    def amount(self) -> float:
        return 0.25 * (1 + self.number % 3)

    @property
    def side(self) -> str | None:
        return ("buy", "sell", None)[self.number % 3]

    def message(self, **changes: Any) -> pb.Trade:
        given: dict[str, Any] = {
            "trade_id": f"t{self.number}",
            "time_ns": self.time_ns,
            "price": self.price,
            "amount": self.amount,
            "side": (pb.Trade.SIDE_BUY, pb.Trade.SIDE_SELL, pb.Trade.SIDE_UNSPECIFIED)[self.number % 3],
            "received_ns": self.time_ns + SECOND_NS,
        }
        return pb.Trade(**(given | changes))

    def row(self) -> tuple[int, float, float, str | None]:
        """Return time in microseconds, price, amount and side."""
        return self.time_ns // 1_000, self.price, self.amount, self.side


def second(number: int) -> int:
    """Return a time by the seconds since ten seconds before midnight."""
    return MIDNIGHT_NS + (number - 10) * SECOND_NS


def seconds(first: int, end: int) -> TimeRange:
    return TimeRange(second(first), second(end))


def trade(number: int, at_s: float | None = None) -> MadeTrade:
    """Return the trade of a number, which takes place at that second unless another one is given."""
    return MadeTrade(number, MIDNIGHT_NS + round(((number if at_s is None else at_s) - 10) * SECOND_NS))


def trades_head(first: int, end: int, *, job: int = 1, page: int = 0, ticker: str = TICKER) -> PageHeaders:
    """Return the headers of a record that settles the seconds from ``first`` to ``end``."""
    made_by = realtime_dispatch_id(job, ticker)
    return PageHeaders(Kind.TRADES, ticker, 0, made_by, page, seconds(first, end), second(end))


def trades_record(head: PageHeaders, trades: Iterable[MadeTrade]) -> Record:
    value = pb.Trades(trades=[each.message() for each in trades])
    return value.SerializeToString(), head.encode()


def snapshots_head(at_s: int = 0, *, job: int = 1, page: int = 0, kind: Kind = Kind.TICKERS) -> PageHeaders:
    ticker = f"*.{VENUE}"
    return PageHeaders(kind, ticker, 0, dispatch_id(job, ticker), page, seconds(at_s, at_s + 1), second(at_s))


def snapshot(symbol: str, at_s: int = 0, **values: float) -> pb.TickerSnapshot:
    return pb.TickerSnapshot(ticker=f"{symbol}.{VENUE}", time_ns=second(at_s), **values)  # type: ignore[arg-type]


def snapshots_record(head: PageHeaders, snapshots: Iterable[pb.TickerSnapshot]) -> Record:
    return pb.TickerSnapshots(snapshots=snapshots).SerializeToString(), head.encode()
