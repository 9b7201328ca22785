"""Plugins and fixtures of every test, and the assignment of tests to xdist workers."""

import gc
import os
import shutil
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

# Spark's JVM is forked from this process, which has gRPC's threads by then. gRPC's preparation for a fork can abort the
# child before it becomes the JVM ("Java gateway process exited"); ours only exec, so it need not prepare. gRPC reads
# this once, when it is imported. As in dexorder_spark/__main__.py.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

# pyproject.toml turns plugins of installed packages off: each would be imported, and the package's asserts be compiled
# again, for every run. pytest-grpc, which imports gRPC, is loaded in the folders that use it.
pytest_plugins = [
    "tests.hypothesis_profiles",
    "_hypothesis_pytestplugin",
    "pytest_asyncio.plugin",
    "pytest_timeout",
    "xdist.plugin",
    "tests.fixtures",
]

SHARED = ("smoke_suite", "spark", "kafka")
"""Fixtures of what a run starts once, which the tests that need the same one share on one worker; the mark ``spark``
counts as its fixture.
"""
LONG = ("kafka",)
"""Marks of files whose tests take longer than others."""
LONGEST = (
    "tests/smoke/test_source_crashes.py",
    "tests/integration/spark/cep/test_trigger_process.py",
)
"""Files that take a minute or more."""

GARBAGE = (20_000, 20, 50)
"""Objects before a search for cycles, and searches before a deeper one. Python's 700, 10 and 10 take a twentieth of the
processor time of a run.
"""
MEMORY_DISK = Path("/dev/shm")
NEEDED_BYTES = 8 * 1024**3
"""Free memory from which on the folders of tests are in it; a run of all leaves less than a tenth of that."""


def pytest_configure() -> None:
    """Keep the folders of tests in memory if there is enough: see docs/decisions/0105."""
    if "PYTEST_DEBUG_TEMPROOT" not in os.environ and MEMORY_DISK.is_dir() and _free_bytes() >= NEEDED_BYTES:
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(MEMORY_DISK)  # of pytest: the parent of pytest-of-USER


def _free_bytes() -> int:
    """Return what is free both of the machine's memory and of its disk in memory."""
    known = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return min(int(known["MemAvailable"].split()[0]) * 1024, shutil.disk_usage(MEMORY_DISK).free)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group tests for xdist: by the first of SHARED that they need, otherwise by file. The longest groups come first.

    A long group that began last would keep one worker busy while the others have nothing left.
    """
    ranks: dict[pytest.Item, int] = {}
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if "smoke" in marks and item.nodeid.startswith("tests/unit/"):
            raise pytest.UsageError(f"{item.nodeid}: `make smoke` collects nothing below tests/unit")
        needs = {*getattr(item, "fixturenames", ()), *(marks & {"spark"})}
        shared = next((name for name in SHARED if name in needs), None)
        file = item.nodeid.partition("::")[0]
        is_short = file not in LONGEST and 1 + (not marks & set(LONG))
        ranks[item] = SHARED.index(shared) if shared else len(SHARED) + is_short
        item.add_marker(pytest.mark.xdist_group(shared or file))
        if "spark" in marks:  # the sockets that pyspark leaves to the garbage collector after a collect
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
    items.sort(key=lambda item: ranks[item])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without Python's search for cycles, which took more than half of the time of each worker.

    What was collected stays for the whole run, so later searches leave it out as well.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(*GARBAGE)
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    """End a run by groups if xdist does not see them: it distributes by the group that it appends to each id."""
    if node.config.getoption("dist") == "loadgroup" and not all("@" in item_id.rpartition("]")[2] for item_id in ids):
        raise pytest.UsageError("xdist does not group the tests; this version of pytest needs another version of it")


def pytest_sessionfinish() -> None:
    """Write what coverage has measured: xdist kills a worker that needs more than ten seconds to end."""
    if (coverage := sys.modules.get("coverage")) is not None and (measured := coverage.Coverage.current()) is not None:
        measured.save()
