"""Lifecycle of the local suite: start in order, keep alive, describe on disk, stop without orphans."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from dexorder.supervisor import prepare, state
from dexorder.supervisor.plan import STOP_ORDER, Part, SuiteOptions, plan
from dexorder.supervisor.process import OrphanGuard, PartProcess
from dexorder.supervisor.state import PartState, SuiteState

_ANNOUNCE_SECONDS = 1.0
_STARTING = ("starting", "restarting")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Reporter:
    """Callbacks for changes of the suite; they run in the supervisor's loop and must not block."""

    part_changed: Callable[[str, PartState, PartState], None] = lambda name, before, now: None
    all_ready: Callable[[], None] = lambda: None
    stopping: Callable[[], None] = lambda: None
    note: Callable[[str], None] = lambda text: None
    """A step before the first part starts, such as a download; called in another thread."""
    waiting: Callable[[Mapping[str, Path]], None] = lambda logs: None
    """Called every second while parts are not ready, or while one is stopped, with the log file of each."""


async def run_suite(options: SuiteOptions, exchanges: Path | None, report: Reporter) -> None:
    """Run the parts until SIGINT, SIGTERM or SIGHUP; a second signal kills them. Main thread only.

    It needs the main thread because the kernel kills the parts when the thread that started them ends.

    Raises:
        SuiteFailed: The folder or a port is in use, a download fails, or the exchanges file is missing.
    """
    with prepare.suite_lock(options.directory):
        java = await asyncio.to_thread(prepare.java_and_jars, options, report.note)
        await prepare.ports_free(options)
        await asyncio.to_thread(prepare.empty_scratch, options.scratch)
        await asyncio.to_thread(prepare.write_exchanges, exchanges, options)
        await asyncio.to_thread(prepare.make_jwt_keys, options)
        await run_parts(plan(options, java=java), options.directory, options.ports.relay, report)


async def run_parts(parts: list[Part], directory: Path, relay_port: int, report: Reporter) -> None:
    """Run any set of parts until a signal, without the checks of ``run_suite``."""
    recorder = _StateRecorder(directory, relay_port, report)
    guard = await OrphanGuard.start()
    try:
        async with _signals() as (stop, kill_now):
            processes = {part.name: PartProcess(part, directory, guard, recorder.record) for part in parts}
            for name, process in processes.items():
                recorder.record(name, process.state)
            state.register(relay_port, directory)
            async with asyncio.TaskGroup() as group:
                for process in processes.values():
                    needed = [processes[name].ready for name in process.part.after]
                    group.create_task(process.keep(needed))
                announcing = group.create_task(_announce(processes, report))
                await stop.wait()
                announcing.cancel()
                report.stopping()
                await _stop(processes, kill_now, report)
    finally:
        await guard.stop()
        state.remove_state(directory)
        state.unregister(relay_port, directory)


class _StateRecorder:
    """Writes each change of a part to suite.json and passes it to the reporter."""

    def __init__(self, directory: Path, relay_port: int, report: Reporter) -> None:
        self._directory = directory
        self._report = report
        started = datetime.now(UTC).isoformat(timespec="seconds")
        self._suite = SuiteState(os.getpid(), started, f"127.0.0.1:{relay_port}")

    def record(self, name: str, now: PartState) -> None:
        before = self._suite.parts.get(name, now)
        self._suite = replace(self._suite, parts={**self._suite.parts, name: now})
        state.write_state(self._directory, self._suite)
        self._report.part_changed(name, before, now)


async def _announce(processes: Mapping[str, PartProcess], report: Reporter) -> None:
    """Name the parts that are not ready, until all are; after that, the parts that start again after a death."""
    while late := {name: process.log_file for name, process in processes.items() if not process.ready.is_set()}:
        with suppress(TimeoutError):
            await asyncio.wait_for(processes[next(iter(late))].ready.wait(), _ANNOUNCE_SECONDS)
            continue
        report.waiting(late)
    report.all_ready()
    while True:
        await asyncio.sleep(_ANNOUNCE_SECONDS)
        if late := {name: each.log_file for name, each in processes.items() if each.state.state in _STARTING}:
            report.waiting(late)


async def _stop(processes: dict[str, PartProcess], kill_now: asyncio.Event, report: Reporter) -> None:
    """Stop the parts one after the other; when ``kill_now`` is set, kill the remaining ones."""

    async def stop_one(name: str, process: PartProcess) -> None:
        stopping = asyncio.create_task(process.stop())
        while not (await asyncio.wait((stopping,), timeout=_ANNOUNCE_SECONDS))[0]:
            report.waiting({name: process.log_file})
        await stopping

    async def in_order() -> None:
        last = [name for name in processes if name not in STOP_ORDER]
        for name in (*STOP_ORDER, *last):
            if name in processes:
                await stop_one(name, processes[name])

    stopping, killing = asyncio.create_task(in_order()), asyncio.create_task(kill_now.wait())
    await asyncio.wait((stopping, killing), return_when=asyncio.FIRST_COMPLETED)
    killing.cancel()
    if not stopping.done():
        for process in processes.values():
            process.kill()
    await stopping


@asynccontextmanager
async def _signals() -> AsyncIterator[tuple[asyncio.Event, asyncio.Event]]:
    """Yield the events that the first and the second signal set."""
    stop, kill_now, loop = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop()

    def received() -> None:
        (kill_now if stop.is_set() else stop).set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, received)
    try:
        yield stop, kill_now
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
