"""One ticker's history: submit, follow, read back, show."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Any

import pyarrow as pa

from dexorder.aio import AsyncClient, Ended, history_error
from dexorder.cli import output, progress
from dexorder.cli.sinks import Ends, JsonRows, RowSink, file_rows
from dexorder.runs import Run
from services.common.model.history import RequestStatus, range_json


class OneFollower:
    """One request on its way; knows how far it came when Ctrl-C ends the command."""

    def __init__(self, run: Run, timeout: float | None, *, quiet: bool) -> None:
        self._request = run.request(0)
        self._shown = run.shown
        self._relay = run.relay
        self._timeout = timeout
        self._quiet = quiet
        self._accepted = False
        self._err = output.stderr()

    async def follow(self) -> int:
        """To the end, 0 or the error that the record means; with ``--json`` the record is printed either way."""
        say = progress.nothing if self._quiet else progress.once(self._err.print)
        async with AsyncClient(self._relay, on_note=say) as client:
            with progress.of_one(self._request, self._err, quiet=self._quiet) as on_progress:
                await client.submit(self._request)
                self._accepted = True
                ended = await client.wait(self._request.request_id, on_progress=on_progress, timeout=self._timeout)
            if ended.record.status is not RequestStatus.OK:
                if self._shown.as_json:
                    output.print_json({**result_json(ended), "rows": None})
                raise history_error(ended.record)
            say("reading from Iceberg")
            await self._show(client, ended)
        return 0

    def goodbye(self) -> str:
        """Whether the relay has it."""
        name = self._request.request_id
        if not self._accepted:
            return f"stopped before the relay had answered; `dexorder requests show {name}` tells if it was accepted"
        return f"request {name} goes on; look it up: dexorder requests show {name}"

    async def _show(self, client: AsyncClient, ended: Ended) -> None:
        shown, out = self._shown, output.stdout()
        # A chart needs all rows at once; everything else takes them as they come.
        whole = await client.read(ended) if shown.chart or shown.plot else None
        batches = client.read_batches(ended) if whole is None else _batches_of(whole)
        ends = Ends(shown.rows)
        with ExitStack() as files:
            sinks: list[RowSink] = [ends]
            if shown.out is not None:
                sinks.append(files.enter_context(file_rows(shown.out)))
            if shown.as_json:
                sinks.append(printed := JsonRows(sys.stdout.buffer, result_json(ended)))
            async for batch in batches:
                for sink in sinks:
                    sink.write(batch)
            if shown.as_json:
                printed.finish()
        if not shown.as_json:
            if shown.rows:
                out.print(output.rows_table(ends))
            if shown.chart and whole is not None:
                from dexorder.chart import candle_chart

                out.print(candle_chart(whole, width=min(out.width, 110)))
            out.print(notification_line(ended))
        if shown.out is not None:
            self._err.print(f"rows: {shown.out}", markup=False)
        if shown.plot is not None and whole is not None:
            from dexorder.chart import write_html

            write_html(whole, shown.plot)
            self._err.print(f"chart: {shown.plot}", markup=False)


async def _batches_of(rows: pa.Table) -> AsyncIterator[pa.RecordBatch]:
    for batch in rows.to_batches() or [pa.RecordBatch.from_pylist([], schema=rows.schema)]:
        yield batch


def notification_line(ended: Ended) -> str:
    """The notification as one line."""
    note, record = ended.notification, ended.record
    return (
        f"{note.topic} {note.status}: {note.row_count:,} rows in {note.table}, "
        f"{record.empty_periods:,} periods verified empty, snapshot {record.snapshot_id}"
    )


def result_json(ended: Ended) -> dict[str, Any]:
    """What ``--json`` prints of a request whatever its status, before its rows."""
    record, note = ended.record, ended.notification
    return {
        "request_id": record.request_id,
        "ticker": record.ticker,
        "period_seconds": record.period_seconds,
        "status": str(note.status),
        "error_message": record.error_message or None,
        "row_count": record.row_count,
        "empty_periods": record.empty_periods,
        "missing": [range_json(r) for r in record.missing],
        "snapshot_id": record.snapshot_id,
        "table": note.table,
        "topic": note.topic,
    }
