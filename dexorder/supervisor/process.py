"""One part as a child process: started, watched, restarted when it dies, stopped without a trace."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dexorder.supervisor import health
from dexorder.supervisor.guard import kill_session, session_members
from dexorder.supervisor.plan import Part
from dexorder.supervisor.state import PartState

QUICK_SECONDS = 10.0
"""A part that lived shorter than this died quickly."""
FAILING_AFTER = 5
"""Quick deaths in a row after which a part is called failing; it is still tried again."""
POLL_SECONDS = 0.2
_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]
_MOST_LOG_BYTES = 20 * 1024 * 1024


def restart_delay(quick_deaths: int) -> float:
    """Seconds before the next start: 0.25 doubled with each quick death in a row, 15 at most."""
    return float(min(15.0, 0.25 * 2 ** min(max(quick_deaths - 1, 0), 10)))


def launcher() -> tuple[str, ...]:
    """What to put before a command that must not outlive this process; start it from the main thread."""
    return (sys.executable, "-I", "-S", str(_HERE / "child.py"), str(os.getpid()))


class Guard:
    """The process that ends the parts' own children should this one be killed; see guard.py."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @staticmethod
    async def start() -> Guard:
        """Start it in a session of its own, so that a signal to the terminal's group does not reach it."""
        return Guard(
            await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-S",
                str(_HERE / "guard.py"),
                stdin=PIPE,
                stdout=DEVNULL,
                stderr=DEVNULL,
                start_new_session=True,
            )
        )

    async def watch(self, session: int) -> None:
        """Put a session on its list."""
        await self._tell(f"+{session}\n")

    async def forget(self, session: int) -> None:
        """Take it off, once nothing of it runs."""
        await self._tell(f"-{session}\n")

    async def stop(self) -> None:
        """Close the pipe and wait for its end; it kills what is still listed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()

    async def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(ConnectionError):  # somebody killed it: the parts themselves are still the kernel's to end
            self._process.stdin.write(line.encode())
            await self._process.stdin.drain()


class PartProcess:
    """Keeps one part alive. ``keep`` runs until ``stop``; both belong to the supervisor's event loop.

    Attributes:
        ready: Set when the part was ready for the first time.
        state: What suite.json says of it; each change is told to ``on_change``.
    """

    def __init__(self, part: Part, directory: Path, guard: Guard, on_change: Callable[[str, PartState], None]) -> None:
        self.part = part
        self.ready = asyncio.Event()
        self.state = PartState(part.address, part.health)
        self._directory = directory
        self._guard = guard
        self._on_change = on_change
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()
        self._process: Process | None = None

    @property
    def log_file(self) -> Path:
        """Where what it prints goes."""
        return self._directory / "logs" / f"{self.part.name}.log"

    async def keep(self, after: list[asyncio.Event]) -> None:
        """Wait for the parts it needs, start it, and start it again whenever it dies."""
        quick_deaths = 0
        try:
            for needed in after:
                await self._first_of(needed)
            while not self._stopping.is_set():
                started = time.monotonic()
                code = await self._live()
                if self._stopping.is_set():
                    break
                quick_deaths = quick_deaths + 1 if time.monotonic() - started < QUICK_SECONDS else 1
                delay = restart_delay(quick_deaths)
                self._change(
                    pid=None,
                    state="failing" if quick_deaths >= FAILING_AFTER else "restarting",
                    restarts=self.state.restarts + 1,
                    detail=f"{_died(code)}; see {self.log_file}",
                )
                with suppress(TimeoutError):
                    async with asyncio.timeout(delay):
                        await self._stopping.wait()
        finally:
            self._change(pid=None, state="stopped")
            self._ended.set()

    async def stop(self, timeout_s: float | None = None) -> None:
        """SIGTERM, wait, SIGKILL; returns when neither it nor anything it started is left."""
        self._stopping.set()
        if (process := self._process) is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                process.terminate()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.part.stop_seconds if timeout_s is None else timeout_s):
                await self._ended.wait()
        self.kill()
        await self._ended.wait()

    def kill(self) -> None:
        """SIGKILL to it and all it started, now."""
        self._stopping.set()
        if self._process is not None and self._process.returncode is None:
            kill_session(self._process.pid)

    async def _live(self) -> int:
        """One life: start, tell when it is ready, wait for its end; returns its exit code."""
        process = await self._spawn()
        self._process = process
        try:
            await self._guard.watch(process.pid)
            self._change(pid=process.pid, state="starting" if not self.state.restarts else "restarting")
            asking = asyncio.create_task(self._until_ready())
            try:
                return await process.wait()
            finally:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
        finally:
            await self._sweep(process)

    async def _spawn(self) -> Process:
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        if self.log_file.exists() and self.log_file.stat().st_size > _MOST_LOG_BYTES:
            self.log_file.replace(self.log_file.with_suffix(".log.1"))
        with self.log_file.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *launcher(),
                *self.part.command,
                cwd=self._directory,
                env=child_environment(os.environ, self.part.env),
                stdin=DEVNULL,
                stdout=log,
                stderr=STDOUT,
                start_new_session=True,
            )

    async def _until_ready(self) -> None:
        while not (answer := await health.check(self.part.health)).ready:
            if answer.detail != self.state.detail and not self.state.restarts:
                self._change(detail=answer.detail)
            await asyncio.sleep(POLL_SECONDS)
        self._change(state="ready", detail="")
        self.ready.set()

    async def _sweep(self, process: Process) -> None:
        """End what the part left behind, before its ports and files are used again."""
        while session_members(process.pid):
            kill_session(process.pid)
            await asyncio.sleep(0.02)
        if process.returncode is None:
            await process.wait()
        await self._guard.forget(process.pid)

    async def _first_of(self, needed: asyncio.Event) -> None:
        waits = [asyncio.create_task(event.wait()) for event in (needed, self._stopping)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _change(self, **changes: object) -> None:
        self.state = replace(self.state, **changes)  # type: ignore[arg-type]
        self._on_change(self.part.name, self.state)


def child_environment(own: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    """A child's variables: the supervisor's own, the part's, and where our packages are when not installed."""
    path = os.pathsep.join(filter(None, (str(_ROOT), own.get("PYTHONPATH", ""))))
    return {**own, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **added}


def _died(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
