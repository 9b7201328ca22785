"""Our driver on a standalone Spark cluster, with the rest of the suite beside it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from dexorder import Client
from dexorder.setup.jars import jar_folder
from dexorder.testing.suite import running_suite
from services.common.lake.catalog import CatalogSettings
from tests.integration.production.chain import check_history
from tests.integration.production.cluster import (
    children_of,
    connected_to,
    descends_from,
    standalone_cluster,
    started,
    submitted,
)

Way = Callable[..., AbstractContextManager[None]]


@pytest.mark.parametrize(
    "way", [pytest.param(submitted, marks=pytest.mark.nightly), pytest.param(started, marks=pytest.mark.soak)]
)
@pytest.mark.timeout(900)
def test_driver_runs_on_a_cluster(way: Way, tmp_path: Path) -> None:
    parts = "kafka,sim,relay,gateway,udsource,ingestor"
    with standalone_cluster(tmp_path) as cluster, running_suite(tmp_path / "suite", "--only", parts) as suite:
        catalog = CatalogSettings.local(suite.directory)
        settings = {
            "DEXORDER_CATALOG_URI": catalog.uri,
            "DEXORDER_CATALOG_WAREHOUSE": catalog.warehouse,
            "DEXORDER_SPARK_SOURCE": suite.address("udsource"),
            "DEXORDER_SPARK_RELAY": suite.address("relay"),
            "DEXORDER_SPARK_METRICS_LISTEN": "",
        }
        with way(cluster, tmp_path, jar_folder("spark"), suite.base_port + 16, **settings):
            with Client(suite.relay) as client:
                check_history(client)
            source = int(suite.address("udsource").rpartition(":")[2])
            readers = [pid for pid in connected_to(source) for worker in cluster.workers if descends_from(pid, worker)]
            assert readers, "executors read from udsource themselves"
            executors = [children_of(worker) for worker in cluster.workers]
            assert all(executors), "each worker runs an executor"
