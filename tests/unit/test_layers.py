"""Pure modules import no transport: a process imports them, in which gRPC, ZMQ, Kafka and protobuf are barred."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

from dexorder_common.packages import package_folders
from tests.paths import ROOT

LAYERS = ("dexorder_common.model", "dexorder_common.lake")
BARRED = ("grpc", "zmq", "confluent_kafka", "google.protobuf", "pyspark")

NOT_YET: frozenset[str] = frozenset(
    {
        "dexorder.events.retransmit",
    }
)
"""Modules that break the rule today. Remove a module when it no longer does; never add one."""

IMPORT_EACH = r"""
import importlib, json, sys

class Bar:
    def __init__(self, names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if name.startswith(tuple(self.names)):
            raise ModuleNotFoundError(f"{name} is barred")

bar = Bar(json.loads(sys.argv[1]))
sys.meta_path.insert(0, bar)
failures = {}
is_spark = lambda name: name.startswith("dexorder_spark.")
for module in sorted(json.load(sys.stdin), key=is_spark):
    if is_spark(module) and "pyspark" in bar.names:  # no other module comes after these
        bar.names.remove("pyspark")
    try:
        importlib.import_module(module)
    except ImportError as error:
        failures[module] = str(error)
json.dump(failures, sys.stdout)
"""


def modules() -> dict[str, Path]:
    """Return the files of all modules of our packages but the generated ones."""
    found = {}
    for folder in package_folders():
        for path in sorted(folder.rglob("*.py")) if folder.name != "dexorder_protos" else ():
            name = path.relative_to(folder.parent).as_posix().removesuffix(".py").removesuffix("/__init__")
            found[name.replace("/", ".")] = path
    return found


def pure_modules() -> list[str]:
    """Return every module of the pure layers, and every module whose docstring says that it is pure."""
    found = []
    for name, path in modules().items():
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        if name.startswith(LAYERS) or re.search(r"\bPure\b", docstring):
            found.append(name)
    return found


def test_pure_modules_import_no_transport() -> None:
    modules = pure_modules()
    assert len(modules) > 60, "the search finds too few modules"
    child = subprocess.run(
        [sys.executable, "-c", IMPORT_EACH, json.dumps(BARRED)],
        input=json.dumps(modules),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    failures: dict[str, str] = json.loads(child.stdout)
    assert {name: why for name, why in failures.items() if name not in NOT_YET} == {}
    assert set(failures) >= NOT_YET, "these pass now: remove them from NOT_YET"
