"""Full disk: clients get an error, nothing answered is lost, the process ends, and works again with free space."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import pytest

from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as rpb
from tests.unit.services.relay.harness import free_port, relay_process, request

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
    with log.open("w") as out, relay_process(tmp_path, port, "-c", FULL, stdout=out, stderr=out) as (process, stub):
        refusal = _submit_until_refused(stub, acknowledged)
        assert process.wait(timeout=60) == 1
    assert refusal.code() is grpc.StatusCode.UNAVAILABLE
    assert "the relay stops, nothing answered is lost" in log.read_text()
    assert "database or disk is full" in log.read_text()
    assert len(acknowledged) > 20

    with relay_process(tmp_path, port) as (_, stub):
        statuses = Counter(
            stub.history.SubmitHistorical(
                request(request_id, n * 10, n * 10 + 10), timeout=60, wait_for_ready=True
            ).answer.status
            for n, request_id in enumerate(acknowledged)
        )
        assert statuses == {ingest.SubmitResponse.DUPLICATE: len(acknowledged)}
        new = stub.history.SubmitHistorical(request("new", 0, 10), timeout=60).answer
        assert new.status == ingest.SubmitResponse.QUEUED
        records = stub.history.ListRequests(rpb.ListRequestsRequest(page_size=1_000)).records
        # the one that failed is there or not; it was never answered
        assert len(records) - len(acknowledged) in (1, 2)


def _submit_until_refused(stub: Any, acknowledged: list[str]) -> Any:
    for n in range(5_000):
        message = request(f"r{n}", n * 10, n * 10 + 10)
        try:
            answer = stub.history.SubmitHistorical(message, timeout=60, wait_for_ready=not acknowledged).answer
        except grpc.RpcError as error:
            return error
        assert answer.status == ingest.SubmitResponse.QUEUED
        acknowledged.append(message.request_id)
    raise AssertionError("the disk never got full")
