"""The process that runs a UDF's stage is killed 20 times in a stream of numbered trades: no row is lost or doubled."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dexorder_common.lake.catalog import CatalogSettings
from tests.fakes.pipeline import wait_until
from tests.fakes.source_server import FakeSource, RunningSource
from tests.paths import ROOT
from tests.unit.spark.udf.rig import definition, running
from tests.unit.spark.udf.test_stage import DRIVER, count_rows, found, oracle, send

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1_800)]
KILLS, TRADES = 20, 1_000


@pytest.fixture
def source() -> Iterator[RunningSource]:
    server = RunningSource(FakeSource(partitions=1))
    yield server
    server.stop()


def test_twenty_kills_neither_lose_nor_double_a_row(source: RunningSource, tmp_path: Path) -> None:
    catalog, chosen = CatalogSettings.local(tmp_path), random.Random(7)
    for first in range(0, TRADES, 2):
        send(source, first, first + 2)
    tables, given = catalog.load(), json.dumps({"address": source.address, "folder": str(tmp_path)})
    rows = []
    for _ in range(KILLS):
        process = subprocess.Popen([sys.executable, "-c", DRIVER, given], cwd=ROOT)
        goal = count_rows(tables) + chosen.randint(1, 40)
        try:
            wait_until(lambda goal=goal: count_rows(tables) >= goal, 120)  # type: ignore[misc]
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        rows.append(count_rows(tables))
    assert rows[-1] < TRADES, "the last kill was after the end"
    with running(catalog, source, definition()) as rig:
        rig.wait_for(TRADES, 120)
    assert found(catalog) == oracle(TRADES)
    print(f"\n{KILLS} kills of the stage's process at {rows} rows: {TRADES} rows, 0 lost, 0 doubled")
