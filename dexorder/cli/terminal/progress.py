"""Progress of requests on stderr: bars on a terminal, otherwise a few lines."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from rich import progress as rich_progress
from rich.console import Console
from rich.progress import BarColumn, Task, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from dexorder.cli.terminal.output import safe
from dexorder_common.model.history import HistoryRequest, Progress, RequestState
from dexorder_common.model.periods import PERIODS
from dexorder_common.model.times import SECOND_NS

if TYPE_CHECKING:
    from dexorder.client.requests import OnProgress

Write = Callable[[str], None]
SILENCE_SECONDS, LONG_SILENCE_SECONDS = 3.0, 30.0


def ignore(_: object) -> None:
    """Do nothing."""


def phase(now: Progress) -> str:
    """Return the current phase of a request as text."""
    if now.state is RequestState.FINISHED:
        return "finished"
    if now.waiting:
        return f"waiting: {now.waiting}"
    if now.expected_periods and now.settled_periods >= now.expected_periods:
        return "writing to Iceberg"
    if now.state is RequestState.QUEUED:
        return "queued"
    pages = f"{now.settled_pages:,} of {now.expected_pages:,} pages, {now.running_jobs} of {now.jobs} jobs running"
    return f"{pages}; {now.delay}" if now.delay else pages


@contextmanager
def show_one(request: HistoryRequest, console: Console, *, quiet: bool) -> Iterator[OnProgress]:
    """Show the progress of a request while the block runs."""
    name = f"{request.ticker} {PERIODS[request.period_seconds]}"
    if quiet:
        yield ignore
    elif not console.is_terminal:
        with repeated(console.print) as write:
            yield TenPercentLines(write, name)
    else:
        with bars_on(console) as bars:
            task = bars.add_task(name, total=request.max_candles, unit="candles", note="submitting")
            yield lambda now: _update(bars, task, now, request)


@contextmanager
def show_hours(name: str, console: Console) -> Iterator[OnProgress]:
    """Show the progress of a request for a dataset without periods while the block runs."""
    if not console.is_terminal:
        with repeated(console.print) as write:
            yield TenPercentLines(write, name, unit="hours")
        return
    with bars_on(console) as bars:
        task = bars.add_task(name, total=0, unit="hours", note="submitting")
        yield lambda now: bars.update(task, total=now.expected_periods, completed=now.settled_periods, note=phase(now))


@contextmanager
def repeated(write: Write) -> Iterator[Write]:
    """Yield a function that writes a line, which is written again while no other one comes, with the time since then.

    Ten times after each ``SILENCE_SECONDS``, then less often, so that logs stay short.
    """
    lines: SimpleQueue[str | None] = SimpleQueue()

    def repeat() -> None:
        line, times, since_s = "", 0, 0.0
        while True:
            try:
                new = lines.get(timeout=SILENCE_SECONDS if times < 10 else LONG_SILENCE_SECONDS)
            except Empty:
                if line:
                    times += 1
                    write(f"{line}, for {time.monotonic() - since_s:.0f} s")
                continue
            if new is None:
                return
            line, times, since_s = new, 0, time.monotonic()

    def written(line: str) -> None:
        write(line)
        lines.put(line)

    thread = threading.Thread(target=repeat, name="progress", daemon=True)
    thread.start()
    try:
        yield written
    finally:
        lines.put(None)
        thread.join()


class TenPercentLines:
    """Progress as one line every 10 %, so that logs stay short."""

    def __init__(self, write: Write, name: str, *, unit: str = "candles") -> None:
        self._write = write
        self._name = name
        self._unit = unit
        self._tenth = -1
        self._waiting: object = ("", "", 0)

    def __call__(self, now: Progress) -> None:
        """Print a line if something changed."""
        tenth = now.settled_periods * 10 // now.expected_periods if now.expected_periods else 0
        delay = (now.delay.reason, now.delay.banned_until_ns // SECOND_NS) if now.delay else ("", 0)
        waiting = (now.waiting, *delay)
        if tenth > self._tenth or now.state is RequestState.FINISHED or waiting != self._waiting:
            self._tenth = 11 if now.state is RequestState.FINISHED else tenth
            self._waiting = waiting
            self._write(f"{self._name}: {now.settled_periods:,} of {now.expected_periods:,} {self._unit}, {phase(now)}")


class ResultLines:
    """Progress as one line for each request that has ended."""

    def __init__(self, count: int, write: Write) -> None:
        self._count = count
        self._write = write
        self._done = 0

    def started(self, request: HistoryRequest) -> None:
        """Ignore a new request: its progress is not shown."""

    def follow(self) -> Callable[[HistoryRequest, Progress], None] | None:
        """Return None: progress of requests is not shown."""
        return None

    def ended(self, request_id: str, line: str, *, ok: bool, rows: int) -> None:
        """Show that a request has ended; ``line`` has its result."""
        self._done += 1
        self._write(f"[{self._done}/{self._count}] {line}")


class ResultBars:
    """Progress as one bar for all requests and one for each running request that fits; failures are printed above."""

    def __init__(self, count: int, unit: str, bars: rich_progress.Progress, limit: int) -> None:
        self._bars = bars
        self._limit = limit
        self._tasks: dict[str, TaskID] = {}
        self._rows = 0
        self._failed = 0
        self._all = bars.add_task(f"all {unit}", total=count, note="", unit=unit)

    def started(self, request: HistoryRequest) -> None:
        """Show a new request."""
        task = self._bars.add_task(
            f"{request.ticker} {PERIODS[request.period_seconds]}",
            total=request.max_candles,
            unit="candles",
            note="submitting",
            visible=len(self._tasks) < self._limit,
        )
        self._tasks[request.request_id] = task

    def follow(self) -> Callable[[HistoryRequest, Progress], None] | None:
        """Return the callback for the progress of requests."""
        return self._show

    def _show(self, request: HistoryRequest, now: Progress) -> None:
        if (task := self._tasks.get(request.request_id)) is not None:
            _update(self._bars, task, now, request)

    def ended(self, request_id: str, line: str, *, ok: bool, rows: int) -> None:
        """Show that a request has ended; ``line`` has its result."""
        if (task := self._tasks.pop(request_id, None)) is not None:
            self._bars.remove_task(task)
        for each in list(self._tasks.values())[: self._limit]:
            self._bars.update(each, visible=True)
        self._rows += rows
        self._failed += not ok
        if not ok:
            self._bars.console.print(line)
        failed = f", {self._failed} not OK" if self._failed else ""
        self._bars.update(self._all, advance=1, note=f"{self._rows:,} rows{failed}")


ManyProgress = ResultLines | ResultBars


@contextmanager
def show_many(count: int, console: Console, *, unit: str, quiet: bool, plain: bool) -> Iterator[ManyProgress]:
    """Show the progress of ``count`` requests while the block runs; ``plain`` prints lines even on a terminal."""
    if quiet:
        yield ResultLines(count, ignore)
    elif plain or not console.is_terminal:
        yield ResultLines(count, console.print)
    else:
        with bars_on(console) as bars:
            yield ResultBars(count, unit, bars, limit=max(console.height - 4, 1))


class _Plain(TextColumn):
    """Column of text that is escaped before its width is measured."""

    def render(self, task: Task) -> Text:
        """Return the text of a task."""
        return safe(self.text_format.format(task=task))


def bars_on(console: Console) -> rich_progress.Progress:
    """Return progress bars for tasks with the fields ``unit`` and ``note``."""
    return rich_progress.Progress(
        _Plain("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        _Plain("{task.completed:,.0f} of {task.total:,.0f} {task.fields[unit]}, {task.fields[note]}"),
        TimeElapsedColumn(),
        console=console,
    )


def _update(bars: rich_progress.Progress, task: TaskID, now: Progress, request: HistoryRequest) -> None:
    total = now.expected_periods or request.max_candles
    bars.update(task, total=total, completed=now.settled_periods, note=phase(now))
