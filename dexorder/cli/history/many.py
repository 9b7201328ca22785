"""Runs of ``dexorder history`` with many series: each has its own request, and a failure does not stop the others."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

from dexorder import errors
from dexorder.cli.history.runs import Run
from dexorder.cli.rows.options import STDOUT
from dexorder.cli.rows.sinks import FileRows, file_rows
from dexorder.cli.terminal import output, progress
from dexorder.cli.terminal.unknown import Listings
from dexorder.client.async_client import AsyncClient
from dexorder.client.many import READ_AT_ONCE
from dexorder.client.requests import Ended, histories_span, without_repeats
from dexorder.client.table_rows import read_span
from dexorder_common.model.history import HistoryRequest, RequestStatus, id_json, range_json
from dexorder_common.model.periods import PERIODS

_RESULT: dict[str, Callable[[Ended], Any]] = {
    "request_id": lambda ended: ended.record.request_id,
    "ticker": lambda ended: ended.record.ticker,
    "period_seconds": lambda ended: ended.record.period_seconds,
    "status": lambda ended: str(ended.notification.outcome.status),
    "error_message": lambda ended: ended.record.error_message or None,
    "row_count": lambda ended: ended.record.row_count,
    "empty_periods": lambda ended: ended.record.empty_periods,
    "missing": lambda ended: [range_json(span) for span in ended.record.missing],
    "provisional": lambda ended: [range_json(span) for span in ended.record.provisional],
    "answered_until": lambda ended: ended.record.as_json()["answered_until"],
    "snapshot_id": lambda ended: id_json(ended.record.snapshot_id),
    "table": lambda ended: ended.notification.table,
    "topic": lambda ended: ended.notification.topic,
}


def result_json(ended: Ended | None) -> dict[str, Any]:
    """Return the JSON fields of a request that has ended, without its rows; all of them null for None."""
    return {name: value(ended) if ended else None for name, value in _RESULT.items()}


class FileIncomplete(errors.DexorderError):
    """The common file has some rows of a ticker, but not all."""


@dataclass(frozen=True)
class Result:
    """Result of one ticker and period."""

    ticker: str
    period_seconds: int
    request_id: str
    status: str
    """Status of the request, or REFUSED, FAILED (accepted, but not followed to its end) or UNREAD (ended, but its rows
    could not be read or written)."""
    ended: Ended | None = None
    error: str = ""
    """A sentence; empty for OK."""

    @property
    def rows(self) -> int:
        """Number of rows in the table."""
        return self.ended.record.row_count if self.ended else 0

    def line(self) -> str:
        """Return the result as a line of a log."""
        return f"{self.ticker} {PERIODS[self.period_seconds]} {self.status}: {self.error or f'{self.rows:,} rows'}"

    def as_json(self) -> dict[str, Any]:
        """Return the fields of a single ticker's JSON without its rows; null for unknown values."""
        series = {"ticker": self.ticker, "period_seconds": self.period_seconds}
        own = {"request_id": self.request_id, **series, "status": self.status}
        return result_json(self.ended) | own | {"error_message": self.error or None}


