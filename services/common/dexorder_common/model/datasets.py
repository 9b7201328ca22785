"""Kinds of market data, each as one value: topic, table, and facts for jobs, coverage and readers. Pure.

Every part iterates over ``DATASETS`` or asks the dataset of a series. A new kind is one more value here, and a source
in the ingestor, a decoder in Spark and a reader in the client that take it. docs/adding-a-dataset.md has the steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.periods import PERIODS

NAMESPACE = "trading"
"""Namespace of the tables."""


class JobType(IntEnum):
    """Type of the jobs that fetch a dataset, with the numbers of the given protocol's RequestType."""

    HISTORICAL_OHLC = 0
    REALTIME_TICKS = 1
    TICKER_SNAPSHOT = 2
    DATASET = 3


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """One kind of market data. Datasets are compared by identity: each name has one value.

    Attributes:
        name: Identifies the dataset to people and, unless ``is_told_by_period``, on the wire.
        rows: The word for its rows.
        topic: Kafka topic of its records.
        partitions: Partitions of the topic when the gateway creates it.
        table: Iceberg table of its rows, with the namespace.
        time_column: Column with the time of a row.
        series_columns: Key columns of the table that have one value in a whole series.
        job_type: Type of its jobs.
        has_periods: Whether a series has a period and its rows lie on the period's grid, so that ranges can be counted.
        whole_exchange: Whether a series is all markets of an exchange, instead of one market.
        is_covered: Whether its pages are claims of coverage.
        pages_count: Whether each page counts. Otherwise only the final record of a dispatch does, and a dispatch that
            follows takes everything again.
        in_realtime: Whether realtime jobs produce it.
        is_told_by_period: Whether ticker and period identify it on the wire and in tables, without its name.
    """

    name: str
    rows: str
    topic: str
    partitions: int = 4
    table: str
    time_column: str
    series_columns: tuple[str, ...] = ("ticker",)
    job_type: JobType = JobType.DATASET
    has_periods: bool = False
    whole_exchange: bool = False
    is_covered: bool = True
    pages_count: bool = True
    in_realtime: bool = False
    is_told_by_period: bool = False

    @property
    def is_realtime(self) -> bool:
        """Whether its jobs run without an end, in realtime slots."""
        return self.job_type is JobType.REALTIME_TICKS

    @property
    def has_history(self) -> bool:
        """Whether a range of it can be requested."""
        return self.is_covered and not self.is_realtime

    @property
    def code(self) -> str:
        """Name on the wire and in tables; empty if ticker and period tell it."""
        return "" if self.is_told_by_period else self.name

    def period_name(self, period_seconds: int) -> str:
        """Return how people name a series' kind of rows: ``1h``, or the dataset if it is without periods."""
        return PERIODS.get(period_seconds, self.name)

    def __str__(self) -> str:
        return self.name

    def __lt__(self, other: Dataset) -> bool:
        return self.name < other.name

    def __reduce__(self) -> Any:
        return dataset_named, (self.name,)  # unpickled, it is the same value


CANDLES = Dataset(
    name="candles",
    rows="candles",
    topic="dexorder.ohlc",
    table=f"{NAMESPACE}.ohlc",
    time_column="open_time",
    series_columns=("ticker", "period_seconds"),
    job_type=JobType.HISTORICAL_OHLC,
    has_periods=True,
    in_realtime=True,
    is_told_by_period=True,
)
TRADES = Dataset(
    name="trades",
    rows="trades",
    topic="dexorder.ticks",
    table=f"{NAMESPACE}.ticks",
    time_column="time",
    job_type=JobType.REALTIME_TICKS,
    in_realtime=True,
    is_told_by_period=True,
)
TICKERS = Dataset(
    name="tickers",
    rows="ticker snapshots",
    topic="dexorder.tickers",
    partitions=1,
    table=f"{NAMESPACE}.tickers",
    time_column="time",
    series_columns=(),
    job_type=JobType.TICKER_SNAPSHOT,
    whole_exchange=True,
    is_covered=False,
    pages_count=False,
    is_told_by_period=True,
)
FUNDING = Dataset(
    name="funding",
    rows="funding rates",
    topic="dexorder.funding",
    partitions=1,
    table=f"{NAMESPACE}.funding",
    time_column="funding_time",
)
DATASETS = (CANDLES, TRADES, TICKERS, FUNDING)
"""All of them, candles first."""
_BY_NAME = {each.name: each for each in DATASETS}


def dataset_named(name: str) -> Dataset:
    """Return a dataset; InvalidRequest for an unknown name."""
    if name not in _BY_NAME:
        raise InvalidRequest(f"dataset {name[:40]!r} is not one of {', '.join(_BY_NAME)}")
    return _BY_NAME[name]


def realtime_dataset(period_seconds: int) -> Dataset:
    """Return the dataset of a series of a realtime job: candles of a period, or trades for period 0."""
    return CANDLES if period_seconds else TRADES


def topics() -> Iterator[str]:
    """Yield the topics of all datasets."""
    return (each.topic for each in DATASETS)
