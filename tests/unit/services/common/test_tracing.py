"""When a process traces, to where it sends its spans, and that it imports no SDK otherwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dexorder_common import tracing
from dexorder_common.tracing import is_wanted
from tests.fakes.otlp import collector
from tests.paths import ROOT

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
SERVERS = [
    "dexorder.client.blocking",
    "dexorder.cli.app",
    *(f"dexorder_{name}.server" for name in ("relay", "ingestor", "udsource", "exchange_sim")),
    "dexorder_spark.server",
    "dexorder_spark.driver",
    "dexorder_gateway.server",
    "dexorder_gateway.events.server",
]
START_EACH = """
import asyncio, importlib, json, sys
from dexorder_common.rpc.settings import ServiceSettings
from dexorder_common.rpc import lifecycle

async def main():
    async with lifecycle.grpc_server(ServiceSettings(), lambda server: []):
        pass

loaded = {}
for module in json.loads(sys.argv[1]):
    importlib.import_module(module)
    lifecycle.run("part", ServiceSettings(drain_seconds=0), main)
    barred = ["opentelemetry.sdk", "opentelemetry.exporter", "opentelemetry.proto"]
    loaded[module] = [name for name in barred if name in sys.modules]
json.dump(loaded, sys.stdout)
"""


@pytest.fixture(autouse=True)
def untraced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    yield
    tracing.shutdown()


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({ENDPOINT: "http://collector:4317"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4317"}, True),
        ({ENDPOINT: " "}, False),
        ({ENDPOINT: "http://collector:4317", "OTEL_SDK_DISABLED": "True"}, False),
        ({ENDPOINT: "http://collector:4317", "OTEL_SDK_DISABLED": "false"}, True),
        ({ENDPOINT: "http://collector:4317", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://collector:4317"}, False),
    ],
)
def test_a_process_traces_if_the_environment_names_a_collector(environment: dict[str, str], wanted: bool) -> None:
    assert is_wanted(environment) is wanted


def started(servers: list[str], **environment: str) -> dict[str, list[str]]:
    """Return the OpenTelemetry packages that are loaded once each server was imported and has run, in this order."""
    child = subprocess.run(
        [sys.executable, "-c", START_EACH, json.dumps(servers)],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("OTEL_")} | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    found: dict[str, list[str]] = json.loads(child.stdout)
    return found


def test_without_a_collector_no_server_and_no_client_imports_the_sdk() -> None:
    assert started(SERVERS) == {name: [] for name in SERVERS}


def test_with_a_collector_a_server_does() -> None:
    name = "dexorder_udsource.server"
    assert "opentelemetry.sdk" in started([name], **{ENDPOINT: "http://127.0.0.1:9"})[name]


def test_spans_of_a_process_reach_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    with collector() as received:
        monkeypatch.setenv(ENDPOINT, f"http://{received.address}")
        tracing.configure("relay")
        with tracing.span("outer", root=True, attributes={"n": 7}), tracing.span("inner"):
            pass
        tracing.shutdown()  # sends what is left
        paths = {received.path(span): span.attributes for span in received.spans()}
    assert paths == {("relay: outer",): {"n": 7}, ("relay: outer", "relay: inner"): {}}


@pytest.mark.parametrize(
    ("name", "value", "service"),
    [
        ("OTEL_SERVICE_NAME", "mine", "mine"),
        ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test", "dexorder-x"),
    ],
)
def test_the_service_has_a_name(monkeypatch: pytest.MonkeyPatch, name: str, value: str, service: str) -> None:
    with collector() as received:
        monkeypatch.setenv(ENDPOINT, f"http://{received.address}")
        monkeypatch.setenv(name, value)
        tracing.configure("x")
        tracing.start("work", root=True).end()
        tracing.shutdown()
        assert [span.service for span in received.spans()] == [service]


def test_a_collector_that_is_away_keeps_nothing_from_ending(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setattr("dexorder_common.tracing.FLUSH_SECONDS", 0.1)
    tracing.configure("relay")
    with tracing.span("work", root=True) as span:
        assert tracing.context_of(span) is not None
    tracing.shutdown()
    assert not tracing.is_on()
    # The exporter draws its pauses from the module ``random``; hypothesis takes that for a fault of its test.
    for thread in [each for each in threading.enumerate() if each.name == "traces-shutdown"]:
        thread.join()


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf", "'http/protobuf' is not supported; use grpc"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json", "'http/json' is not supported; use grpc"),
    ],
)
def test_settings_that_do_not_work_are_logged_and_nothing_is_traced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, value: str, text: str
) -> None:
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")
    monkeypatch.setenv(name, value)
    tracing.configure("relay")
    assert not tracing.is_on() and text in caplog.text and name in caplog.text


def test_a_missing_package_is_named_and_nothing_is_traced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    tracing.configure("relay")
    assert not tracing.is_on() and "-py3-none-any.whl[otel]'" in caplog.text


def test_without_a_tracer_there_is_no_span() -> None:
    with tracing.span("work", root=True) as span:
        assert span is trace.INVALID_SPAN and tracing.context_of(span) is None
        assert trace.get_current_span() is trace.INVALID_SPAN
        assert tracing.headers() == ()


def test_a_library_uses_the_tracer_of_its_application(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    with trace.get_tracer("application").start_as_current_span("page"), tracing.span("dexorder.history", root=True):
        ((name, traceparent),) = tracing.headers()
    history, page = exporter.get_finished_spans()
    assert history.parent is not None and page.context is not None and history.context is not None
    assert history.parent.span_id == page.context.span_id
    assert (name, traceparent.split("-")[2]) == ("traceparent", f"{history.context.span_id:016x}")
    tracing.shutdown()
    with trace.get_tracer("application").start_as_current_span("next"):
        pass
    assert len(exporter.get_finished_spans()) == 3, "the application's tracer is not shut down"


def test_an_application_without_an_sdk_traces_nothing() -> None:
    with tracing.span("dexorder.history", root=True) as span:
        assert tracing.context_of(span) is None and tracing.headers() == ()
