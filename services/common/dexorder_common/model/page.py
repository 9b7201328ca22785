"""Pages of candles and the headers of their Kafka records. Pure.

The topic of candles has two kinds of records. A page settles a sub-range of its job's range with candles and
verified-empty ranges; a final ends one dispatch. Records of trades and of ticker snapshots have separate topics and the
same headers. The headers carry everything the pipeline needs before it decodes the value;
``dexorder_common/kafka/page_record.py`` encodes the value. docs/protocol.md has the table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from dexorder_common.model.dispatch_id import number_of
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.proof import Proof, encode_proofs, parse_proofs
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import MAX_TIME_NS

MAX_PAGE_CANDLES = 1_000
"""Largest number of candles in a page."""
MAX_RECORD_TRADES = 10_000
"""Largest number of trades in a record."""
MAX_RECORD_SNAPSHOTS = 20_000
"""Largest number of ticker snapshots in a record."""
MAX_TRADE_ID_LENGTH = 128
MAX_EMPTY_RANGES = 10_000
"""Largest number of verified-empty ranges in a page."""
MAX_INT32 = 2**31 - 1
_MAX_DIGITS = 19

_KIND, _TICKER, _PERIOD, _DISPATCH, _PAGE = "dx-kind", "dx-ticker", "dx-period-s", "dx-job", "dx-page"
_START, _END, _EMPTY, _FETCHED, _TRACE = "dx-start-ns", "dx-end-ns", "dx-empty", "dx-fetched-ns", "dx-trace"
_PROOFS, _AMENDS = "dx-proofs", "dx-amends"


class Kind(StrEnum):
    """Kind of a record."""

    PAGE = "page"
    FINAL = "final"
    TRADES = "trades"
    TICKERS = "tickers"


class Candle(NamedTuple):
    """One OHLCV candle, with the exchange's floats. A tuple, as candles are created by the million."""

    open_ns: int
    open: float
    high: float
    low: float
    close: float
    volume: float
    quote_volume: float | None = None
    trade_count: int | None = None


@dataclass(frozen=True, slots=True)
class PageHeaders:
    """Headers of a record.

    Attributes:
        dispatch_id: The dispatch that sent the record. Its header is named ``dx-job``. It is also the key of records of
            history, so that these keep their order in one partition; records of realtime jobs have the ticker as key.
        page: Number of the page within its dispatch, from 0; on the final, the number of pages before it. Of two copies
            of a candle the one with the larger number of the dispatch, then of the page, is kept.
        span: The sub-range that the page settles; on the final, the range of the dispatch.
        empty: Verified-empty ranges inside ``span``.
        fetched_ns: Time at which the exchange answered, by the ingestor's clock; for information only.
        trace: Id that joins the log lines of one dispatch.
        proofs: Proofs that the candles of parts of ``span`` are complete.
        amends: Whether the candles replace some that the same dispatch has sent, after late trades.
    """

    kind: Kind
    ticker: str
    period_seconds: int
    dispatch_id: str
    page: int
    span: TimeRange
    fetched_ns: int
    empty: tuple[TimeRange, ...] = ()
    trace: str = ""
    proofs: tuple[Proof, ...] = ()
    amends: bool = False

    @property
    def dispatch(self) -> int:
        """Number of the dispatch; InvalidRequest for an id without a number."""
        return number_of(self.dispatch_id)

    def encode(self) -> dict[str, str]:
        """Return the headers in the order in which they are written; text, as source.v1 carries them as strings."""
        return {
            _KIND: self.kind.value,
            _TICKER: self.ticker,
            _PERIOD: str(self.period_seconds),
            _DISPATCH: self.dispatch_id,
            _PAGE: str(self.page),
            _START: str(self.span.start_ns),
            _END: str(self.span.end_ns),
            _EMPTY: json.dumps([[r.start_ns, r.end_ns] for r in self.empty], separators=(",", ":")),
            _FETCHED: str(self.fetched_ns),
            _TRACE: self.trace,
            **({_PROOFS: encode_proofs(self.proofs)} if self.proofs else {}),
            **({_AMENDS: "1"} if self.amends else {}),
        }

    @staticmethod
    def parse(headers: Mapping[str, str]) -> PageHeaders:
        """Parse the headers of a record; InvalidRequest names a header that is missing or malformed, and its value."""
        try:
            return PageHeaders(
                kind=Kind(_text(headers, _KIND)),
                ticker=_text(headers, _TICKER),
                period_seconds=_integer(headers, _PERIOD, MAX_INT32),
                dispatch_id=_text(headers, _DISPATCH),
                page=_integer(headers, _PAGE, MAX_INT32),
                span=TimeRange(_integer(headers, _START), _integer(headers, _END)),
                fetched_ns=_integer(headers, _FETCHED),
                empty=_ranges(headers.get(_EMPTY) or "[]"),
                trace=headers.get(_TRACE, ""),
                proofs=parse_proofs(headers.get(_PROOFS) or "[]"),
                amends=headers.get(_AMENDS) == "1",
            )
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidRequest(f"headers of the record do not describe a page: {error}") from error


def _text(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name, "")
    if not value:
        raise InvalidRequest(f"header {name} is missing")
    return value


def _integer(headers: Mapping[str, str], name: str, largest: int = MAX_TIME_NS) -> int:
    value = _text(headers, name)
    if not value.isascii() or not value.isdigit() or len(value) > _MAX_DIGITS or int(value) > largest:
        raise InvalidRequest(f"header {name} {value[:40]!r} is not a whole number up to {largest}")
    return int(value)


def _ranges(text: str) -> tuple[TimeRange, ...]:
    found = json.loads(text)
    if not isinstance(found, list) or len(found) > MAX_EMPTY_RANGES:
        raise InvalidRequest(f"header {_EMPTY} {text[:40]!r} is not a list of at most {MAX_EMPTY_RANGES} ranges")
    for each in found:
        if not (isinstance(each, list) and list(map(type, each)) == [int, int]):
            raise InvalidRequest(f"header {_EMPTY} has {each!r:.40}, which is not a range of two whole numbers")
    return tuple(TimeRange(start_ns, end_ns) for start_ns, end_ns in found)
