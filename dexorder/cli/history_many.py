"""Many tickers' histories: so many at a time, each a request of its own; none stops the others."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import orjson

from dexorder import errors
from dexorder.aio import AsyncClient, Ended
from dexorder.cli import output, progress
from dexorder.cli.history_one import result_json
from dexorder.cli.sinks import FileRows, file_rows
from dexorder.runs import Run
from services.common.model.history import HistoryRequest, RequestStatus

QUOTA_SECONDS = 2.0
"""How long until a submission that found the quota used up is tried again, if nothing of this run has ended before."""


class Spoiled(errors.DexorderError):
    """Rows of a ticker are in the common file, but not all of them."""


@dataclass(frozen=True)
class Outcome:
    """How it went with one ticker.

    Attributes:
        status: The request's; or REFUSED (nothing was accepted), FAILED (accepted, not followed to its end) or
            UNREAD (OK, but its rows could not be read or written).
        ended: None unless the request has ended.
        error: A sentence; empty for OK.
    """

    ticker: str
    request_id: str
    status: str
    ended: Ended | None = None
    error: str = ""

    @property
    def rows(self) -> int:
        """Counted in the table."""
        return self.ended.record.row_count if self.ended else 0

    def line(self) -> str:
        """For a log."""
        return f"{self.ticker} {self.status}: {self.error or f'{self.rows:,} rows'}"

    def as_json(self) -> dict[str, Any]:
        """The fields of one ticker's result without its rows; null where nothing is known."""
        known = result_json(self.ended) if self.ended else dict.fromkeys(_FIELDS)
        mine = {"request_id": self.request_id, "ticker": self.ticker, "status": self.status}
        return {**known, **mine, "error_message": self.error or None}


_FIELDS = (
    "request_id",
    "ticker",
    "period_seconds",
    "status",
    "error_message",
    "row_count",
    "empty_periods",
    "missing",
    "snapshot_id",
    "table",
    "topic",
)


