"""The table of repeated calls in docs/api.md: it names every unary call that changes something, and tests hold it."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pb2 import MethodOptions

import dexorder_protos
from tests.paths import ROOT

GIVEN_READS = {"GetOffsets", "ListTopics", "ListConsumers", "GetTopicMetadata", "PendingFn", "PartitionsFn", "IsReady"}
"""Reads of the given protocols, which state no idempotency level."""
ON_A_SOCKET = {"NackFn"}
"""Numaflow calls it over a socket of its own pod, without a proxy."""
TESTS = ("unit/services/relay", "integration/services/gateway/kafkapixy", "integration/events")
LOSSES = {"lost", "loses_all"}


def methods() -> Iterator[MethodDescriptor]:
    for each in pkgutil.walk_packages(dexorder_protos.__path__, "dexorder_protos."):
        if each.name.endswith("_pb2"):
            for service in importlib.import_module(each.name).DESCRIPTOR.services_by_name.values():
                yield from service.methods


def changing() -> set[str]:
    """Return the unary methods that change something."""
    unary = [each for each in methods() if not (each.server_streaming or each.client_streaming)]
    levels = {each.name: each.GetOptions().idempotency_level for each in unary}
    found = {name for name, level in levels.items() if level != MethodOptions.NO_SIDE_EFFECTS}
    assert found >= GIVEN_READS | ON_A_SOCKET
    return found - GIVEN_READS - ON_A_SOCKET


def in_table() -> set[str]:
    text = (ROOT / "docs" / "api.md").read_text().partition("### Calls that a proxy repeats")[2]
    rows = re.findall(r"^\| ([^|]+) \|", text, re.M)
    return {name for row in rows for name in re.findall(r"`([A-Z]\w+)`", row)}


def repeated_in_tests() -> set[str]:
    """Return the methods that are called in tests whose proxy loses answers, by themselves or by a helper."""
    found: set[str] = set()
    for folder in TESTS:
        for file in (ROOT / "tests" / folder).rglob("test_*.py"):
            if "RepeatingProxy" in (text := file.read_text()):
                tree = ast.parse(text)
                helpers = {each.name: each for each in tree.body if isinstance(each, ast.AsyncFunctionDef)}
                tests = [each for name, each in helpers.items() if name.startswith("test_") and _loses(each)]
                for test in tests:
                    called = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)} & helpers.keys()
                    for each in (test, *(helpers[name] for name in called)):
                        found |= {node.attr for node in ast.walk(each) if isinstance(node, ast.Attribute)}
    return found


def _loses(test: ast.AsyncFunctionDef) -> bool:
    names = {node.attr for node in ast.walk(test) if isinstance(node, ast.Attribute)}
    names |= {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
    return bool(names & (LOSSES | {"lossy"}))


def test_the_table_names_every_unary_call_that_changes_something() -> None:
    assert in_table() == changing()


def test_each_of_them_is_repeated_by_a_test_after_its_answer_was_lost() -> None:
    through_helpers = {"ReportPage", "ReportJobs", "ReportRealtime", "ResumeRealtime"}  # of the relay's harness
    assert changing() - repeated_in_tests() <= through_helpers
