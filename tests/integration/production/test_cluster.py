"""Our driver on a standalone Spark cluster, with the rest of the suite beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dexorder import Client
from dexorder.setup import jars, java
from dexorder_common.lake.catalog import CatalogSettings
from tests.integration.production.chain import check_history
from tests.integration.production.cluster import (
    Cluster,
    children_of,
    connected_to,
    descends_from,
    standalone_cluster,
    started,
    submitted,
)
from tests.integration.production.servers import postgres, production_environment, s3
from tests.paths import ROOT
from tests.reading_page import SECTIONS, code_of
from tests.rig.suite import Suite, running_suite

PARTS = ("--only", "kafka,sim,relay,gateway,udsource,ingestor")
pytestmark = pytest.mark.timeout(900)


@pytest.mark.nightly
def test_documented_commands_with_postgresql_and_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of production.md run as they are written there, and then all code of reading-the-data.md."""
    jars.fetch("production", java.ensure_java, print)
    with postgres() as database, s3(tmp_path) as store, standalone_cluster(tmp_path) as cluster:
        environment = production_environment(database, store)
        with running_suite(tmp_path / "suite", *PARTS, **environment) as suite:
            settings = environment | {"DEXORDER_SPARK_METRICS_LISTEN": ""}
            source, relay = suite.address("udsource"), suite.relay
            with submitted(cluster, tmp_path, source, relay, suite.base_port + 16, **settings):
                for name in ("DEXORDER_CATALOG_PASSWORD", "DEXORDER_CATALOG_PROPERTIES"):
                    monkeypatch.setenv(name, environment[name])
                check_cluster(suite, cluster)
                read_as_documented(tmp_path / "reading.py", suite.relay)


@pytest.mark.soak
def test_driver_process_with_executors_of_a_cluster(tmp_path: Path) -> None:
    with standalone_cluster(tmp_path) as cluster, running_suite(tmp_path / "suite", *PARTS) as suite:
        catalog = CatalogSettings.local(suite.directory)
        settings = {
            "DEXORDER_CATALOG_URI": catalog.uri,
            "DEXORDER_CATALOG_WAREHOUSE": catalog.warehouse,
            "DEXORDER_SPARK_METRICS_LISTEN": "",
        }
        source, relay = suite.address("udsource"), suite.relay
        with started(cluster, tmp_path, source, relay, suite.base_port + 16, **settings):
            check_cluster(suite, cluster)


def check_cluster(suite: Suite, cluster: Cluster) -> None:
    """Run a request; each worker must run an executor, and these must read from udsource themselves."""
    with Client(suite.relay) as client:
        check_history(client)
    source = int(suite.address("udsource").rpartition(":")[2])
    assert [pid for pid in connected_to(source) for worker in cluster.workers if descends_from(pid, worker)]
    assert all(children_of(worker) for worker in cluster.workers), "each worker runs an executor"


def read_as_documented(script: Path, relay: str) -> None:
    """Run all code of docs/reading-the-data.md in one process, with the jars that PostgreSQL and S3 need."""
    code = "\n".join(block for _, block in code_of(title for title, _ in SECTIONS))
    plain = 'jars = jar_paths("spark")'
    assert plain in code
    code = code.replace(plain, f'{plain} + jar_paths("production")')
    script.write_text(
        f"{code}\n"
        "counts = [rows.num_rows, newest.count(), arrow.num_rows, len(frame), len(closes), current.count()]\n"
        "assert counts == [30] * 6 and batches == 1 and days.num_rows == len(daily) == 2, counts\n"
        "hours = pinned.where('period_seconds = 3600')\n"
        "assert hours.count() == 30 and hours.agg({'close': 'max'}).first()[0] == frame['close'].max()\n"
    )
    environment = os.environ | java.java_env() | {"DEXORDER_RELAY": relay, "SPARK_LOCAL_IP": "127.0.0.1"}
    run = subprocess.run(
        [sys.executable, str(script)], cwd=ROOT, env=environment, text=True, capture_output=True, check=False
    )
    assert run.returncode == 0, run.stderr[-3_000:]
