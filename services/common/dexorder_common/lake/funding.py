"""Declaration of the table of funding rates."""

from __future__ import annotations

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import IdentityTransform, YearTransform
from pyiceberg.types import DoubleType, IntegerType, LongType, StringType, TimestamptzType

from dexorder_common.lake.tables import IN_PLACE, IcebergTable, optional, required
from dexorder_common.model import datasets

FUNDING = IcebergTable(
    datasets.FUNDING.table,
    Schema(
        required(1, "ticker", StringType(), "market, for example BTC/USDT:USDT.BINANCE"),
        required(2, "funding_time", TimestamptzType(), "when it was paid, by the exchange's clock"),
        required(3, "rate", DoubleType(), "part of a position's value that longs paid to shorts"),
        optional(4, "mark_price", DoubleType(), "price at which positions were valued, where the exchange gives it"),
        optional(5, "interval_seconds", IntegerType(), "time since the payment before; null for the first one"),
        required(6, "fetched_at", TimestamptzType(), "when the exchange answered, by the ingestor's clock"),
        required(7, "dispatch", LongType(), "number of the dispatch that brought the row; the larger one stays"),
        required(8, "page", IntegerType(), "number of the page in its dispatch; the larger one stays"),
        identifier_field_ids=[1, 2],
    ),
    key=("ticker", "funding_time"),
    version=("dispatch", "page"),
    partitions=PartitionSpec(PartitionField(2, 1000, YearTransform(), "funding_time_year")),
    order=SortOrder(*(SortField(number, IdentityTransform()) for number in (1, 2))),
    properties=IN_PLACE,
)
"""Funding rates of perpetual futures."""
