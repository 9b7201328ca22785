"""Pages of numbered candles, and the expected tables once all are committed. Pure.

Every value of a row follows from its ticker, minute and version, so the whole table can be computed and compared. A
page may be sent again: in a newer version, which must win, or in an older one, which must change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dexorder_common.kafka.page_record import page_value
from dexorder_common.model.page import Candle, Kind, PageHeaders
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS, parse_time
from tests.rig.dispatches import dispatch_id

TICKERS = tuple(f"NUMBER{n}/USDT.SIM" for n in range(4))
"""One ticker per partition of the topic, so that every partition always has records."""
CANDLES, PAGES = 40, 4
"""Candles of a page, and new pages of each ticker at a time."""
_PERIOD_SECONDS = 60
_MINUTE_NS = _PERIOD_SECONDS * SECOND_NS
_FIRST_NS = parse_time("2024-01-31T23:00:00Z")  # the table is partitioned by month
_FETCHED_S = 1_700_000_000
_STRIDE = 10**9
"""More than the minutes of any ticker: a row's number is ticker * stride + minute."""

Ints = npt.NDArray[np.int64]
Columns = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Page:
    """One record of the topic."""

    ticker: int
    index: int
    version: int

    @property
    def control(self) -> PageHeaders:
        """Headers of the record."""
        start_ns = _FIRST_NS + self.index * CANDLES * _MINUTE_NS
        return PageHeaders(
            Kind.PAGE,
            TICKERS[self.ticker],
            _PERIOD_SECONDS,
            dispatch_id(self.version, TICKERS[self.ticker]),
            self.index,
            TimeRange(start_ns, start_ns + CANDLES * _MINUTE_NS),
            (_FETCHED_S - self.version) * SECOND_NS,  # against the order of the dispatches, which alone decides
        )

    @property
    def value(self) -> bytes:
        """Value of the record."""
        minutes = np.arange(self.index * CANDLES, (self.index + 1) * CANDLES, dtype=np.int64)
        columns = _values(np.full(CANDLES, self.ticker), minutes, np.full(CANDLES, self.version))
        return page_value(
            "numbered",
            [
                Candle(
                    _FIRST_NS + int(minute) * _MINUTE_NS,
                    trade_count=int(columns["trades"][row]),
                    **{name: float(columns[name][row]) for name in _FLOATS},
                )
                for row, minute in enumerate(minutes)
            ],
        )


_FLOATS = ("open", "high", "low", "close", "volume", "quote_volume")


def _values(tickers: Ints, minutes: Ints, versions: Ints) -> Columns:
    """Return the values of each row; the floats are exact, so that they are equal bit by bit."""
    opens = 1_000.0 * (tickers + 1) + minutes % 997 + versions / 1_024
    return {
        "open": opens,
        "high": opens + 2,
        "low": opens - 1,
        "close": opens + 1,
        "volume": 1.0 + minutes % 13,
        "quote_volume": 1.0 + minutes % 29,
        "trades": minutes % 17,
        "fetched_s": _FETCHED_S - versions,
        "dispatch": versions,
    }


@dataclass(frozen=True)
class Verdict:
    """Comparison of the whole tables with the pages sent."""

    rows: int
    """Rows expected."""
    lost: int
    doubled: int
    wrong: int
    """Rows with another value, or that were never sent."""
    coverage: int
    """Pages that coverage does not have exactly once."""

    def fail_if_wrong(self) -> None:
        """Fail unless the tables are as expected."""
        assert self.rows and not (self.lost or self.doubled or self.wrong or self.coverage), self


