"""A part of the suite as a child process: started, watched, restarted when it dies, stopped with all its children."""

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
from dexorder.supervisor.orphan_guard import COMMAND, guarded, kill_session, session_members
from dexorder.supervisor.plan import Part
from dexorder.supervisor.state import PartState
from dexorder_common.packages import import_roots

QUICK_SECONDS = 10.0
"""A part that dies sooner than this after its start has died quickly."""
FAILING_AFTER = 5
"""Quick deaths in a row after which a part counts as failing; it is still started again."""
POLL_SECONDS = 0.2
_MAX_LOG_BYTES = 20 * 1024 * 1024


def restart_delay(quick_deaths: int) -> float:
    """Return the seconds before the next start: 0.25, doubled with each quick death in a row, at most 15."""
    return float(min(15.0, 0.25 * 2 ** min(max(quick_deaths - 1, 0), 10)))


class OrphanGuard:
    """Process that kills the parts' own children if this process is killed; see `orphan_guard`."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @staticmethod
    async def start() -> OrphanGuard:
        """Start it in its own session, so that a signal to the terminal's group does not reach it."""
        process = await asyncio.create_subprocess_exec(
            *COMMAND, "watch", stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True
        )
        return OrphanGuard(process)

    async def add(self, session: int) -> None:
        """Put a session on its list."""
        await self._send(f"+{session}\n")

    async def remove(self, session: int) -> None:
        """Take a session off its list, once no process of it runs."""
        await self._send(f"-{session}\n")

    async def stop(self) -> None:
        """Close the pipe and wait for its end; it kills the sessions that are still listed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()

    async def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(ConnectionError):  # it was killed: the kernel still ends the parts themselves
            self._process.stdin.write(line.encode())
            await self._process.stdin.drain()


class PartProcess:
    """Process of one part. ``keep`` runs until ``stop``; both belong to the supervisor's event loop."""

    def __init__(
        self, part: Part, directory: Path, guard: OrphanGuard, on_change: Callable[[str, PartState], None]
    ) -> None:
        self.part = part
        self.ready = asyncio.Event()
        """Set when the part is ready for the first time."""
        self.state = PartState(part.address, part.health, ports=part.ports)
        """The part's entry in suite.json; ``on_change`` receives each change."""
        self._directory = directory
        self._guard = guard
        self._on_change = on_change
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()
        self._process: Process | None = None

    @property
    def log_file(self) -> Path:
        """File that receives its output."""
        return self._directory / "logs" / f"{self.part.name}.log"

    async def keep(self, after: list[asyncio.Event]) -> None:
        """Wait for the parts that it needs, start it, and start it again whenever it dies."""
        quick_deaths = 0
        try:
            for needed in after:
                await self._first_of(needed)
            while not self._stopping.is_set():
                started = time.monotonic()
                code = await self._run_once()
                if self._stopping.is_set():
                    break
                quick_deaths = quick_deaths + 1 if time.monotonic() - started < QUICK_SECONDS else 1
                delay = restart_delay(quick_deaths)
                self._change(
                    pid=None,
                    state="failing" if quick_deaths >= FAILING_AFTER else "restarting",
                    restarts=self.state.restarts + 1,
                    detail=f"{_death_of(code)}; see {self.log_file}",
                )
                with suppress(TimeoutError):
                    async with asyncio.timeout(delay):
                        await self._stopping.wait()
        finally:
            self._change(pid=None, state="stopped")
            self._ended.set()

    async def stop(self) -> None:
        """Send SIGTERM, wait, then SIGKILL; return when it and all its children have ended."""
        self._stopping.set()
        if (process := self._process) is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                process.terminate()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.part.stop_seconds):
                await self._ended.wait()
        self.kill()
        await self._ended.wait()

    def kill(self) -> None:
        """Send SIGKILL to it and all its children."""
        self._stopping.set()
        if self._process is not None and self._process.returncode is None:
            kill_session(self._process.pid)

    async def _run_once(self) -> int:
        """Start the process, report when it is ready, wait for its end and return its exit code."""
        process = await self._spawn()
        self._process = process
        try:
            await self._guard.add(process.pid)
            self._change(pid=process.pid, state="starting" if not self.state.restarts else "restarting")
            probing = asyncio.create_task(self._until_ready())
            try:
                return await process.wait()
            finally:
                probing.cancel()
                await asyncio.gather(probing, return_exceptions=True)
        finally:
            await self._kill_children(process)

    async def _spawn(self) -> Process:
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        if self.log_file.exists() and self.log_file.stat().st_size > _MAX_LOG_BYTES:
            self.log_file.replace(self.log_file.with_suffix(".log.1"))
        with self.log_file.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *guarded(),
                *self.part.command,
                cwd=self._directory,
                env=child_environment(os.environ, self.part.env),
                stdin=DEVNULL,
                stdout=log,
                stderr=STDOUT,
                start_new_session=True,
            )

    async def _until_ready(self) -> None:
        while not (found := await health.check(self.part.health)).ready:
            if found.detail != self.state.detail and not self.state.restarts:
                self._change(detail=found.detail)
            await asyncio.sleep(POLL_SECONDS)
        if self.part.session_nice:
            self._lower_session()
        self._change(state="ready", detail="")
        self.ready.set()

    def _lower_session(self) -> None:
        # Each part leads a session of its own, and nice counts within one. Kernels without groups have no such file.
        with suppress(OSError):
            Path(f"/proc/{self.state.pid}/autogroup").write_text(str(self.part.session_nice))

    async def _kill_children(self, process: Process) -> None:
        """Kill the children that the part left behind, before its ports and files are used again."""
        while session_members(process.pid):
            kill_session(process.pid)
            await asyncio.sleep(0.02)
        if process.returncode is None:
            await process.wait()
        await self._guard.remove(process.pid)

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
    """Return a child's variables: the supervisor's own, the part's, and a path to our packages if not installed.

    Programs of the own environment are found although it is not activated, because UDFs may call them.
    """
    path = os.pathsep.join(filter(None, (*import_roots(), own.get("PYTHONPATH", ""))))
    programs = os.pathsep.join(filter(None, (own.get("PATH", os.defpath), str(Path(sys.executable).parent))))
    return {**own, "PATH": programs, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **added}


def _death_of(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
