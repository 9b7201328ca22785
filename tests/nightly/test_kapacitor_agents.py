"""Kapacitor's own agents and examples under our host, from a checkout of Kapacitor that DEXORDER_KAPACITOR names.

The module is not among the packages that this project installs, so the tests are skipped without it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from dexorder_udf.errors import UdfError
from dexorder_udf.host import UdfHost
from dexorder_udf.points import Batch, Point
from dexorder_udf.spec import UdfSpec

CHECKOUT = Path(os.environ.get("DEXORDER_KAPACITOR", "/nonexistent"))
EXAMPLES = CHECKOUT / "udf" / "agent" / "examples"
PYTHON = {"PYTHONPATH": str(CHECKOUT / "udf" / "agent" / "py")}
NOW_NS, COUNT, SIZE = 1_700_000_000 * 10**9, 3_000, 10
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not EXAMPLES.exists(), reason="DEXORDER_KAPACITOR is not a checkout of Kapacitor"),
]
POINTS = [
    Point(NOW_NS + n, {"ticker": "ab"[n % 2]}, {"value": float(n), "n": n}, "m", ("ticker",)) for n in range(COUNT)
]
BATCHES = [
    Batch([Point(n, {"t": "a"}, {"value": 100.0 if n == 7 else float(n % 3)}) for n in range(200)], "w", {"t": "a"}, k)
    for k in range(3)
]


@pytest.fixture(scope="module")
def go_agents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the examples in Go."""
    folder = tmp_path_factory.mktemp("go")
    names = [f"./udf/agent/examples/{name}" for name in ("mirror", "moving_avg", "outliers")]
    subprocess.run(["go", "build", "-o", f"{folder}/", *names], cwd=CHECKOUT, check=True)
    return folder


def outputs(spec: UdfSpec, items: Sequence[Point | Batch]) -> list[Point | Batch]:
    host = UdfHost(spec, on_log=lambda line: None)
    host.start()
    try:
        found = host.process(items)
        found += host.checkpoint()[0]
        return found + host.close()  # what an agent sends from another thread may come after its snapshot
    finally:
        host.close()


def python(example: str, **settings: object) -> UdfSpec:
    path = EXAMPLES / example / f"{example}.py"
    return UdfSpec(example, prog=sys.executable, args=(str(path),), env=PYTHON, **settings)  # type: ignore[arg-type]


def means() -> list[Point]:
    found = []
    for n, point in enumerate(POINTS):
        last = [float(each) for each in range(n, -1, -2)][:SIZE]
        found.append(point.with_fields({"mean": sum(last) / len(last)}))
    return found


@pytest.mark.parametrize("language", ["python", "go"])
def test_moving_average(language: str, go_agents: Path) -> None:
    options: dict[str, str | int] = {"field": "value", "size": SIZE, "as": "mean"}
    if language == "go":
        spec = UdfSpec("moving_avg", prog=str(go_agents / "moving_avg"), options=options)
    else:
        spec = python("moving_avg", options=options)
    found = outputs(spec, POINTS)
    assert [(each.time_ns, each.tags) for each in found if isinstance(each, Point)] == [
        (each.time_ns, each.tags) for each in POINTS
    ]
    for each, expected in zip(found, means(), strict=True):
        assert isinstance(each, Point) and each.fields == pytest.approx(expected.fields)


def test_outliers_of_batches(go_agents: Path) -> None:
    found = outputs(
        UdfSpec("outliers", prog=str(go_agents / "outliers"), options={"field": "value", "scale": 3.0}), BATCHES
    )
    assert found == [Batch([batch.points[7]], "w", {"t": "a"}, batch.tmax_ns) for batch in BATCHES]


def test_the_mirror_over_a_socket(go_agents: Path, tmp_path: Path) -> None:
    path = tmp_path / "mirror.sock"
    process = subprocess.Popen([go_agents / "mirror", "-socket", path])
    try:
        assert outputs(UdfSpec("mirror", socket=str(path)), POINTS) == POINTS
    finally:
        process.kill()
        process.wait()


def test_examples_that_fail_at_a_snapshot_fail_with_their_own_words() -> None:
    """Two of the examples give text where the protocol has bytes."""
    with pytest.raises(UdfError, match="it reports: error processing request of type snapshot: expected bytes"):
        outputs(python("outliers", options={"field": "value", "scale": 3.0}), BATCHES)
