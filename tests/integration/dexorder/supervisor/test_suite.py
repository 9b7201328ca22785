"""Supervisor with small children, which serve /healthz and misbehave as their environment says."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dexorder.supervisor.orphan_guard import session_members
from dexorder.supervisor.plan import Part
from dexorder.supervisor.process import OrphanGuard, PartProcess, child_environment, restart_delay
from dexorder.supervisor.state import PartState, SuiteState, process_alive, read_state, registered
from dexorder.supervisor.suite import Reporter, run_parts
from tests.paths import ROOT
from tests.rig.processes import free_ports

CHILD = """
import http.server, os, signal, subprocess, sys
class Healthz(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
if "STUBBORN" in os.environ:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen(["sleep", "600"], start_new_session=False)
else:
    def stop(*_):
        with open("order", "a") as file: file.write(os.environ["NAME"] + "\\n")
        os._exit(0)
    signal.signal(signal.SIGTERM, stop)
print("started", os.environ["NAME"], flush=True)
http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Healthz).serve_forever()
"""
SUPERVISOR = """
import asyncio, sys
from pathlib import Path
from tests.integration.dexorder.supervisor.test_suite import make_part
from dexorder.supervisor.suite import Reporter, run_parts
directory, ports = Path(sys.argv[1]), [int(p) for p in sys.argv[2:]]
parts = [make_part(n, p, STUBBORN="1") for n, p in zip(("relay", "spark"), ports)]
asyncio.run(run_parts(parts, directory, 1, Reporter(all_ready=lambda: print("ready", flush=True))))
"""


def make_part(name: str, port: int, *, after: tuple[str, ...] = (), stop_seconds: float = 20.0, **env: str) -> Part:
    return Part(
        name=name,
        command=(sys.executable, "-c", CHILD),
        env={"NAME": name, "PORT": str(port), **env},
        address=f"127.0.0.1:{port}",
        health=f"http://127.0.0.1:{port}",
        after=after,
        stop_seconds=stop_seconds,
    )


@pytest.fixture(autouse=True)
def own_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "registry"))


async def until(condition: Callable[[], object]) -> None:
    """Poll for an effect of another process; the test's timeout bounds the wait."""
    while not condition():  # noqa: ASYNC110 - another process's doing has no event
        await asyncio.sleep(0.02)


def suite_of(directory: Path) -> SuiteState:
    found = read_state(directory)
    assert found is not None
    return found


async def test_parts_start_after_those_they_need_and_stop_in_order(tmp_path: Path) -> None:
    ready, events = asyncio.Event(), list[tuple[str, str]]()
    ports = free_ports(4)
    parts = [
        make_part("kafka", ports[0]),
        make_part("relay", ports[1]),
        make_part("gateway", ports[2], after=("kafka",)),
        make_part("ingestor", ports[3], after=("relay", "gateway")),
    ]

    def changed(name: str, before: PartState, now: PartState) -> None:
        if before.state != now.state:
            events.append((name, now.state))

    running = asyncio.create_task(run_parts(parts, tmp_path, 20_000, Reporter(changed, ready.set)))
    await ready.wait()
    assert registered(20_000) == tmp_path
    now = suite_of(tmp_path)
    assert now.pid == os.getpid()
    assert all(process_alive(part.pid) and part.state == "ready" for part in now.parts.values())
    assert events.index(("kafka", "ready")) < events.index(("gateway", "starting"))
    assert events.index(("gateway", "ready")) < events.index(("ingestor", "starting"))
    os.kill(os.getpid(), signal.SIGTERM)
    await running
    assert (tmp_path / "order").read_text().split() == ["ingestor", "gateway", "relay", "kafka"]
    assert not any(process_alive(part.pid) for part in now.parts.values())
    assert read_state(tmp_path) is None and registered(20_000) is None
    assert "started kafka" in (tmp_path / "logs" / "kafka.log").read_text()


