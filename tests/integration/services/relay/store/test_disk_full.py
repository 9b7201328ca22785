"""Full disk: clients get an error, nothing answered is lost, the process ends, and works again with free space."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import pytest

from dexorder_common.rpc.relay_stubs import BlockingRelayStubs
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as rpb
from tests.paths import ROOT
from tests.unit.services.relay.harness import environment, free_port, request

# SQLite's own limit stands for the full file system: it gives SQLITE_FULL, as ENOSPC does.
FULL = """
import runpy, sys
from dexorder_relay.store import database
opened = database.open_durable
def small(*args, **options):
    connection = opened(*args, **options)
    connection.execute("PRAGMA max_page_count = 36")
    return connection
database.open_durable = small
sys.argv = ["relay"]
runpy.run_module("dexorder_relay", run_name="__main__")
"""


@pytest.mark.smoke
def test_full_disk_ends_the_relay_and_loses_nothing_that_was_answered(tmp_path: Path) -> None:
    port = free_port()
    log = tmp_path / "relay.log"
    acknowledged: list[str] = []
    command = [sys.executable, "-c", FULL]
    with (
        log.open("w") as out,
        subprocess.Popen(command, cwd=ROOT, env=environment(tmp_path, port), stdout=out, stderr=out) as process,
    ):
        try:
            refusal = _submit_until_refused(port, acknowledged)
            assert process.wait(timeout=60) == 1
        finally:
            process.kill()
    assert refusal.code() is grpc.StatusCode.UNAVAILABLE
    assert "the relay stops, nothing answered is lost" in log.read_text()
    assert "database or disk is full" in log.read_text()
    assert len(acknowledged) > 20

    with subprocess.Popen([sys.executable, "-m", "dexorder_relay"], cwd=ROOT, env=environment(tmp_path, port)) as again:
        try:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                stub: Any = BlockingRelayStubs(channel)
                statuses = Counter(
                    stub.history.SubmitHistorical(
                        request(request_id, n * 10, n * 10 + 10), timeout=60, wait_for_ready=True
                    ).status
                    for n, request_id in enumerate(acknowledged)
                )
                assert statuses == {ingest.SubmitResponse.DUPLICATE: len(acknowledged)}
                new = stub.history.SubmitHistorical(request("new", 0, 10), timeout=60)
                assert new.status == ingest.SubmitResponse.QUEUED
                records = stub.history.ListRequests(rpb.ListRequestsRequest(page_size=1_000)).records
                # the one that failed is there or not; it was never answered
                assert len(records) - len(acknowledged) in (1, 2)
        finally:
            again.terminate()


def _submit_until_refused(port: int, acknowledged: list[str]) -> Any:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub: Any = BlockingRelayStubs(channel)
        for n in range(5_000):
            message = request(f"r{n}", n * 10, n * 10 + 10)
            try:
                answer = stub.history.SubmitHistorical(message, timeout=60, wait_for_ready=not acknowledged)
            except grpc.RpcError as error:
                return error
            assert answer.status == ingest.SubmitResponse.QUEUED
            acknowledged.append(message.request_id)
    raise AssertionError("the disk never got full")
