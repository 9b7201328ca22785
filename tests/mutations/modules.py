"""The modules that are mutated, and the tests that are nearest to each."""

from __future__ import annotations

from collections.abc import Iterable

from tests.paths import ROOT

RELAY, INGESTOR, COMMON = "services/relay/dexorder_relay", "services/ingestor/dexorder_ingestor", "services/common"
MODULES = (
    *(
        f"{RELAY}/state/{name}"
        for name in ("dispatches", "leases", "job", "planner", "coverage", "provisional", "compare")
    ),
    *(f"{RELAY}/state/{name}" for name in ("realtime", "realtime_job", "request", "triggers", "udfs")),
    *(f"{INGESTOR}/history/{name}" for name in ("evidence", "candidate_series", "checksum", "newest", "paging")),
    *(
        f"{INGESTOR}/realtime/{name}"
        for name in ("trade_batches", "live_candles", "agreed/feed", "numbered/trade_sequence")
    ),
    *(
        f"{COMMON}/dexorder_common/model/{name}"
        for name in ("time_range", "periods", "proof", "checksum", "instrument")
    ),
    *(f"{COMMON}/dexorder_cep/run/{name}" for name in ("matcher", "stream", "running", "runs", "delivery")),
)
NEAREST = {
    f"{RELAY}/state": "tests/unit/services/relay/state",
    f"{INGESTOR}/history": "tests/unit/services/ingestor/history",
    f"{INGESTOR}/realtime": "tests/unit/services/ingestor/realtime",
    f"{COMMON}/dexorder_cep": "tests/unit/services/common/cep",
    f"{COMMON}/dexorder_common/model": "tests/unit/services/common/model",
}
"""By the start of a module's path, the folder of its nearest tests."""


def nearest(module: str) -> str:
    """Return the folder of the tests that must notice a change of a module."""
    return next(folder for start, folder in NEAREST.items() if module.startswith(start))


def by_folder(modules: Iterable[str]) -> dict[str, list[str]]:
    """Return the modules of each folder of tests."""
    found: dict[str, list[str]] = {}
    for module in modules:
        found.setdefault(nearest(module), []).append(module)
    return found


def own_tests(module: str) -> frozenset[str]:
    """Return the test files that bear a module's name; they run first."""
    *_, folder, name = module.split("/")
    files = (ROOT / nearest(module)).rglob("test_*.py")
    return frozenset(
        str(each.relative_to(ROOT)) for each in files if each.stem.startswith((f"test_{name}", f"test_{folder}_{name}"))
    )
