"""Services as child processes, their ports, and waiting for them."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from dexorder.supervisor.orphan_guard import guarded
from dexorder_common.config import split_address
from tests.paths import ROOT

START_SECONDS = STOP_SECONDS = 120.0
WAIT_SECONDS = 60.0
_SHARE = 4_000
_FIRST = 20_000 + _SHARE * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 3)
_next_port = [os.getpid() * 31 % (_SHARE - 100)]
_FORK = multiprocessing.get_context("forkserver")
_IMPORTED = ["server", "events.server", *(f"events.channels.{name}" for name in ("smtp", "mobile_push", "web_push"))]
_FORK.set_forkserver_preload(
    [*(f"dexorder_gateway.{name}" for name in _IMPORTED), "dexorder_relay.server", "pyiceberg.catalog.sql", __name__]
)


def until(
    condition: Callable[[], bool],
    seconds: float = WAIT_SECONDS,
    explain: Callable[[], str] = str,
    *,
    every_seconds: float = 0.02,
) -> None:
    """Poll until the condition is true; at the deadline raise AssertionError with the explanation."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s\n{explain()}"
        time.sleep(every_seconds)


def free_ports(count: int) -> list[int]:
    """Return ports that were free on loopback a moment ago; see `free_block`."""
    return [free_block(1) for _ in range(count)]


def free_block(size: int) -> int:
    """Return the first of ``size`` consecutive ports that are free on loopback.

    They are below the ephemeral range, so no outgoing connection takes one while a killed service restarts. Each xdist
    worker has a share of them, and a process hands out all of its share before it repeats a port.
    """
    for _ in range(_SHARE):
        base = _FIRST + _next_port.pop()
        _next_port.append((base + size - _FIRST) % (_SHARE - size))
        with ExitStack() as closing:
            try:
                for port in range(base, base + size):
                    closing.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
        return base
    raise AssertionError("no free ports")


def scrape(address: str) -> str:
    """Return the text of the Prometheus endpoint at ``host:port``."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
        return str(answer.read().decode())


def metric_at(address: str, name: str) -> float:
    """Return a metric of a Prometheus endpoint: that with the labels in ``name``, else the sum; 0 if absent."""
    labels = "" if name.endswith("}") else r"(?:\{[^}]*\})?"
    return sum(float(value) for value in re.findall(rf"^{re.escape(name)}{labels} (\S+)$", scrape(address), re.M))


class ServiceProcess:
    """Process ``python -m MODULE`` that dies with this one and logs to a folder that no other process uses.

    A context manager that kills it. For the main thread.
    """

    def __init__(self, module: str, folder: Path, environment: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.name = module.rpartition(".")[2]
        self.log_file = folder / f"{self.name}.log"
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [*guarded(), sys.executable, "-m", module],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {**environment, "DEXORDER_LOG_FORMAT": "json"},
            )
        try:
            until(lambda: bool(self.logged("listening")) or self.process.poll() is not None, START_SECONDS, self.tail)
            assert self.process.poll() is None, self.tail()
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def listens_at(self) -> str:
        """Return host:port of its gRPC server."""
        return str(self.logged("listening")[0]["address"])

    @property
    def lives(self) -> bool:
        """Return whether it runs."""
        return self.process.poll() is None

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Return the log records of an event."""
        lines = self.log_file.read_text(errors="replace").split("\n")[:-1]
        records = (json.loads(line) for line in lines if line.startswith("{"))
        return [record for record in records if record.get("event") == event]

    def tail(self) -> str:
        """Return the last lines of its log, for the message of a failure."""
        return self.log_file.read_text(errors="replace")[-3000:]

    def begin_stop(self) -> None:
        """Send SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    def ended(self) -> int:
        """Wait for the end of the process and return its exit status."""
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} does not end\n{self.tail()}") from None

    def stop(self) -> int:
        """Send SIGTERM, wait for the end and return the exit status."""
        self.begin_stop()
        return self.ended()

    def kill(self) -> None:
        """Send SIGKILL to the process without its children, unless it has ended."""
        self.process.kill()
        self.process.wait()


class Worker:
    """Process that reads an order a line from stdin and answers with a line; a context manager that kills it."""

    def __init__(self, *command: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @classmethod
    def module(cls, name: str, *arguments: str, **environment: str) -> Self:
        """Start ``python -m name``."""
        return cls(sys.executable, "-m", name, *arguments, **environment)

    def say(self, line: str) -> None:
        """Write a line to its stdin."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def line(self) -> str:
        """Return its next line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"{self.process.args!r} has ended"
        return line.strip()

    def send(self, order: dict[str, Any]) -> None:
        """Send an order."""
        self.say(json.dumps(order))

    def answer(self) -> Any:
        """Return the answer to the oldest order that has none."""
        return json.loads(self.line())

    def run(self, **order: Any) -> Any:
        """Send an order and return its answer."""
        self.send(order)
        return self.answer()

    def finish(self, seconds: float) -> str:
        """End stdin, wait for the process's end, and return what it printed."""
        output, _ = self.process.communicate(timeout=seconds)
        assert self.process.returncode == 0, self.process.args
        return output

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


class ForkedService:
    """Fork of a process that has imported the services, with the methods of `ServiceProcess` that campaigns need.

    It starts in a tenth of a second, for campaigns with a thousand restarts.
    """

    def __init__(self, module: str, folder: Path, environment: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log_file = folder / f"{module.removeprefix('dexorder_')}.log"
        self.process = _FORK.Process(target=_live, args=(module, dict(environment), str(self.log_file)), daemon=True)
        self.process.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def lives(self) -> bool:
        """Return whether it runs."""
        return self.process.is_alive()

    def listening(self, address: str) -> Self:
        """Wait until it listens at host:port."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(split_address(address), 1).close()
                return self
            except OSError:
                assert self.lives and time.monotonic() < deadline, self.tail()
                time.sleep(0.005)

    def tail(self) -> str:
        """Return the end of its log."""
        return self.log_file.read_text(errors="replace")[-3000:] if self.log_file.exists() else ""

    def stop(self) -> int:
        """Send SIGTERM and wait for the end; return the exit status."""
        self.process.terminate()
        self.process.join(STOP_SECONDS)
        assert self.process.exitcode is not None, self.tail()
        return self.process.exitcode

    def kill(self) -> None:
        """Send SIGKILL."""
        self.process.kill()
        self.process.join()


def _live(module: str, environment: dict[str, str], log: str) -> None:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.update(environment)
    sys.argv = [module]  # else it has pytest's
    runpy.run_module(module, run_name="__main__")
