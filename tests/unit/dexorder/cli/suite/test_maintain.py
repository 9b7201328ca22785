import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc
import pytest

from dexorder_protos.dexorder.pipeline.v1 import maintenance_service_pb2 as pb
from dexorder_protos.dexorder.pipeline.v1 import maintenance_service_pb2_grpc as rpc
from tests.rig.command import dexorder

OHLC = pb.MaintainResponse(
    table="trading.ohlc",
    data_files_before=1_200,
    data_files_after=4,
    delete_files_before=7,
    delete_files_after=7,
    expired_snapshots=90,
    kept_snapshots=10,
    removed_files=1_500,
    took_ms=2_345,
)


class Driver(rpc.MaintenanceServiceServicer):
    def __init__(self) -> None:
        self.asked: list[pb.MaintainRequest] = []
        self.refuse: grpc.StatusCode | None = None

    def Maintain(self, request: pb.MaintainRequest, context: Any) -> Iterator[pb.MaintainResponse]:
        self.asked.append(request)
        if self.refuse:
            context.abort(self.refuse, "no query runs")
        yield OHLC
        yield pb.MaintainResponse(table="trading.coverage", data_files_before=3, data_files_after=3)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """Fake of the Spark driver; DEXORDER_SPARK_ADDRESS points to it."""
    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads)
        servicer = Driver()
        rpc.add_MaintenanceServiceServicer_to_server(servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        monkeypatch.setenv("DEXORDER_SPARK_ADDRESS", f"127.0.0.1:{port}")
        yield servicer
        server.stop(None).wait()


run = partial(dexorder, "maintain")


def test_results_are_printed_as_a_table(driver: Driver) -> None:
    result = run()
    assert result.exit_code == 0, result.stderr
    line = next(line for line in result.stdout.splitlines() if "trading.ohlc" in line)
    assert line.split() == ["trading.ohlc", "1,200", "->", "4", "7", "90", "10", "1,500", "2.3", "s"]
    assert "trading.coverage: done in 0.0 s" in result.stderr
    assert list(driver.asked[0].tables) == [] and not driver.asked[0].dry_run


def test_dry_run_of_named_tables(driver: Driver) -> None:
    result = run("--table", "trading.ohlc", "--table", "trading.coverage", "--dry-run", "--json")
    assert list(driver.asked[0].tables) == ["trading.ohlc", "trading.coverage"] and driver.asked[0].dry_run
    first, second = json.loads(result.stdout)
    assert first["removed_files"] == 1_500 and first["took_ms"] == 2_345
    assert second == {
        **dict.fromkeys(first, 0),
        "table": "trading.coverage",
        "data_files_before": 3,
        "data_files_after": 3,
    }


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (grpc.StatusCode.UNAVAILABLE, "can't do it now (no query runs); it must be running"),
        (grpc.StatusCode.NOT_FOUND, "answered NOT_FOUND: no query runs"),
    ],
)
def test_a_refusal_is_one_sentence(driver: Driver, code: grpc.StatusCode, sentence: str) -> None:
    driver.refuse = code
    result = run()
    assert result.exit_code == 1 and result.stdout == ""
    assert sentence in result.stderr and len(result.stderr.splitlines()) == 1


def test_unreachable_driver_is_one_sentence(driver: Driver) -> None:
    result = run("--spark", "127.0.0.1:1")
    assert result.exit_code == 1 and "Spark's driver at 127.0.0.1:1 can't do it now" in result.stderr
