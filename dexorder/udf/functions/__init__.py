"""Functions that are shipped, by the name under which `dexorder udf serve` knows them. Pure."""

from __future__ import annotations

from typing import Any

from dexorder.udf.function import Function
from dexorder.udf.functions.averages import Ema, Macd, MovingAverage
from dexorder.udf.functions.oscillators import Atr, Bollinger, Rsi
from dexorder.udf.functions.outliers import BatchOutliers, Outliers
from dexorder.udf.functions.resample import Resample

FUNCTIONS: dict[str, type[Function[Any]]] = {
    "moving_average": MovingAverage,
    "ema": Ema,
    "macd": Macd,
    "rsi": Rsi,
    "atr": Atr,
    "bollinger": Bollinger,
    "outliers": Outliers,
    "batch_outliers": BatchOutliers,
    "resample": Resample,
}
