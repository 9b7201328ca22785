"""Tables of the datasets, by name: the declaration that belongs to each ``Dataset``."""

from __future__ import annotations

from collections.abc import Mapping

from dexorder_common.lake.funding import FUNDING
from dexorder_common.lake.tables import OHLC, TICKERS, TICKS, IcebergTable
from dexorder_common.model.datasets import DATASETS, Dataset

_DECLARED: Mapping[str, IcebergTable] = {each.name: each for each in (OHLC, TICKS, TICKERS, FUNDING)}
MARKET_TABLES = tuple(_DECLARED[each.table] for each in DATASETS)
"""In the order of the datasets."""


def table_of(dataset: Dataset) -> IcebergTable:
    """Return the declaration of a dataset's table."""
    return _DECLARED[dataset.table]
