"""Functions of 10, 30 and 100 ms a point with a backlog: our SDK and Kapacitor's Python agent, under both hosts.

The rule is about what is under way at once, which our host bounds by the pace of the function and not by the backlog;
so 1,000 points, of which the slowest take ten times ``timeout_seconds``, meet it as well as more.
DEXORDER_SLOW_UDF_POINTS=8000 takes an hour and a quarter.

Kapacitor's host and agent are built from its module, as `bench.udf` does; without Go or the module they are skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.parts.udf_kapacitor import built
from dexorder_udf.host import UdfHost
from dexorder_udf.points import Point
from dexorder_udf.spec import UdfSpec
from tests.paths import ROOT

POINTS = int(os.environ.get("DEXORDER_SLOW_UDF_POINTS", "1000"))
TIMEOUT_S = float(os.environ.get("DEXORDER_SLOW_UDF_TIMEOUT_SECONDS", "10"))
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(POINTS * 0.15 + 300)]

KAPACITORS = """
import sys, time
from kapacitor.udf.agent import Agent, Handler
from kapacitor.udf import udf_pb2

class Slow(Handler):
    def __init__(self, agent): self._agent = agent
    def info(self):
        response = udf_pb2.Response()
        response.info.wants = response.info.provides = udf_pb2.STREAM
        return response
    def init(self, request):
        response = udf_pb2.Response()
        response.init.success = True
        return response
    def snapshot(self):
        response = udf_pb2.Response()
        response.snapshot.snapshot = b""
        return response
    def restore(self, request):
        response = udf_pb2.Response()
        response.restore.success = True
        return response
    def begin_batch(self, request): raise Exception("not supported")
    def point(self, point):
        time.sleep(float(sys.argv[1]) / 1_000)
        response = udf_pb2.Response()
        response.point.CopyFrom(point)
        self._agent.write_response(response)
    def end_batch(self, request): raise Exception("not supported")

agent = Agent()
agent.handler = Slow(agent)
agent.start()
agent.wait()
"""
OURS = """
import sys, time
from dexorder.udf import SAME, Function, option, serve

class Slow(Function):
    field, size, output = option(str, ""), option(int, 0), option(str, "")  # those of the host of bench
    def point(self, point, state):
        time.sleep(PAUSE)
        return SAME

PAUSE = float(sys.argv.pop()) / 1_000
serve(Slow)
"""


@pytest.fixture(scope="module")
def kapacitor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build Kapacitor's host, and take its agent."""
    try:
        return built(tmp_path_factory.mktemp("kapacitor"))
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"Kapacitor can't be built: {error}")


@pytest.fixture(params=["ours", "kapacitor's"])
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    path = tmp_path / "slow.py"
    folders = [str(ROOT)]
    if request.param == "ours":
        path.write_text(OURS)
    else:
        folders.insert(0, str(request.getfixturevalue("kapacitor")))
        path.write_text(KAPACITORS)
    yield path, {"PYTHONPATH": ":".join(folders)}


@pytest.mark.parametrize("pace_ms", [10, 30, 100])
def test_our_host_gets_all_of_a_slow_function(program: tuple[Path, dict[str, str]], pace_ms: int) -> None:
    path, environment = program
    spec = UdfSpec(
        "slow",
        prog=sys.executable,
        args=(str(path), str(pace_ms)),
        env=environment,
        timeout_seconds=TIMEOUT_S,
        max_restarts=0,
    )
    points = [Point(n, {"t": "a"}, {"close": float(n)}, "ohlc", ("t",)) for n in range(POINTS)]
    host, began_s = UdfHost(spec), time.monotonic()
    host.start()
    try:
        found = host.process(points)
        found += host.checkpoint()[0]
    finally:
        host.close()
    assert found == points and host.restarts == 0
    print(f"our host, {pace_ms} ms: {POINTS:,} points in {time.monotonic() - began_s:.0f} s")


@pytest.mark.parametrize("pace_ms", [10, 30, 100])
def test_kapacitors_host_gets_all_of_a_slow_function(
    program: tuple[Path, dict[str, str]], kapacitor: Path, pace_ms: int
) -> None:
    path, environment = program[0], {**os.environ, **program[1], "AS_OPTION": "output"}
    command = [f"{kapacitor}/host", "stream", str(POINTS), sys.executable, str(path), str(pace_ms)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    assert json.loads(done.stdout)["outputs"] == POINTS + 100  # it sends 100 lone ones behind
