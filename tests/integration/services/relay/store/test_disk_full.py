"""Full disk: new calls are refused, nothing answered is lost, and the relay goes on by itself when it has space."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from tests.unit.services.relay.harness import free_port, relay_process, request

# SQLite's own limit stands for the full file system: it gives SQLITE_FULL, as ENOSPC does. A file ends it.
FULL = """
import pathlib, runpy, sys
from dexorder_relay.store import database, writer
opened, run_group = database.open_durable, writer.run_group
space = pathlib.Path(sys.argv[1])
def small(*args, **options):
    connection = opened(*args, **options)
    connection.execute("PRAGMA max_page_count = 36")
    return connection
def run(connection, *group):
    if space.exists():
        connection.execute("PRAGMA max_page_count = 1000000")
    return run_group(connection, *group)
database.open_durable, writer.run_group = small, run
sys.argv = ["relay"]
runpy.run_module("dexorder_relay", run_name="__main__")
"""
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.mark.smoke
def test_a_full_disk_refuses_calls_until_it_has_space_and_loses_nothing_that_was_answered(tmp_path: Path) -> None:
    port, space, log = free_port(), tmp_path / "space", tmp_path / "relay.log"
    acknowledged: list[str] = []
    with (
        log.open("w") as out,
        relay_process(tmp_path, port, "-c", FULL, str(space), stdout=out, stderr=out) as (
            process,
            stub,
        ),
    ):
        refusal = _submit_until_refused(stub, acknowledged)
        assert refusal.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "disk" in refusal.details()
        assert _submit_until_refused(stub, acknowledged).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert len(acknowledged) > 20
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub_of_health: Any = health_pb2_grpc.HealthStub(channel)
            health = stub_of_health.Watch(health_pb2.HealthCheckRequest(), timeout=60)
            _until(health, NOT_SERVING)
            assert _answered(stub, acknowledged[:1], grpc.StatusCode.RESOURCE_EXHAUSTED) == 1, "a repeat, too"
            space.touch()
            _until(health, SERVING)
        assert process.poll() is None
        assert _statuses(stub, acknowledged) == {ingest.SubmitResponse.DUPLICATE: len(acknowledged)}
        new = stub.history.SubmitHistorical(request("new", 0, 10), timeout=60).answer
        assert new.status == ingest.SubmitResponse.QUEUED
        process.kill()
    text = log.read_text()
    assert "Traceback" not in text and text.count("the disk of the database is full") == 1
    with relay_process(tmp_path, port) as (_, stub):
        assert _statuses(stub, [*acknowledged, "new"]) == {ingest.SubmitResponse.DUPLICATE: len(acknowledged) + 1}


def _until(health: Any, status: Any) -> None:
    for each in health:
        if each.status == status:
            return
    raise AssertionError(f"it never said {status}")


def _request(request_id: str) -> Any:
    return (
        request("new", 0, 10)
        if request_id == "new"
        else request(request_id, (n := int(request_id[1:])) * 10, n * 10 + 10)
    )


def _statuses(stub: Any, request_ids: list[str]) -> Counter[int]:
    calls = [stub.history.SubmitHistorical(_request(each), timeout=60, wait_for_ready=True) for each in request_ids]
    return Counter(call.answer.status for call in calls)


def _answered(stub: Any, request_ids: list[str], code: grpc.StatusCode) -> int:
    """Return how many calls for requests end with a code."""
    found = 0
    for each in request_ids:
        try:
            stub.history.SubmitHistorical(_request(each), timeout=60)
        except grpc.RpcError as error:
            found += error.code() is code
    return found


def _submit_until_refused(stub: Any, acknowledged: list[str]) -> Any:
    for n in range(len(acknowledged), 5_000):
        message = request(f"r{n}", n * 10, n * 10 + 10)
        try:
            answer = stub.history.SubmitHistorical(message, timeout=60, wait_for_ready=not acknowledged).answer
        except grpc.RpcError as error:
            return error
        assert answer.status == ingest.SubmitResponse.QUEUED
        acknowledged.append(message.request_id)
    raise AssertionError("the disk never got full")
