"""docs/limits.md: every RPC, frame and port has a limit of its own, and each limit a test that attacks it."""

from __future__ import annotations

import ast
from collections import Counter
from typing import Any

import pytest
from google.protobuf.message_factory import GetMessageClass
from pydantic_settings import BaseSettings

from dexorder_common.model.errors import InvalidRequest
from dexorder_common.rpc.field_rules import check_request, rules_of
from dexorder_exchange_sim.config import SimSettings
from dexorder_gateway.config import GatewaySettings
from dexorder_gateway.events.config import EventsSettings
from dexorder_ingestor.config import IngestorSettings
from dexorder_relay.config import RelaySettings
from dexorder_spark.config import SparkSettings
from dexorder_udsource.config import UdsourceSettings
from tests.paths import ROOT
from write_limits import PAGE, Limit, frames, limits, page, ports, rpcs, services, value_of

LIMITS = limits()
DOORS = [*rpcs(), *frames(), *ports()]


def test_page_is_fresh() -> None:
    assert PAGE.read_text() == page(), "run make docs"


def test_every_rpc_frame_and_port_has_a_row_and_no_row_names_another() -> None:
    named = {door for limit in LIMITS for door in limit.doors}
    assert [door for door in DOORS if door not in named] == []
    assert named - {*DOORS, "*"} == set()


def test_every_setting_that_opens_a_port_is_a_port_of_the_table() -> None:
    """A part that listens at another address has one more setting, whatever the local suite does with it."""
    opened: dict[str, tuple[type[BaseSettings], str]] = {
        "port relay": (RelaySettings, "listen"),
        "port relay_metrics": (RelaySettings, "metrics_listen"),
        "port broker": (RelaySettings, "broker_listen"),
        "port gateway": (GatewaySettings, "listen"),
        "port gateway_metrics": (GatewaySettings, "metrics_listen"),
        "port gateway_http": (GatewaySettings, "http_listen"),
        "port events_sub": (EventsSettings, "sub"),
        "port events_router": (EventsSettings, "router"),
        "port web": (EventsSettings, "web_listen"),
        "port udsource": (UdsourceSettings, "listen"),
        "port udsource_metrics": (UdsourceSettings, "metrics_listen"),
        "port ingestor": (IngestorSettings, "listen"),
        "port ingestor_metrics": (IngestorSettings, "metrics_listen"),
        "port spark": (SparkSettings, "listen"),
        "port spark_metrics": (SparkSettings, "metrics_listen"),
        "port sim": (SimSettings, "listen"),
    }
    found = {(each, name) for each in {kind for kind, _ in opened.values()} for name in each.model_fields}
    listening = {(each, name) for each, name in found if "listen" in name or name in ("sub", "router")}
    assert {(kind.__name__, name) for kind, name in listening} == {
        (kind.__name__, name) for kind, name in opened.values()
    }
    assert {*opened} == {*ports()} - {"port kafka", "port kafka_controller"}


def test_every_listing_refuses_a_larger_page_and_has_its_row() -> None:
    (row,) = [each for each in LIMITS if each.resource == "entries of a page of a listing"]
    listings = {
        f"{service.name}.{name}": GetMessageClass(method.input_type)
        for service in services()
        for name, method in service.methods_by_name.items()
        if "page_size" in method.input_type.fields_by_name
    }
    assert {*listings} == {*row.doors}
    for message in listings.values():
        given: Any = message()
        for field in given.DESCRIPTOR.fields:
            if rules_of(field).required and field.type == field.TYPE_STRING and not field.is_repeated:
                setattr(given, field.name, "x")
        given.page_size = 1_000
        check_request(given)
        given.page_size = 1_001
        with pytest.raises(InvalidRequest, match="page_size"):
            check_request(given)


def test_services_are_all_that_the_protos_declare() -> None:
    declared = [path.read_text() for path in (ROOT / "protos").rglob("*.proto")]
    names = [line.strip() for text in declared for line in text.splitlines() if line.lstrip().startswith("rpc ")]
    assert Counter(door.partition(".")[2] for door in rpcs()) == Counter(
        name.split("(")[0][4:].strip() for name in names
    )


def test_resources_have_names_of_their_own() -> None:
    assert [name for name, count in Counter(limit.resource for limit in LIMITS).items() if count > 1] == []


@pytest.mark.parametrize("limit", LIMITS, ids=[limit.resource for limit in LIMITS])
def test_value_is_in_the_code_and_its_attack_in_the_gate(limit: Limit) -> None:
    assert value_of(limit) or not limit.value
    assert bool(limit.test) != limit.above.startswith("none: ")
    for test in limit.tests:
        path, _, name = test.partition("::")
        tree = ast.parse((ROOT / "tests" / path).read_text())
        functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
        (function,) = [each for each in functions if each.name == name]
        marks = " ".join(ast.unparse(each) for each in function.decorator_list)
        assert not any(
            tier in marks for tier in ("pytest.mark.soak", "pytest.mark.nightly", "pytest.mark.skip", "xfail(")
        )
