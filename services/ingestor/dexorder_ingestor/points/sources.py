"""The datasets that `PointsRunner` fetches."""

from __future__ import annotations

from collections.abc import Mapping

from dexorder_common.model.datasets import FUNDING, Dataset
from dexorder_ingestor.points.fetch import PointSource
from dexorder_ingestor.points.funding import FundingSource

SOURCES: Mapping[Dataset, PointSource] = {FUNDING: FundingSource()}
