"""``dexorder history``: submit, follow, read back, show."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from dexorder import records
from dexorder.aio import AsyncClient, Ended, OnProgress, history_error, new_request_id
from dexorder.cli import output
from dexorder.errors import HistoryError
from dexorder.request import HistoryRequest, make_request
from services.common.market import PERIODS


@dataclass(frozen=True)
class Shown:
    """What the user wants to see of the result.

    Raises:
        ValueError: A file's ending is not one of ours; said before anything is submitted.
    """

    as_json: bool = False
    out: Path | None = None
    plot: Path | None = None
    chart: bool = False
    rows: int = 20
    quiet: bool = False

    def __post_init__(self) -> None:
        output.check_out(self.out)
        if self.plot is not None and self.plot.suffix.lower() not in (".html", ".htm"):
            raise ValueError(f"--plot {self.plot} does not end in .html")
        if self.as_json and self.chart:
            raise ValueError("--chart and --json exclude each other")


def ask(
    ticker: str, period: str, since: str, until: str, limit: int | None, request_id: str | None, client_id: str = ""
) -> HistoryRequest:
    """The request that the command's arguments mean; RequestRefused if they mean none."""
    return make_request(request_id or new_request_id(), ticker, period, since, until, limit=limit, client_id=client_id)


def run(request: HistoryRequest, shown: Shown, relay: str | None, timeout: float | None = None) -> int:
    """Do it all; returns the exit code: 0 for OK, 130 after Ctrl-C. Other ends raise."""
    follower = _Follower(relay, request, shown)
    try:
        ended, rows, failure = asyncio.run(follower.follow(timeout))
    except KeyboardInterrupt:
        output.stderr().print(follower.goodbye())
        return 130
    if shown.as_json:
        output.print_json(result_json(ended.record, ended.notification, rows))
    if failure is not None:
        raise failure
    assert rows is not None
    _show(ended, rows, shown)
    return 0


class _Follower:
    """One request on its way; knows how far it came when Ctrl-C ends the command."""

    def __init__(self, relay: str | None, request: HistoryRequest, shown: Shown) -> None:
        self._relay, self._request, self._shown = relay, request, shown
        self._accepted = False

    async def follow(self, timeout: float | None) -> tuple[Ended, pa.Table | None, HistoryError | None]:
        """To the end; rows only for OK, else the error that the record means."""
        with _progress(self._request, self._shown) as (on_progress, say):
            async with AsyncClient(self._relay, on_note=say) as client:
                await client.submit(self._request)
                self._accepted = True
                ended = await client.wait(self._request.request_id, on_progress=on_progress, timeout=timeout)
                if ended.record.status is not records.Status.OK:
                    return ended, None, history_error(ended.record)
                say("reading from Iceberg")
                return ended, await client.read(ended), None

    def goodbye(self) -> str:
        """What to say after Ctrl-C."""
        name = self._request.request_id
        if not self._accepted:
            return f"\nstopped before the relay had answered; `dexorder requests show {name}` tells if it was accepted"
        return f"\nrequest {name} goes on; look it up: dexorder requests show {name}"


@contextmanager
def _progress(request: HistoryRequest, shown: Shown) -> Iterator[tuple[OnProgress, Callable[[str], None]]]:
    if shown.quiet:
        yield (lambda _: None), (lambda _: None)
        return
    console = output.stderr()
    what = f"{request.ticker} {PERIODS[request.period_seconds]}"
    if not console.is_terminal:
        yield _LineProgress(console.print, what), console.print
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} candles, {task.fields[note]}"), TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(what, total=request.expected_candles, note="submitting")

        def on_progress(now: records.Progress) -> None:
            total = now.expected_periods or request.expected_candles
            bar.update(task, total=total, completed=now.settled_periods, note=_note(now))

        yield on_progress, lambda text: bar.update(task, note=text)
        bar.update(task, note="done")


class _LineProgress:
    """Progress where there is no terminal: a line at each tenth, so that a log stays short."""

    def __init__(self, say: Callable[[str], None], what: str) -> None:
        self._say, self._what = say, what
        self._tenth = -1

    def __call__(self, now: records.Progress) -> None:
        tenth = now.settled_periods * 10 // now.expected_periods if now.expected_periods else 0
        if tenth > self._tenth or now.state is records.State.FINISHED:
            self._tenth = 11 if now.state is records.State.FINISHED else tenth
            self._say(f"{self._what}: {now.settled_periods:,} of {now.expected_periods:,} candles, {_note(now)}")


def _note(now: records.Progress) -> str:
    if now.state is records.State.FINISHED:
        return "finished"
    if now.expected_periods and now.settled_periods >= now.expected_periods:
        return "writing to Iceberg"
    if now.state is records.State.QUEUED:
        return "queued"
    return f"{now.settled_pages:,} of {now.expected_pages:,} pages, {now.running_jobs} of {now.jobs} jobs running"


def _show(ended: Ended, rows: pa.Table, shown: Shown) -> None:
    out, err = output.stdout(), output.stderr()
    if not shown.as_json:
        if shown.rows:
            out.print(output.rows_table(rows, shown.rows))
        if shown.chart:
            from dexorder.chart import candle_chart

            out.print(candle_chart(rows, width=min(out.width, 110)))
        out.print(notification_line(ended))
    if shown.out is not None:
        output.write_out(rows, shown.out)
        err.print(f"rows: {shown.out}")
    if shown.plot is not None:
        from dexorder.chart import write_html

        write_html(rows, shown.plot)
        err.print(f"chart: {shown.plot}")


def notification_line(ended: Ended) -> str:
    """The notification as one line."""
    note, record = ended.notification, ended.record
    return (
        f"{note.topic} {note.status}: {note.row_count:,} rows in {note.table}, "
        f"{record.empty_periods:,} periods verified empty, snapshot {record.snapshot_id}"
    )


def result_json(record: records.RequestRecord, note: records.Notification, rows: pa.Table | None) -> dict[str, Any]:
    """What ``--json`` prints, whatever the status; rows only for OK."""
    return {
        "request_id": record.request_id, "ticker": record.ticker, "period_seconds": record.period_seconds,
        "status": str(note.status), "error_message": record.error_message or None, "row_count": record.row_count,
        "empty_periods": record.empty_periods, "missing": [records.ranges_json(r) for r in record.missing],
        "snapshot_id": record.snapshot_id, "table": note.table, "topic": note.topic,
        "rows": None if rows is None else output.rows_json(rows),
    }  # fmt: skip
