"""Fixtures of the smoke tests: a running suite whose exchange always has faults, event providers, a browser."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterator

import pyarrow.parquet as pq
import pytest
import pytest_asyncio

from tests.browser import Browser, browser
from tests.fakes.otlp import Collector, collector
from tests.integration.events.provider_servers import ProviderServers
from tests.rig.suite import Suite, running_suite
from tests.smoke.recorded import recorded

FAULTS = [
    {"kind": kind, "every": every, "path": "/api/v3/klines"}
    for kind, every in (("empty", 17), ("html", 19), ("http_502", 23), ("hole", 29), ("drop_last", 31))
]

UDFS = f"""
udfs:
  average: {{prog: {sys.executable}, args: [-m, dexorder, udf, serve, moving_average, --stdio], start: false}}
"""


@pytest.fixture(scope="session")
def traces() -> Iterator[Collector]:
    """Return the collector of the suite's traces."""
    with collector() as running:
        yield running


@pytest.fixture(scope="session")
def smoke_suite(tmp_path_factory: pytest.TempPathFactory, traces: Collector) -> Iterator[Suite]:
    folder = tmp_path_factory.mktemp("suite")
    pq.write_table(recorded(), folder / "recorded.parquet")
    (folder / "udfs.yaml").write_text(UDFS)
    with running_suite(
        folder / "state",
        "--recorded",
        f"{folder / 'recorded.parquet'}=HOLE/USDT",
        DEXORDER_SIM_FAULTS=json.dumps(FAULTS),
        DEXORDER_SIM_LATENCY_MS="400",
        DEXORDER_RELAY_LEASE_SECONDS="6",
        DEXORDER_SPARK_UDFS=str(folder / "udfs.yaml"),
        OTEL_TRACES_SAMPLER="parentbased_always_off",  # only what a test traces itself
        **traces.environment,
    ) as running:
        yield running


@pytest.fixture
def provider_servers() -> Iterator[ProviderServers]:
    with ProviderServers() as running:
        yield running


@pytest_asyncio.fixture
async def chromium() -> AsyncIterator[Browser]:
    async with browser() as running:
        yield running
