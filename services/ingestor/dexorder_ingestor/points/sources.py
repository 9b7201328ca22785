"""The datasets that `PointsRunner` fetches: the module with a dataset's name has its ``SOURCE``."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from dexorder_common.model.datasets import DATASETS, Dataset, JobType
from dexorder_ingestor.points.fetch import PointSource

SOURCES: Mapping[Dataset, PointSource] = {
    each: import_module(f"dexorder_ingestor.points.{each.name}").SOURCE
    for each in DATASETS
    if each.job_type is JobType.DATASET
}
