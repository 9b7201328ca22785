"""Deployment files: settings that the parts read, modules that start, metrics that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry
from pydantic_settings import BaseSettings

from dexorder.services.common.lake.catalog import CatalogSettings
from dexorder.services.common.metrics import CallMetrics
from dexorder.services.gateway.config import GatewaySettings
from dexorder.services.gateway.events.config import EventsSettings
from dexorder.services.gateway.events.dispatcher.metrics import DispatcherMetrics, SendMetrics
from dexorder.services.gateway.events.sessions.registry import SessionMetrics
from dexorder.services.gateway.kafkapixy.metrics import KafkaMetrics
from dexorder.services.ingestor.config import IngestorSettings
from dexorder.services.ingestor.metrics import IngestorMetrics
from dexorder.services.relay.config import RelaySettings
from dexorder.services.relay.metrics import RelayMetrics
from dexorder.services.udsource.config import UdsourceSettings
from dexorder.services.udsource.topic_reader import UdsourceMetrics
from dexorder.spark.config import SparkSettings
from dexorder.spark.metrics import Metrics as SparkMetrics
from tests.paths import ROOT

DEPLOY = ROOT / "deploy"
SETTINGS: dict[str, tuple[type[BaseSettings], ...]] = {
    "relay": (RelaySettings, CatalogSettings),
    "gateway": (GatewaySettings,),
    "events": (GatewaySettings, EventsSettings),
    "udsource": (UdsourceSettings,),
    "ingestor": (IngestorSettings,),
    "spark": (SparkSettings, CatalogSettings),
}
GIVEN_BY_OTHERS = {"up"} | {f"process_{name}" for name in ("resident_memory_bytes",)}
"""Metrics of Prometheus itself and of the client library's process collector."""


def variables(settings: type[BaseSettings]) -> set[str]:
    prefix = settings.model_config.get("env_prefix", "")
    return {str(field.validation_alias or prefix + name).upper() for name, field in settings.model_fields.items()}


def compose() -> Iterator[tuple[str, str, dict[str, str]]]:
    for name, part in yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"].items():
        if name in SETTINGS:
            yield name, part["command"][2], part["environment"]


def kubernetes() -> Iterator[tuple[str, str, dict[str, str]]]:
    shared: dict[str, dict[str, str]] = {}
    for each in yaml.safe_load_all((DEPLOY / "kubernetes" / "settings.yaml").read_text()):
        shared[each["metadata"]["name"]] = each.get("data", each.get("stringData", {}))
    for name in SETTINGS:
        _, workload = yaml.safe_load_all((DEPLOY / "kubernetes" / f"{name}.yaml").read_text())
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        own = {entry["name"]: entry["value"] for entry in container["env"]}
        for source in container["envFrom"]:
            own |= shared[next(iter(source.values()))["name"]]
        yield name, container["command"][2], own


def helm() -> Iterator[tuple[str, str, dict[str, str]]]:
    """Return what the chart's values give to each part; tests/nightly/test_helm_chart.py renders it."""
    values = yaml.safe_load((DEPLOY / "helm" / "values.yaml").read_text())
    for name, part in values["parts"].items():
        own = {
            f"{part['prefix']}_LISTEN": f"127.0.0.1:{part['ports']['grpc']}",
            f"{part['prefix']}_METRICS_LISTEN": f"127.0.0.1:{part['ports']['metrics']}",
            f"{part['prefix']}_LAME_DUCK_SECONDS": str(values["lameDuckSeconds"]),
        }
        own |= {key: re.sub(r"\{\{.*?\}\}", "host", value) for key, value in part["env"].items()}
        yield name, part["module"], own | values["settings"] | {"DEXORDER_ALLOW_INSECURE": "1"}


@pytest.mark.parametrize("files", [compose, kubernetes, helm])
def test_every_part_reads_and_accepts_its_settings(files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    for name, module, environment in files():
        seen.add(name)
        assert find_spec(module + ".__main__"), module
        readers: list[type[BaseSettings]] = [*SETTINGS[name], CatalogSettings]
        known = {variable for settings in readers for variable in variables(settings)}
        assert set(environment) <= known | {"DEXORDER_EXCHANGES"}, name
        with monkeypatch.context() as patch:
            for variable, value in environment.items():
                patch.setenv(variable, re.sub(r"\$\{\w+:[-?]([^}]*\}?)\}", r"\1", value))
            for settings in SETTINGS[name]:
                settings()
    assert seen == set(SETTINGS)


def counted() -> set[str]:
    """Return metric names as Prometheus scrapes them."""
    registry = CollectorRegistry()
    for metrics in (
        RelayMetrics,
        CallMetrics,
        KafkaMetrics,
        DispatcherMetrics,
        SessionMetrics,
        SendMetrics,
        IngestorMetrics,
        UdsourceMetrics,
        SparkMetrics,
    ):
        metrics(registry)
    names = set(GIVEN_BY_OTHERS)
    for family in registry.collect():
        suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(family.type, [""])
        names |= {family.name + suffix for suffix in suffixes}
    return names


def asked(expression: str) -> set[str]:
    """Return the metric names in a PromQL expression."""
    bare = re.sub(r"\{[^}]*\}|\[[^]]*\]|by \([^)]*\)", "", expression)
    return set(re.findall(r"\b(?:dexorder|grpc|process)_\w+|\bup\b", bare))


def test_alerts_and_dashboard_use_existing_metrics() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())["groups"][0]["rules"]
    panels = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())["panels"]
    expressions = [rule["expr"] for rule in rules]
    expressions += [target["expr"] for panel in panels for target in panel["targets"]]
    assert all(asked(expression) for expression in expressions)
    assert set().union(*map(asked, expressions)) - counted() == set()


def test_the_tests_of_alerts_expect_todays_rules() -> None:
    """promtool, which runs them, is not a part of the gate: names, severities and summaries are compared here."""
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())["groups"][0]["rules"]
    by_name = {rule["alert"]: rule for rule in rules}
    tests = yaml.safe_load((DEPLOY / "prometheus" / "alerts_test.yaml").read_text())["tests"]
    for case in (case for test in tests for case in test["alert_rule_test"]):
        rule = by_name[case["alertname"]]
        template = ".+".join(map(re.escape, re.split(r"\{\{.*?\}\}", rule["annotations"]["summary"])))
        for expected in case["exp_alerts"]:
            assert expected["exp_labels"]["severity"] == rule["labels"]["severity"]
            assert re.fullmatch(template, expected["exp_annotations"]["summary"]), case["alertname"]


def test_operations_page_describes_every_alert() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())["groups"][0]["rules"]
    page = (DEPLOY.parent / "docs" / "operations.md").read_text()
    assert [rule["alert"] for rule in rules if f"`{rule['alert']}`" not in page] == []
