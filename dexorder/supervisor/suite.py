"""The local suite as a whole: start in order, keep alive, describe on disk, stop without orphans."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from dexorder.supervisor import prepare, state
from dexorder.supervisor.plan import STOP_ORDER, Part, SuiteOptions, plan
from dexorder.supervisor.process import Guard, PartProcess
from dexorder.supervisor.state import PartState, SuiteState

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Reporter:
    """Who is told what happens; called in the supervisor's loop, so it must not block."""

    part_changed: Callable[[str, PartState, PartState], None] = lambda name, before, now: None
    all_ready: Callable[[], None] = lambda: None
    stopping: Callable[[], None] = lambda: None


async def run_suite(options: SuiteOptions, exchanges: Path | None, report: Reporter) -> None:
    """Run the parts until SIGINT, SIGTERM or SIGHUP; a second signal kills them. Main thread only.

    The main thread, because the kernel ends the parts when the thread that started them ends.

    Raises:
        SuiteFailed: The folder or a port is in use, or Java, jars or the exchanges file are not there.
    """
    with prepare.locked(options.directory):
        java = await asyncio.to_thread(prepare.java_and_jars, options)
        await prepare.ports_free(options)
        await asyncio.to_thread(prepare.empty_scratch, options.scratch)
        await asyncio.to_thread(prepare.write_exchanges, exchanges, options)
        await asyncio.to_thread(prepare.make_jwt_keys, options)
        await run_parts(plan(options, java=java), options.directory, options.ports.relay, report)


async def run_parts(parts: list[Part], directory: Path, relay_port: int, report: Reporter) -> None:
    """Run any set of parts until a signal; what ``run_suite`` does after its checks."""
    book = _Book(directory, relay_port, report)
    guard = await Guard.start()
    try:
        async with _signals() as (stop, hurry):
            processes = {part.name: PartProcess(part, directory, guard, book.changed) for part in parts}
            for name, process in processes.items():
                book.changed(name, process.state)
            state.register(relay_port, directory)
            async with asyncio.TaskGroup() as group:
                for process in processes.values():
                    needed = [processes[name].ready for name in process.part.after]
                    group.create_task(process.keep(needed))
                announcing = group.create_task(_announce(processes, report))
                await stop.wait()
                announcing.cancel()
                report.stopping()
                await _stop(processes, hurry)
    finally:
        await guard.stop()
        state.remove_state(directory)
        state.unregister(relay_port, directory)


class _Book:
    """Keeps suite.json as the parts are, and tells the reporter."""

    def __init__(self, directory: Path, relay_port: int, report: Reporter) -> None:
        self._directory = directory
        self._report = report
        started = datetime.now(UTC).isoformat(timespec="seconds")
        self._suite = SuiteState(os.getpid(), started, f"127.0.0.1:{relay_port}")

    def changed(self, name: str, now: PartState) -> None:
        before = self._suite.parts.get(name, now)
        self._suite = replace(self._suite, parts={**self._suite.parts, name: now})
        state.write_state(self._directory, self._suite)
        self._report.part_changed(name, before, now)


async def _announce(processes: dict[str, PartProcess], report: Reporter) -> None:
    for process in processes.values():
        await process.ready.wait()
    report.all_ready()


async def _stop(processes: dict[str, PartProcess], hurry: asyncio.Event) -> None:
    """Stop one after the other; when ``hurry`` is set, kill all that is left."""

    async def in_order() -> None:
        last = [name for name in processes if name not in STOP_ORDER]
        for name in (*STOP_ORDER, *last):
            if name in processes:
                await processes[name].stop()

    stopping, hurrying = asyncio.create_task(in_order()), asyncio.create_task(hurry.wait())
    await asyncio.wait((stopping, hurrying), return_when=asyncio.FIRST_COMPLETED)
    hurrying.cancel()
    if not stopping.done():
        for process in processes.values():
            process.kill()
    await stopping


@asynccontextmanager
async def _signals() -> AsyncIterator[tuple[asyncio.Event, asyncio.Event]]:
    """Events of the first and of the second signal to stop."""
    stop, hurry, loop = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop()

    def received() -> None:
        (hurry if stop.is_set() else stop).set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, received)
    try:
        yield stop, hurry
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
