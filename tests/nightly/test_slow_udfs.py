"""Functions of 10, 30 and 100 ms a point with a backlog: our SDK and Kapacitor's Python agent, under both hosts.

8,000 points wait. The first and the last of them take their time, so many that both parts are longer than the longest
silence that a host accepts; those between take none, and what is under way grows before the function is slow again.
DEXORDER_SLOW_UDF_SECONDS=800 makes all points slow and takes an hour and a quarter.

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

POINTS = 8_000
SECONDS = float(os.environ.get("DEXORDER_SLOW_UDF_SECONDS", "25"))
"""Time that the slow points of the beginning take, and those of the end."""
TIMEOUT_S = float(os.environ.get("DEXORDER_SLOW_UDF_TIMEOUT_SECONDS", "10"))
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(4 * SECONDS + 300)]

PAUSE = """
import sys, time
SLOW, POINTS = int(sys.argv.pop()), int(sys.argv.pop())
MS = float(sys.argv.pop())

def pause(left):
    if left > POINTS - SLOW or left <= SLOW:
        time.sleep(MS / 1_000)
    return left - 1
"""
KAPACITORS = """
from kapacitor.udf.agent import Agent, Handler
from kapacitor.udf import udf_pb2

class Slow(Handler):
    def __init__(self, agent): self._agent, self._left = agent, POINTS
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
        self._left = pause(self._left)
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
from dexorder.udf import SAME, Function, option, serve

class Slow(Function):
    field, size, output = option(str, ""), option(int, 0), option(str, "")  # those of the host of bench
    left = POINTS
    def point(self, point, state):
        self.left = pause(self.left)
        return SAME

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
        path.write_text(PAUSE + OURS)
    else:
        folders.insert(0, str(request.getfixturevalue("kapacitor")))
        path.write_text(PAUSE + KAPACITORS)
    yield path, {"PYTHONPATH": ":".join(folders)}


def numbers(pace_ms: int) -> list[str]:
    """Return what the program takes: its pace, the number of points, and how many are slow at both ends."""
    return [str(pace_ms), str(POINTS), str(min(round(SECONDS * 1_000 / pace_ms), POINTS))]


@pytest.mark.parametrize("pace_ms", [10, 30, 100])
def test_our_host_gets_all_of_a_slow_function(program: tuple[Path, dict[str, str]], pace_ms: int) -> None:
    path, environment = program
    spec = UdfSpec(
        "slow",
        prog=sys.executable,
        args=(str(path), *numbers(pace_ms)),
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
    command = [f"{kapacitor}/host", "stream", str(POINTS), sys.executable, str(path), *numbers(pace_ms)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    assert json.loads(done.stdout)["outputs"] == POINTS + 100  # it sends 100 lone ones behind