class NumberedPages:
    """All pages sent so far."""

    def __init__(self, seed: int = 1) -> None:
        self.sent: set[Page] = set()
        self._random = Random(seed)
        self._newest: list[list[int]] = [[] for _ in TICKERS]
        """Expected version of each page, by ticker."""
        self._versions = 0

    def more(self) -> Iterator[Page]:
        """Return new pages of each ticker, and half of the time pages that were sent before.

        The first page of each ticker is new, so a batch planned after any number of pages adds rows.
        """
        again = self._random.random() < 0.5
        for ticker, newest in enumerate(self._newest):
            yield self._send(ticker, len(newest))
            if again:
                yield self._send(ticker, self._random.randrange(len(newest)))
                yield from self._late(ticker)
            for _ in range(PAGES - 1):
                yield self._send(ticker, len(newest))

    def _send(self, ticker: int, index: int) -> Page:
        self._versions += 2
        newest = self._newest[ticker]
        if index == len(newest):
            newest.append(0)
        newest[index] = self._versions
        page = Page(ticker, index, self._versions)
        self.sent.add(page)
        return page

    def _late(self, ticker: int) -> Iterator[Page]:
        """Return a page in an older version than the one sent before."""
        index = self._random.randrange(len(self._newest[ticker]))
        page = Page(ticker, index, self._newest[ticker][index] - 1)
        if page not in self.sent:
            self.sent.add(page)
            yield page

    def verdict(self, rows: pa.Table, coverage: pa.Table) -> Verdict:
        """Compare the whole of trading.ohlc and trading.coverage."""
        numbers, found = _read(rows)
        expected_numbers, expected = self._expected()
        unique, first = np.unique(numbers, return_index=True)
        common, ours, theirs = np.intersect1d(expected_numbers, unique, assume_unique=True, return_indices=True)
        differs = np.zeros(len(common), np.bool_)
        for name, column in expected.items():
            differs |= column[ours] != found[name][first[theirs]]
        return Verdict(
            rows=len(expected_numbers),
            lost=len(expected_numbers) - len(common),
            doubled=len(numbers) - len(unique),
            wrong=int(differs.sum()) + len(unique) - len(common),
            coverage=self._coverage_differs(coverage),
        )

    def _expected(self) -> tuple[Ints, Columns]:
        versions = [np.repeat(np.array(newest, np.int64), CANDLES) for newest in self._newest]
        tickers = np.concatenate([np.full(len(each), ticker) for ticker, each in enumerate(versions)])
        minutes = np.concatenate([np.arange(len(each), dtype=np.int64) for each in versions])
        return tickers * _STRIDE + minutes, _values(tickers, minutes, np.concatenate(versions))

    def _coverage_differs(self, coverage: pa.Table) -> int:
        columns = (coverage[name].to_pylist() for name in ("ticker", "rows"))
        times = (_since(coverage[name], 0).tolist() for name in ("start_time", "end_time", "fetched_at"))
        found = sorted(zip(*columns, *times, strict=True))
        expected = sorted(
            (c.ticker, CANDLES, c.span.start_ns, c.span.end_ns, c.fetched_ns) for c in (p.control for p in self.sent)
        )
        return 0 if found == expected else max(1, len(set(expected) ^ set(found)))


def _read(rows: pa.Table) -> tuple[Ints, Columns]:
    """Return number and values of each row; a row of an unknown series or off the grid gets a number of its own."""
    numbered: dict[Any, int] = {ticker: number for number, ticker in enumerate(TICKERS)}
    tickers = np.array([numbered.get(ticker, len(TICKERS)) for ticker in rows["ticker"].to_pylist()], np.int64)
    since_ns = _since(rows["open_time"], _FIRST_NS)
    numbers = tickers * _STRIDE + since_ns // _MINUTE_NS
    strange = (since_ns % _MINUTE_NS != 0) | (rows["period_seconds"].to_numpy() != _PERIOD_SECONDS)
    numbers[strange] = -1 - np.flatnonzero(strange)
    values = {name: rows[name].to_numpy() for name in (*_FLOATS, "trades", "dispatch")}
    return numbers, values | {"fetched_s": _since(rows["fetched_at"], 0) // SECOND_NS}


def _since(times: Any, start_ns: int) -> Ints:
    """Return the nanoseconds from ``start_ns`` to each time."""
    nanos: Ints = pc.cast(times, pa.int64()).to_numpy() * 1_000 - start_ns
    return nanos
