"""All tables that the driver fills, in the order of the datasets."""

from __future__ import annotations

from dexorder_common.model.datasets import DATASETS
from dexorder_spark.tables.funding import FUNDING
from dexorder_spark.tables.ohlc import CANDLES
from dexorder_spark.tables.tickers import SNAPSHOTS
from dexorder_spark.tables.ticks import TRADES

_OF = {each.dataset: each for each in (CANDLES, TRADES, SNAPSHOTS, FUNDING)}
PAGE_TABLES = tuple(_OF[each] for each in DATASETS)
