"""Open times of series in a table of candles, from the key columns of its files.

A file of a batch holds rows of many series, and their requests end within seconds. Its key columns are decoded once for
all of them and kept for ``KEEP_SECONDS``; a later request reads the file again because it may have been lost by then.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.table import Table

from dexorder_common.lake.arrow_types import MICROSECONDS
from dexorder_common.lake.tables import OHLC
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_relay.reading.data_files import KEEP_SECONDS, FileIndex, KeyFile, Timer
from dexorder_relay.state.compare import Times

READING_THREADS = 4
KEPT_ROWS = 4_000_000
"""Largest number of rows with kept open times: 32 MB."""
KEPT_FILE_ROWS = KEPT_ROWS // 8
"""Rows of the largest file that is kept. Of a larger one the rows of other series are left out while it is read."""
NO_TIMES: Times = np.empty(0, np.int64)


def times_us(rows: pa.RecordBatch | pa.Table, column: str = "open_time") -> Times:
    """Return the times of rows in microseconds since the epoch."""
    found: Times = pc.cast(pc.cast(rows.column(column), MICROSECONDS), pa.int64()).to_numpy()
    return found


def open_times(rows: pa.RecordBatch | pa.Table) -> Times:
    """Return the open times of candles in nanoseconds since the epoch."""
    return times_us(rows) * 1_000


SeriesKey = tuple[str, int]
"""Ticker and period."""
FileTimes = dict[SeriesKey, Times]
"""Open times of a file's rows, by series, nanoseconds, in any order."""


class _Kept(NamedTuple):
    read_at: float
    rows: int
    times: Future[FileTimes]


class SeriesTimes:
    """Open times by series, of the files that were read last. For any thread."""

    def __init__(self, timer: Timer = time.monotonic) -> None:
        self._index = FileIndex(timer)
        self._timer = timer
        self._lock = Lock()
        self._pool = ThreadPoolExecutor(READING_THREADS, "key-columns")  # files may be far away
        self._kept: dict[str, _Kept] = {}
        self._rows = 0

    def read(self, table: Table, snapshot_id: int, series: Series, span: TimeRange) -> Times | None:
        """Return the open times of a series in ``span``, nanoseconds, in any order; None if rows may be deleted.

        Errors of the files' store are raised unchanged.
        """
        files = self._index.at(table, snapshot_id).of(series, span)
        if files is None:
            return None
        key = (series.ticker, series.period_seconds)
        started = [(file.path, self._start(table.io, file, key)) for file in files]
        found = [self._result(path, times).get(key, NO_TIMES) for path, times in started]
        times = np.concatenate([NO_TIMES, *found])
        return times[(times >= span.start_ns) & (times < span.end_ns)]

    def _start(self, io: FileIO, file: KeyFile, key: SeriesKey) -> Future[FileTimes]:
        """Return the times in a file; another caller may have asked for them."""
        if file.rows > KEPT_FILE_ROWS:
            return self._pool.submit(_read_series, io, file.path, key)
        with self._lock:
            now = self._timer()
            while self._kept and now - next(iter(self._kept.values())).read_at >= KEEP_SECONDS:
                self._drop_oldest()
            if known := self._kept.get(file.path):
                return known.times
            while self._rows + file.rows > KEPT_ROWS:
                self._drop_oldest()
            reading = self._pool.submit(_read, io, file.path)
            self._kept[file.path] = _Kept(now, file.rows, reading)
            self._rows += file.rows
            return reading

    def _result(self, path: str, times: Future[FileTimes]) -> FileTimes:
        try:
            return times.result()
        except BaseException:
            with self._lock:
                if path in self._kept:
                    self._rows -= self._kept.pop(path).rows
            raise

    def _drop_oldest(self) -> None:
        self._rows -= self._kept.pop(next(iter(self._kept))).rows


def _read(io: FileIO, path: str) -> FileTimes:
    with io.new_input(path).open() as file:
        found = pq.ParquetFile(cast(pa.NativeFile, file), read_dictionary=["ticker"])
        return _by_series(found.read(columns=list(OHLC.key), use_threads=False))


def _by_series(rows: pa.Table) -> FileTimes:
    if not len(rows):
        return {}
    tickers: Any = rows.column("ticker").unify_dictionaries().combine_chunks()
    series = tickers.indices.to_numpy().astype(np.int64) << 32 | rows.column("period_seconds").to_numpy()
    opens = open_times(rows)
    if np.any(series[1:] < series[:-1]):
        order = np.argsort(series, kind="stable")
        series, opens = series[order], opens[order]
    starts = np.flatnonzero(np.diff(series, prepend=-1))
    names = tickers.dictionary.to_pylist()
    keys = [(names[each >> 32], each & 0xFFFF_FFFF) for each in series[starts].tolist()]
    return dict(zip(keys, np.split(opens, starts[1:]), strict=True))


def _read_series(io: FileIO, path: str, key: SeriesKey) -> FileTimes:
    ticker, period_seconds = key
    wanted = (pc.field("ticker") == ticker) & (pc.field("period_seconds") == period_seconds)
    with io.new_input(path).open() as file:
        rows = pq.read_table(cast(pa.NativeFile, file), columns=list(OHLC.key), filters=wanted, use_threads=False)
    return {key: open_times(rows)}
