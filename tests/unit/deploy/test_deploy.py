"""Deployment files: settings that the parts read, modules that start, metrics that exist."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry
from pydantic_settings import BaseSettings

from deploy import write_mesh
from dexorder.setup import secrets
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.messaging.curve import make_keys
from dexorder_common.metrics import CallMetrics
from dexorder_common.rpc.channel import ChannelSettings, open_channel
from dexorder_gateway.config import GatewaySettings
from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.events.dispatcher.metrics import DispatcherMetrics, SendMetrics
from dexorder_gateway.events.sessions.registry import SessionMetrics
from dexorder_gateway.kafkapixy.metrics import KafkaMetrics
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.metrics import IngestorMetrics
from dexorder_relay.config import RelaySettings
from dexorder_relay.metrics import RelayMetrics
from dexorder_spark.config import SparkSettings
from dexorder_spark.metrics import Metrics as SparkMetrics
from dexorder_udsource.config import UdsourceSettings
from dexorder_udsource.topic_reader import UdsourceMetrics
from tests.fixtures_tls import Authority
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
PREFIXES = {"events": "GATEWAY"}
"""Parts whose variables have another prefix than their name."""
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
        shared[each["metadata"]["name"]] = each["data"]
    yield from _kubernetes(shared)


def kubernetes_in_istio() -> Iterator[tuple[str, str, dict[str, str]]]:
    shared: dict[str, dict[str, str]] = {"security": write_mesh.settings(), "security-events": {}}
    for each in yaml.safe_load_all((DEPLOY / "kubernetes" / "settings.yaml").read_text()):
        shared.setdefault(each["metadata"]["name"], each["data"])
    yield from _kubernetes(shared)


def _kubernetes(shared: Mapping[str, dict[str, str]]) -> Iterator[tuple[str, str, dict[str, str]]]:
    for name in SETTINGS:
        _, workload = yaml.safe_load_all((DEPLOY / "kubernetes" / f"{name}.yaml").read_text())
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        own = {entry["name"]: entry.get("value", "a-token") for entry in container["env"]}
        for source in container["envFrom"]:
            own |= shared.get(next(iter(source.values()))["name"], {})  # Secrets are the user's
        yield name, container["command"][2], own


def helm() -> Iterator[tuple[str, str, dict[str, str]]]:
    """Return what the chart's values give to each part; `test_mesh.py` renders it where helm is installed."""
    values = yaml.safe_load((DEPLOY / "helm" / "values.yaml").read_text())
    for name, part in values["parts"].items():
        prefix = part["prefix"]
        own = {
            f"{prefix}_LISTEN": f"0.0.0.0:{part['ports']['grpc']}",
            f"{prefix}_METRICS_LISTEN": f"127.0.0.1:{part['ports']['metrics']}",
            f"{prefix}_LAME_DUCK_SECONDS": str(values["lameDuckSeconds"]),
            f"{prefix}_TLS_CERTIFICATE": "/tls/tls.crt",
            f"{prefix}_TLS_KEY": "/tls/tls.key",
            f"{prefix}_IDENTITY": "token",
            f"{prefix}_TOKENS": "/callers/callers.yaml",
            "DEXORDER_CHANNEL_TLS_CA": "/tls/ca.crt",
        }
        own |= {key: re.sub(r"\{\{.*?\}\}", "host", value) for key, value in part["env"].items()}
        yield name, part["module"], own | part.get("curve", {}) | values["settings"]


def mounted(folder: Path) -> dict[str, str]:
    """Make what the Secrets of a deployment contain; return the folders of this machine by those of the pods."""
    authority = Authority(folder / "tls")
    pair = authority.server()
    for made, name in ((pair.certificate, "tls.crt"), (pair.key, "tls.key"), (authority.ca, "ca.crt")):
        made.rename(folder / "tls" / name)
    for name in ("relay", "ingestor", "events"):
        make_keys(folder / "curve", name)
    (folder / "curve" / "clients").mkdir()
    callers = folder / "callers"
    callers.mkdir()
    for name in ("callers", "relay", "gateway", "udsource", "ingestor", "spark"):
        data = write_mesh.callers()["data"]
        (callers / f"{name}.yaml").write_text(data.get(f"{name}.yaml", data["relay.yaml"]))
    (folder / "containers").mkdir()
    (folder / "containers" / "containers.yaml").write_text(
        'containers: [{container: relay, client_id: relay, users: "*"}]'
    )
    secrets.make(folder / "secrets")
    return {f"/{name}/": f"{folder}/{name}/" for name in ("tls", "curve", "callers", "containers", "secrets")} | {
        "/curve/clients": f"{folder}/curve/clients"
    }