class ManyFollower:
    """Run of many tickers or periods. A resumed one was checked when it was new; a market may be delisted since."""

    def __init__(
        self, run: Run, timeout: float | None, *, quiet: bool, parallel: int, is_resumed: bool = False
    ) -> None:
        self._run = run
        self._is_resumed = is_resumed
        self._timeout = timeout
        self._quiet = quiet
        self._parallel = parallel
        self._err = output.stderr()
        self._on_note = progress.ignore if quiet else without_repeats(self._err.print)
        self._results: dict[int, Result] = {}
        self._accepted: set[int] = set()
        self._common: FileRows | None = None
        self._common_lock = asyncio.Lock()
        self._reading = asyncio.Semaphore(READ_AT_ONCE)

    async def follow(self) -> int:
        """Process all series. Return 0 if every one is OK and its rows are written, else 1."""
        run = self._run
        if run.output.out is not None and run.common_file is None:
            run.output.out.mkdir(exist_ok=True)
        plain = run.output.as_json and sys.stdout.isatty()  # lines on stdout would break up the bars
        try:
            with ExitStack() as stack:
                if run.common_file is not None:
                    self._common = stack.enter_context(file_rows(run.output))
                shown = stack.enter_context(
                    progress.show_many(run.count, self._err, unit=run.unit, quiet=self._quiet, plain=plain)
                )
                async with AsyncClient(run.relay, on_note=self._on_note) as client:
                    await self._process_all(client, shown)
        finally:
            if self._results and not run.output.as_json:
                self._print_summary()
        if run.output.out not in (None, STDOUT):
            self._err.print(f"rows: {run.output.out}")
        return 0 if all(result.status == RequestStatus.OK for result in self._results.values()) else 1

    @property
    def is_accepted(self) -> bool:
        """Whether the relay has one of the requests on its disk."""
        return bool(self._accepted)

    def stop_message(self) -> str:
        """Return the number of requests in each state."""
        total, done, running = self._run.count, len(self._results), len(self._accepted - self._results.keys())
        left = total - done - running
        return f"{done} of {total} {self._run.unit} are done, {running} continue at the relay, {left} are not submitted"

    async def _process_all(self, client: AsyncClient, shown: progress.ManyProgress) -> None:
        try:
            async with asyncio.timeout(self._timeout), asyncio.TaskGroup() as group:
                indices = await self._check_all(client, shown)
                with histories_span([*indices]):
                    await self._follow_all(client, shown, indices, group)
        except TimeoutError:
            raise errors.WaitEnded(f"not all {self._run.unit} were done within {self._timeout:g} s") from None
        except BaseExceptionGroup as group_error:
            raise group_error.exceptions[0] from None

    async def _check_all(self, client: AsyncClient, shown: progress.ManyProgress) -> dict[HistoryRequest, int]:
        """Return the requests to submit, with their numbers; the others are refused."""
        listings, indices = Listings(client), dict[HistoryRequest, int]()
        for index in range(self._run.count):
            ticker, period_seconds, _ = self._run.series(index)
            try:
                request = self._run.request(index)
                if not self._is_resumed:
                    await listings.refuse_unknown(ticker, period_seconds)
                indices[request] = index
            except (errors.RequestRefused, errors.NotAllowed) as error:
                refused = Result(ticker, period_seconds, self._run.request_id(index), "REFUSED", error=str(error))
                self._ended(index, refused, shown)
        return indices

    async def _follow_all(
        self,
        client: AsyncClient,
        shown: progress.ManyProgress,
        indices: dict[HistoryRequest, int],
        group: asyncio.TaskGroup,
    ) -> None:
        def accepted(request: HistoryRequest) -> None:
            if indices[request] not in self._accepted:  # a stream that broke is opened again
                self._accepted.add(indices[request])
                shown.started(request)

        ends = client.fetch_each(indices, parallel=self._parallel, on_progress=shown.follow(), on_accepted=accepted)
        async with aclosing(ends):
            async for request, result in ends:
                group.create_task(self._process(client, shown, indices[request], request, result))

    async def _process(
        self,
        client: AsyncClient,
        shown: progress.ManyProgress,
        index: int,
        request: HistoryRequest,
        result: Ended | errors.DexorderError,
    ) -> None:
        made = partial(Result, request.ticker, request.period_seconds, request.request_id)
        if isinstance(result, Ended):
            self._ended(index, await self._written(client, index, result, made), shown)
        else:
            refused = isinstance(result, errors.RequestRefused | errors.NotAllowed)
            self._ended(index, made("REFUSED" if refused else "FAILED", error=str(result)), shown)

    def _ended(self, index: int, result: Result, shown: progress.ManyProgress) -> None:
        self._results[index] = result
        ok = result.status == RequestStatus.OK
        shown.ended(result.request_id, result.line(), ok=ok, rows=result.rows)
        if self._run.output.as_json:
            output.print_json_line(result.as_json())

    async def _written(self, client: AsyncClient, index: int, ended: Ended, made: Callable[..., Result]) -> Result:
        """Write the rows of a request that has ended, if it has all of them or may have some; return the result."""
        record = ended.record
        reason = "" if record.status is RequestStatus.OK else record.reason()
        if reason and not (self._run.output.partial and record.row_count):
            return made(str(record.status), ended, reason)
        try:
            async with self._reading:
                with read_span():
                    await self._write_rows(client, ended, index)
        except (FileIncomplete, errors.RelayUnreachable):
            raise
        except (errors.DexorderError, OSError) as error:
            return made("UNREAD", ended, str(error))
        return made(str(record.status), ended, reason)

    async def _write_rows(self, client: AsyncClient, ended: Ended, index: int) -> None:
        """Write the rows to the file of the ticker or to the common file, if requested."""
        batches = client.rows.batches(ended, partial=self._run.output.partial)
        if (file := self._run.own_file(index)) is not None:
            with file_rows(self._run.output, file) as rows:
                async for batch in batches:
                    await asyncio.to_thread(rows.write, batch)
        if self._common is not None:
            first = await anext(batches)  # the number of rows is verified; a later failure leaves the file incomplete
            async with self._common_lock:
                try:
                    await asyncio.to_thread(self._common.write, first)
                    async for batch in batches:
                        await asyncio.to_thread(self._common.write, batch)
                except (errors.DexorderError, OSError) as error:
                    raise FileIncomplete(f"{self._run.common_file} can't be completed: {error}") from None

    def _print_summary(self) -> None:
        results = [self._results[index] for index in sorted(self._results)]
        cells = [
            (
                r.ticker,
                PERIODS[r.period_seconds],
                r.status,
                f"{r.rows:,}",
                f"{r.ended.record.empty_periods:,}" if r.ended else "-",
                r.error,
            )
            for r in results
        ]
        out = self._err if self._run.output.out == STDOUT else output.stdout()
        out.print(output.plain_table(("ticker", "period", "status", "rows", "empty", "missing or error"), cells))
        counts = ", ".join(f"{count} {status}" for status, count in Counter(r.status for r in results).most_common())
        out.print(f"{counts}; {sum(r.rows for r in results):,} rows")
