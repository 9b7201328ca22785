"""How far requests are, on stderr: bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

from dexorder.aio import OnProgress
from services.common.model import history
from services.common.model.history import HistoryRequest, RequestState
from services.common.model.periods import PERIODS

Say = Callable[[str], None]


def nothing(_: object) -> None:
    """For those who want no progress."""


def note(now: history.Progress) -> str:
    """What a request is waiting for."""
    if now.state is RequestState.FINISHED:
        return "finished"
    if now.expected_periods and now.settled_periods >= now.expected_periods:
        return "writing to Iceberg"
    if now.state is RequestState.QUEUED:
        return "queued"
    return f"{now.settled_pages:,} of {now.expected_pages:,} pages, {now.running_jobs} of {now.jobs} jobs running"


def once(say: Say) -> Say:
    """Says a sentence that comes again and again only the first time."""
    last = ""

    def said(text: str) -> None:
        nonlocal last
        if text != last:
            last = text
            say(text)

    return said


# ---- one request -----------------------------------------------------------------------------------------------------


@contextmanager
def of_one(request: HistoryRequest, console: Console, *, quiet: bool) -> Iterator[OnProgress]:
    """Shows one request while the block runs."""
    what = f"{request.ticker} {PERIODS[request.period_seconds]}"
    if quiet:
        yield nothing
    elif not console.is_terminal:
        yield _Tenths(console.print, what)
    else:
        with bars_on(console) as bars:
            task = bars.add_task(what, total=request.max_candles, unit="candles", note="submitting")
            yield lambda now: _move(bars, task, now, request)


class _Tenths:
    """A line at each tenth, so that a log stays short."""

    def __init__(self, say: Say, what: str) -> None:
        self._say = say
        self._what = what
        self._tenth = -1

    def __call__(self, now: history.Progress) -> None:
        tenth = now.settled_periods * 10 // now.expected_periods if now.expected_periods else 0
        if tenth > self._tenth or now.state is RequestState.FINISHED:
            self._tenth = 11 if now.state is RequestState.FINISHED else tenth
            self._say(f"{self._what}: {now.settled_periods:,} of {now.expected_periods:,} candles, {note(now)}")


# ---- many requests ---------------------------------------------------------------------------------------------------


class Many(Protocol):
    """Shows many requests."""

    def started(self, request: HistoryRequest) -> OnProgress:
        """One is on its way; what it returns is told how far that is."""

    def ended(self, request_id: str, line: str, *, ok: bool, rows: int) -> None:
        """One is done; ``line`` says how."""


@contextmanager
def of_many(count: int, console: Console, *, quiet: bool, plain: bool) -> Iterator[Many]:
    """Shows ``count`` requests while the block runs; ``plain`` wants lines though it be a terminal."""
    if quiet:
        yield _Lines(count, nothing)
    elif plain or not console.is_terminal:
        yield _Lines(count, console.print)
    else:
        with bars_on(console) as bars:
            yield _Rows(count, bars, most=max(console.height - 4, 1))


class _Lines:
    """A line for each that is done."""

    def __init__(self, count: int, say: Say) -> None:
        self._count = count
        self._say = say
        self._done = 0

    def started(self, request: HistoryRequest) -> OnProgress:
        return nothing

    def ended(self, request_id: str, line: str, *, ok: bool, rows: int) -> None:
        self._done += 1
        self._say(f"[{self._done}/{self._count}] {line}")


class _Rows:
    """A row for each on its way, as many as the screen holds, below one for all of them; what failed stays above."""

    def __init__(self, count: int, bars: Progress, most: int) -> None:
        self._bars = bars
        self._most = most
        self._tasks: dict[str, TaskID] = {}
        self._rows = self._failed = 0
        self._all = bars.add_task("all tickers", total=count, note="", unit="tickers")

    def started(self, request: HistoryRequest) -> OnProgress:
        task = self._bars.add_task(
            request.ticker,
            total=request.max_candles,
            unit="candles",
            note="submitting",
            visible=len(self._tasks) < self._most,
        )
        self._tasks[request.request_id] = task
        return lambda now: _move(self._bars, task, now, request)

    def ended(self, request_id: str, line: str, *, ok: bool, rows: int) -> None:
        if (task := self._tasks.pop(request_id, None)) is not None:
            self._bars.remove_task(task)
        for shown in list(self._tasks.values())[: self._most]:
            self._bars.update(shown, visible=True)
        self._rows += rows
        self._failed += not ok
        if not ok:
            self._bars.console.print(line, markup=False)
        failed = f", {self._failed} not OK" if self._failed else ""
        self._bars.update(self._all, advance=1, note=f"{self._rows:,} rows{failed}")


def bars_on(console: Console) -> Progress:
    """Bars whose tasks have the fields ``unit`` and ``note``."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} {task.fields[unit]}, {task.fields[note]}", markup=False),
        TimeElapsedColumn(),
        console=console,
    )


def _move(bars: Progress, task: TaskID, now: history.Progress, request: HistoryRequest) -> None:
    total = now.expected_periods or request.max_candles
    bars.update(task, total=total, completed=now.settled_periods, note=note(now))