@pytest.mark.parametrize("files", [compose, kubernetes, kubernetes_in_istio, helm])
async def test_every_part_reads_and_accepts_its_settings(
    files: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen, folders = set(), mounted(tmp_path)
    for name, module, environment in files():
        seen.add(name)
        assert find_spec(module + ".__main__"), module
        channel = variables(ChannelSettings)
        others = [f"DEXORDER_{each}_" for each in ("RELAY", "GATEWAY", "UDSOURCE", "INGESTOR", "SPARK", "EVENTS")]
        readers: list[type[BaseSettings]] = [*SETTINGS[name], CatalogSettings]
        known = {variable for settings in readers for variable in variables(settings)}
        known |= {"DEXORDER_EXCHANGES", "OTEL_EXPORTER_OTLP_ENDPOINT", *channel}
        every = {variable for each in SETTINGS.values() for settings in each for variable in variables(settings)}
        own = tuple(prefix for prefix in others if any(each.startswith(prefix) for each in known))
        unknown = set(environment) - known
        # The parts share a ConfigMap of variables; those of another part are read there.
        assert {each for each in unknown if each.startswith(own) or each not in every} == set(), name
        with monkeypatch.context() as patch:
            for variable, value in environment.items():
                found = re.sub(r"\$\{\w+:[-?]([^}]*\}?)\}", r"\1", value)
                place = next((given for pod, given in folders.items() if found.startswith(pod)), None)
                pod = next((pod for pod in folders if found.startswith(pod)), "")
                patch.setenv(variable, place + found.removeprefix(pod) if place else found)
            for settings in SETTINGS[name]:
                settings()
            if environment.get("DEXORDER_CHANNEL_TLS_CERTIFICATE"):
                await open_channel("relay:50051").close()
    assert seen == set(SETTINGS)


def test_containers_of_compose_are_confined() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    for name in SETTINGS:
        part = services[name]
        assert part["read_only"] and part["tmpfs"] == ["/tmp"], name
        assert part["cap_drop"] == ["ALL"] and part["security_opt"] == ["no-new-privileges:true"], name


def test_each_container_of_compose_has_its_own_secrets_only() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    mounts = {name: [each for each in part.get("volumes", []) if "secrets" in each] for name, part in services.items()}
    assert sorted(mounts.pop("secrets")) == sorted(f"{owner}-secrets:/secrets/{owner}" for owner in secrets.ROLES)
    for name, own in mounts.items():
        assert own == ([f"{name}-secrets:/secrets/{name}:ro"] if name in secrets.ROLES else []), name
        paths = [each for each in services[name].get("environment", {}).values() if each.startswith("/secrets/")]
        assert all(each.startswith(f"/secrets/{name}/") for each in paths), name
    made = (DEPLOY / "Dockerfile").read_text()
    assert all(f" /secrets/{owner} " in made for owner in secrets.ROLES), "the owner of a volume is the folder's"


def test_images_of_compose_are_pinned_and_their_health_is_checked() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    for name, part in services.items():
        image, _, version = part["image"].partition(":")
        assert image.startswith("dexorder-") or re.match(r"v?\d+(\.\d+)+$", version), name
    runs_once = {"secrets", "desk", "operator"}
    assert {name for name, part in services.items() if "healthcheck" not in part} == {*runs_once, "jaeger"}
    for name in SETTINGS:
        port = services[name]["environment"][f"DEXORDER_{PREFIXES.get(name, name.upper())}_METRICS_LISTEN"][-4:]
        assert f":{port}/healthz" in services[name]["healthcheck"]["test"][-1], name
        needs = services[name]["depends_on"]
        assert needs.pop("secrets") == {"condition": "service_completed_successfully"}, name
        assert needs and all(each == {"condition": "service_healthy"} for each in needs.values()), name


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
    """`make nightly` runs promtool; the gate compares names, severities and summaries, and that each alert fires."""
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())["groups"][0]["rules"]
    by_name = {rule["alert"]: rule for rule in rules}
    tests = yaml.safe_load((DEPLOY / "prometheus" / "alerts_test.yaml").read_text())["tests"]
    for case in (case for test in tests for case in test["alert_rule_test"]):
        rule = by_name[case["alertname"]]
        template = ".+".join(map(re.escape, re.split(r"\{\{.*?\}\}", rule["annotations"]["summary"])))
        for expected in case["exp_alerts"]:
            assert expected["exp_labels"]["severity"] == rule["labels"]["severity"]
            assert re.fullmatch(template, expected["exp_annotations"]["summary"]), case["alertname"]
    fired = {case["alertname"] for test in tests for case in test["alert_rule_test"] if case["exp_alerts"]}
    assert set(by_name) - fired == set()


