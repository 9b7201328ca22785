"""The datasets that `PointsRunner` fetches."""

from __future__ import annotations

from collections.abc import Mapping

from dexorder_common.model.datasets import Dataset
from dexorder_ingestor.points.fetch import PointSource

SOURCES: Mapping[Dataset, PointSource] = {}
