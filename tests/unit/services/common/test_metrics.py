"""Metrics of calls as Prometheus reads them."""

from __future__ import annotations

import http.client
import socket
import threading
import time
import urllib.request
from contextlib import ExitStack, suppress

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from dexorder_common import metrics
from dexorder_common.metrics import CallMetrics, metrics_endpoint
from dexorder_common.model.errors import Code

LABELS = {"grpc_type": "unary", "grpc_service": "s", "grpc_method": "m"}


def test_buckets_are_cumulative() -> None:
    registry = CollectorRegistry()
    tally = CallMetrics(registry).tally(("unary", "s", "m"))
    for seconds in (0.001, 0.005, 0.2, 11.0):
        tally.end(Code.OK, seconds)

    def below(bound: str) -> float | None:
        return registry.get_sample_value("grpc_server_handling_seconds_bucket", LABELS | {"le": bound})

    assert [below(bound) for bound in ("0.005", "0.1", "0.25", "1.0", "10.0", "+Inf")] == [2, 2, 3, 3, 3, 4]
    assert registry.get_sample_value("grpc_server_handling_seconds_count", LABELS) == 4
    assert registry.get_sample_value("grpc_server_handling_seconds_sum", LABELS) == pytest.approx(11.206)


def test_registry_accepts_one_server() -> None:
    registry = CollectorRegistry()
    CallMetrics(registry)
    with pytest.raises(ValueError, match="grpc_server_started"):
        CallMetrics(registry)


def test_the_endpoint_has_the_metrics_of_the_process() -> None:
    with (
        metrics_endpoint("127.0.0.1:0", CollectorRegistry()) as address,
        urllib.request.urlopen(f"http://{address}/metrics") as answer,
    ):
        families = {each.name: each for each in text_string_to_metric_families(answer.read().decode())}
    (resident,) = families["process_resident_memory_bytes"].samples
    assert resident.value > 1_000_000
    (build,) = families["dexorder_build_info"].samples
    assert build.labels["version"]
    assert "python_gc_collections" in families


@pytest.mark.parametrize(("serving", "status"), [(True, 200), (False, 503)])
def test_the_endpoint_says_whether_the_server_serves(serving: bool, status: int) -> None:
    with metrics_endpoint("127.0.0.1:0", CollectorRegistry(), lambda: serving) as address:
        connection = http.client.HTTPConnection(address, timeout=20)
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == status
        assert b"process_" in _answer(address)


def _answer(address: str) -> bytes:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
        return bytes(answer.read())


@pytest.mark.parametrize("sent", [b"", b"GET /met", b"GET /metrics HTTP/1.1\r\nX: "], ids=["nothing", "line", "header"])
def test_connections_without_a_whole_request_are_closed_and_are_few(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "MAX_CONNECTION_SECONDS", 1.0)
    monkeypatch.setattr(metrics, "MAX_CONNECTIONS", 4)
    before = threading.active_count()
    with metrics_endpoint("127.0.0.1:0", CollectorRegistry()) as address, ExitStack() as opened:
        host, port = address.split(":")
        for _ in range(20):
            silent = opened.enter_context(socket.create_connection((host, int(port)), timeout=20))
            with suppress(OSError):
                silent.sendall(sent)
        silent.settimeout(0.01)
        most, is_open = 0, True
        while is_open:  # the last one; the server's thread accepts them meanwhile
            most = max(most, threading.active_count())
            with suppress(TimeoutError):
                with suppress(ConnectionResetError):
                    assert silent.recv(1) == b""
                is_open = False
        assert most <= before + 1 + 4
        for _ in range(50):
            with suppress(OSError):
                assert b"dexorder_build_info" in _answer(address)
                return
            time.sleep(0.1)
        pytest.fail("the endpoint does not answer any more")
