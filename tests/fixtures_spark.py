"""Spark session for the whole run (fixture ``spark``); new tables for each test (fixture ``trading``)."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dexorder.setup.config import SetupError
from dexorder.setup.jars import jar_folder
from dexorder.setup.java import java_env
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_spark.config import SparkSettings
from dexorder_spark.runtime.session import build_session, catalog_conf
from dexorder_spark.tables.table import ensure_tables

_numbers = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore the sockets that pyspark leaves to the garbage collector after a collect, in tests marked ``spark``."""
    for item in items:
        if item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Return a session as the driver builds it, with an unused catalog."""
    try:
        jar_folder("spark")
        os.environ.update(java_env())
    except SetupError as error:
        pytest.fail(f"This test needs Spark. {error}", pytrace=False)
    folder = tmp_path_factory.mktemp("spark")
    catalog = CatalogSettings.local(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pyspark's own
        session = build_session(SparkSettings(listen="127.0.0.1:0", metrics_listen="", poll_ms=20), catalog)
    yield session
    session.stop()


@pytest.fixture
def catalog(tmp_path: Path) -> CatalogSettings:
    """Return settings of a catalog for one test, with the pipeline's tables."""
    settings = CatalogSettings.local(tmp_path, f"test{next(_numbers)}")
    ensure_tables(settings.load())
    return settings


@pytest.fixture
def trading(spark: SparkSession, catalog: CatalogSettings) -> CatalogSettings:
    """Return the settings of the same catalog, configured in Spark as well."""
    for key, value in catalog_conf(catalog).items():
        spark.conf.set(key, value)
    return catalog