def test_counters_of_alerts_on_a_single_event_begin_at_0() -> None:
    """Else the first event would make a series that begins at 1, in which Prometheus sees no increase."""
    registry = CollectorRegistry()
    RelayMetrics(registry)
    SparkMetrics(registry).of("trading.ohlc")
    UdsourceMetrics(registry)
    begun = {(each.name, *each.labels.values()) for family in registry.collect() for each in family.samples}
    assert begun >= {
        ("dexorder_relay_requests_finished_total", "ERROR"),
        ("dexorder_relay_requests_finished_total", "TIMEOUT"),
        *(("dexorder_relay_reports_ignored_total", each) for each in ("page", "final", "trigger_event")),
        ("dexorder_spark_refused_records_total", "trading.ohlc"),
        ("dexorder_spark_quarantined_records_total", "trading.ohlc"),
        ("dexorder_udsource_records_lost_total",),
    }


def test_operations_page_describes_every_alert() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())["groups"][0]["rules"]
    page = (DEPLOY.parent / "docs" / "operations.md").read_text()
    assert [rule["alert"] for rule in rules if f"`{rule['alert']}`" not in page] == []


def relabelled(rules: list[dict[str, Any]], labels: dict[str, str]) -> dict[str, str]:
    """Return the labels of a target after rules that set or replace, as Prometheus applies them (a part of them)."""
    found = dict(labels)
    for rule in rules:
        sources = rule.get("source_labels", rule.get("sourceLabels", []))
        value = ";".join(found.get(name, "") for name in sources)
        match = re.fullmatch(rule.get("regex", "(.*)"), value)
        if rule.get("action") == "keep" and not match:
            return {}
        if match and (target := rule.get("target_label", rule.get("targetLabel"))):
            template = re.sub(r"\$(\d)", r"\\\1", rule.get("replacement", "$1"))
            found[target] = match.expand(template)
    return found


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for file in (DEPLOY / "kubernetes").glob("*.yaml"):
        for each in yaml.safe_load_all(file.read_text()):
            if each["kind"] in ("Deployment", "StatefulSet") and (template := each["spec"]["template"]):
                yield template["metadata"]["labels"]["app"], template


def test_every_way_to_read_metrics_gives_the_labels_of_the_rules() -> None:
    """The labels that Kubernetes gives are rewritten, so that `up{job="dexorder"}` and `{{ $labels.part }}` hold."""
    static = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text())["scrape_configs"]
    assert [each["job_name"] for each in static] == ["dexorder"]
    assert {each["labels"]["part"] for each in static[0]["static_configs"]} == set(SETTINGS)

    (annotated,) = yaml.safe_load((DEPLOY / "prometheus" / "kubernetes.yaml").read_text())["scrape_configs"]
    monitor = yaml.safe_load((DEPLOY / "kubernetes" / "podmonitor.yaml").read_text())["spec"]
    (selector,) = monitor["selector"]["matchExpressions"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    seen = set()
    for app, template in pods():
        notes = template["metadata"].get("annotations", {})
        labels = {"__meta_kubernetes_pod_label_app": app, "__meta_kubernetes_pod_ip": "10.0.0.7", "job": "dexorder"}
        prefix = "__meta_kubernetes_pod_annotation_prometheus_io_"
        marked = labels | {f"{prefix}{name}": notes.get(f"prometheus.io/{name}", "") for name in ("scrape", "port")}
        port = next(p["containerPort"] for p in template["spec"]["containers"][0]["ports"] if p["name"] == "metrics")
        found = relabelled(annotated["relabel_configs"], marked)
        assert (found["part"], found["job"], found["__address__"]) == (app, "dexorder", f"10.0.0.7:{port}")
        by_operator = relabelled(endpoint["relabelings"], labels | {"job": "dexorder/dexorder"})
        assert (by_operator["part"], by_operator["job"]) == (app, "dexorder") and app in selector["values"]
        assert endpoint["port"] == "metrics"
        seen.add(app)
    assert seen == set(SETTINGS)

    (chart,) = re.findall(r"relabelings:\n((?: +- .*\n)+)", (DEPLOY / "helm" / "templates" / "parts.yaml").read_text())
    labels = {"__meta_kubernetes_pod_label_app_kubernetes_io_component": "relay", "job": "dexorder/dexorder"}
    assert {"job": "dexorder", "part": "relay"}.items() <= relabelled(yaml.safe_load(chart), labels).items()


def test_grafana_in_compose_has_the_dashboard_and_its_source() -> None:
    grafana = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["grafana"]
    places = dict(each.split(":")[:2] for each in grafana["volumes"])
    assert all((DEPLOY / source).exists() for source in places)
    provisioning = DEPLOY / "grafana" / "provisioning"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "dexorder.yaml").read_text())["providers"]
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == places["./grafana/dashboard.json"] and home.startswith(provider["options"]["path"])
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")


def test_the_version_is_everywhere_that_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((DEPLOY / "helm" / "Chart.yaml").read_text())
    newest = re.search(r"^## (\S+) - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    tags = set(re.findall(r"#tag=v(\S+?)\"", (ROOT / "docs" / "other-languages.md").read_text()))
    assert newest, "CHANGELOG.md begins with a released version and its date"
    assert {chart["version"], chart["appVersion"], newest[1], *tags} == {version}