class ManyFollower:
    """A run of many tickers on its way."""

    def __init__(self, run: Run, timeout: float | None, *, quiet: bool, parallel: int) -> None:
        self._run = run
        self._timeout = timeout
        self._quiet = quiet
        self._parallel = parallel
        self._err = output.stderr()
        self._say = progress.nothing if quiet else progress.once(self._err.print)
        self._outcomes: dict[int, Outcome] = {}
        self._accepted: set[int] = set()
        self._room = asyncio.Event()
        self._common: FileRows | None = None
        self._writing = asyncio.Lock()

    async def follow(self) -> int:
        """To the end of all; 0 when every one is OK and its rows are where they were wanted, else 1."""
        run = self._run
        if run.shown.out is not None and run.common_file is None:
            run.shown.out.mkdir(exist_ok=True)
        plain = run.shown.as_json and sys.stdout.isatty()  # bars would be torn by what is printed between
        try:
            with ExitStack() as around:
                if run.common_file is not None:
                    self._common = around.enter_context(file_rows(run.common_file))
                shown = around.enter_context(
                    progress.of_many(len(run.tickers), self._err, quiet=self._quiet, plain=plain)
                )
                async with AsyncClient(run.relay, on_note=self._say) as client:
                    await self._all(client, shown)
        finally:
            if self._outcomes and not run.shown.as_json:
                self._print_summary()
        if run.shown.out is not None:
            self._err.print(f"rows: {run.shown.out}", markup=False)
        return 0 if all(outcome.status == RequestStatus.OK for outcome in self._outcomes.values()) else 1

    def goodbye(self) -> str:
        """How many requests are where."""
        done, going = len(self._outcomes), len(self._accepted - self._outcomes.keys())
        left = len(self._run.tickers) - done - going
        return (
            f"{done} of {len(self._run.tickers)} tickers are done, {going} go on at the relay, {left} are not submitted"
        )

    async def _all(self, client: AsyncClient, shown: progress.Many) -> None:
        waiting = iter(range(len(self._run.tickers)))
        try:
            async with asyncio.timeout(self._timeout), asyncio.TaskGroup() as group:
                for _ in range(min(self._parallel, len(self._run.tickers))):
                    group.create_task(self._some(client, shown, waiting))
        except TimeoutError:
            raise errors.WaitEnded(f"not all tickers were done within {self._timeout:g} s") from None
        except BaseExceptionGroup as group_error:
            raise group_error.exceptions[0] from None

    async def _some(self, client: AsyncClient, shown: progress.Many, waiting: Iterator[int]) -> None:
        for index in waiting:
            outcome = await self._one(client, shown, index)
            self._outcomes[index] = outcome
            self._room.set()
            ok = outcome.status == RequestStatus.OK
            shown.ended(outcome.request_id, outcome.line(), ok=ok, rows=outcome.rows)
            if self._run.shown.as_json:
                sys.stdout.buffer.write(orjson.dumps(outcome.as_json(), option=orjson.OPT_APPEND_NEWLINE))
                sys.stdout.buffer.flush()

    async def _one(self, client: AsyncClient, shown: progress.Many, index: int) -> Outcome:
        ticker, request_id = self._run.tickers[index], self._run.request_id(index)
        try:
            request = self._run.request(index)
            on_progress = shown.started(request)
            await self._submit(client, request)
        except (errors.RequestRefused, errors.NotAllowed) as error:
            return Outcome(ticker, request_id, "REFUSED", error=str(error))
        self._accepted.add(index)
        try:
            ended = await client.wait(request_id, on_progress=on_progress)
        except errors.RelayUnreachable:
            raise  # nobody else would fare better
        except errors.DexorderError as error:
            return Outcome(ticker, request_id, "FAILED", error=str(error))
        record = ended.record
        if record.status is not RequestStatus.OK:
            return Outcome(ticker, request_id, str(record.status), ended, record.reason())
        try:
            await self._keep(client, ended, index)
        except (Spoiled, errors.RelayUnreachable):
            raise
        except (errors.DexorderError, OSError) as error:
            return Outcome(ticker, request_id, "UNREAD", ended, str(error))
        return Outcome(ticker, request_id, str(record.status), ended)

    async def _submit(self, client: AsyncClient, request: HistoryRequest) -> None:
        """Submit it; where the caller's quota is used up, wait until something has ended, of this run or elsewhere."""
        while True:
            self._room.clear()
            try:
                await client.submit(request)
                return
            except errors.QuotaReached as error:
                self._say(f"{error}; waiting for room")
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._room.wait(), QUOTA_SECONDS)

    async def _keep(self, client: AsyncClient, ended: Ended, index: int) -> None:
        """Write its rows where they are wanted, if anywhere."""
        batches = client.read_batches(ended)
        if (file := self._run.own_file(index)) is not None:
            with file_rows(file) as rows:
                async for batch in batches:
                    await asyncio.to_thread(rows.write, batch)
        if self._common is not None:
            first = await anext(batches)  # counted and found right: what fails from here on leaves half of it behind
            async with self._writing:
                try:
                    await asyncio.to_thread(self._common.write, first)
                    async for batch in batches:
                        await asyncio.to_thread(self._common.write, batch)
                except (errors.DexorderError, OSError) as error:
                    raise Spoiled(f"{self._run.common_file} can't be completed: {error}") from None

    def _print_summary(self) -> None:
        outcomes = [self._outcomes[index] for index in sorted(self._outcomes)]
        cells = [
            (o.ticker, o.status, f"{o.rows:,}", f"{o.ended.record.empty_periods:,}" if o.ended else "-", o.error)
            for o in outcomes
        ]
        out = output.stdout()
        out.print(output.plain_table(("ticker", "status", "rows", "empty", "missing or error"), cells))
        counts = ", ".join(f"{count} {status}" for status, count in Counter(o.status for o in outcomes).most_common())
        out.print(f"{counts}; {sum(o.rows for o in outcomes):,} rows", markup=False)