async def test_part_that_dies_is_restarted_and_named_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dexorder.supervisor.suite._ANNOUNCE_SECONDS", 0.02)
    ready, named = asyncio.Event(), list[str]()
    (port,) = free_ports(1)
    report = Reporter(all_ready=ready.set, waiting=named.extend)
    running = asyncio.create_task(run_parts([make_part("sim", port)], tmp_path, 1, report))
    await ready.wait()
    named.clear()
    first = suite_of(tmp_path).parts["sim"].pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await until(lambda: suite_of(tmp_path).parts["sim"].restarts)
    await until(lambda: suite_of(tmp_path).parts["sim"].state == "ready")
    now = suite_of(tmp_path).parts["sim"]
    assert process_alive(now.pid) and now.pid != first and now.restarts == 1
    assert set(named) == {"sim"}
    os.kill(os.getpid(), signal.SIGINT)
    await running


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="the kernel does not group by session")
async def test_a_part_has_its_priority_among_sessions_once_it_is_ready(tmp_path: Path) -> None:
    ready = asyncio.Event()
    parts = [replace(make_part("sim", free_ports(1)[0]), session_nice=10)]
    running = asyncio.create_task(run_parts(parts, tmp_path, 1, Reporter(all_ready=ready.set)))
    await ready.wait()
    pid = suite_of(tmp_path).parts["sim"].pid
    group = await asyncio.to_thread(Path(f"/proc/{pid}/autogroup").read_text)
    assert group.split()[-1] == "10"
    os.kill(os.getpid(), signal.SIGTERM)
    await running


async def test_part_that_keeps_dying_is_failing_but_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dexorder.supervisor.process.restart_delay", lambda deaths: 0.0)
    part = Part("sim", (sys.executable, "-c", "exit(3)"), {}, "127.0.0.1:1", "http://127.0.0.1:1", (), 5.0)
    seen: list[PartState] = []
    failing, guard = asyncio.Event(), await OrphanGuard.start()

    def changed(name: str, now: PartState) -> None:
        seen.append(now)
        if now.state == "failing":
            failing.set()

    process = PartProcess(part, tmp_path, guard, changed)
    keeping = asyncio.create_task(process.keep([]))
    await failing.wait()
    assert seen[-1].restarts == 5 and "ended with exit code 3; see" in seen[-1].detail
    await until(lambda: seen[-1].restarts > 6)
    await process.stop()
    await keeping
    await guard.stop()
    assert seen[-1].state == "stopped"


async def test_part_that_ignores_sigterm_is_killed_with_its_children(tmp_path: Path) -> None:
    ready = asyncio.Event()
    part = make_part("spark", free_ports(1)[0], stop_seconds=0.1, STUBBORN="1")
    running = asyncio.create_task(run_parts([part], tmp_path, 1, Reporter(all_ready=ready.set)))
    await ready.wait()
    session = suite_of(tmp_path).parts["spark"].pid
    assert session is not None and len(session_members(session)) == 2
    os.kill(os.getpid(), signal.SIGTERM)
    await running
    assert session_members(session) == []


async def test_a_part_that_takes_long_to_stop_is_named_and_a_second_signal_kills_all_at_once(tmp_path: Path) -> None:
    ready, stopping = asyncio.Event(), asyncio.Event()
    parts = [make_part(n, p, stop_seconds=600, STUBBORN="1") for n, p in zip("ab", free_ports(2), strict=True)]
    named: asyncio.Queue[list[str]] = asyncio.Queue()
    report = Reporter(
        all_ready=ready.set,
        stopping=stopping.set,
        waiting=lambda logs: named.put_nowait(list(logs)) if stopping.is_set() else None,
    )
    running = asyncio.create_task(run_parts(parts, tmp_path, 1, report))
    await ready.wait()
    sessions = [part.pid for part in suite_of(tmp_path).parts.values()]
    os.kill(os.getpid(), signal.SIGINT)
    assert await named.get() == ["a"]
    os.kill(os.getpid(), signal.SIGINT)
    await running
    assert [session_members(session or 0) for session in sessions] == [[], []]


def test_a_part_finds_programs_of_its_own_environment_after_those_of_the_user() -> None:
    own = str(Path(sys.executable).parent)
    assert child_environment({"PATH": "/first:/second"}, {})["PATH"] == f"/first:/second:{own}"
    assert child_environment({}, {})["PATH"] == f"{os.defpath}:{own}"


def test_killed_supervisor_leaves_no_orphan(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SUPERVISOR, str(tmp_path), *map(str, free_ports(2))]
    env = child_environment(os.environ, {})
    supervisor = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT)
    assert supervisor.stdout is not None
    assert supervisor.stdout.readline() == "ready\n"
    sessions = [part.pid or 0 for part in suite_of(tmp_path).parts.values()]
    assert [len(session_members(session)) for session in sessions] == [2, 2]
    supervisor.kill()
    supervisor.communicate()
    while any(session_members(session) for session in sessions):  # the test's timeout bounds it
        time.sleep(0.02)


@pytest.mark.parametrize(("deaths", "seconds"), [(0, 0.25), (1, 0.25), (2, 0.5), (5, 4.0), (7, 15.0), (10_000, 15.0)])
def test_restart_delay_grows_to_its_maximum(deaths: int, seconds: float) -> None:
    assert restart_delay(deaths) == seconds
