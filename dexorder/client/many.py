"""Many requests at a time, in batches: each call follows its requests to their ends, and a failure stops no other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from dexorder import errors
from dexorder.client.connection import RelayConnection
from dexorder.client.requests import AsyncRequests, Ended, ended_by, histories_span
from dexorder_common.model.history import HistoryRequest, Progress
from dexorder_common.rpc.history_messages import decode_progress, decode_record, encode_request
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as pb

if TYPE_CHECKING:
    from dexorder.client.async_client import AsyncClient
    from dexorder.rows.table import Rows

PARALLEL = 256
"""Requests of one run that are not over, by default, as of ``dexorder history``. Most of them wait for the table: a
batch takes seconds to commit, and an exchange answers for several tickers a second."""
READ_AT_ONCE = 8
"""Requests of one run whose rows are read at a time."""
LARGEST_BATCH = 1_000
SMALLEST_PART = 4
"""A batch has at least a fourth of the requests that may run, or all that are left: each is a call."""
QUOTA_SECONDS = 2.0
"""Wait before a submission that exceeded a quota is repeated, unless a request of this run ends before."""
OnProgress = Callable[[HistoryRequest, Progress], None]


@dataclass(frozen=True)
class _NoRoom:
    """A quota has no room for a request. It is submitted again after some seconds, or when another one has ended."""

    seconds: float


@dataclass(frozen=True)
class _Broken:
    """The run can't go on."""

    error: Exception


class Batches:
    """The requests of one run, which belongs to one event loop."""

    def __init__(
        self,
        connection: RelayConnection,
        requests: AsyncRequests,
        *,
        parallel: int,
        on_progress: OnProgress | None = None,
        on_accepted: Callable[[HistoryRequest], None] = lambda request: None,
    ) -> None:
        """Have at most ``parallel`` requests that are not over."""
        self._connection = connection
        self._requests = requests
        self._most, self._parallel = parallel, parallel
        self._on_progress = on_progress
        self._on_accepted = on_accepted
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[HistoryRequest] = deque()
        self._open = 0
        self._not_before_s = 0.0
        self._has_batches = True
        self._tasks: set[asyncio.Task[None]] = set()
        self._news: asyncio.Queue[_Broken | tuple[HistoryRequest, Ended | errors.DexorderError | _NoRoom]]
        self._news = asyncio.Queue()

    async def ends(
        self, wanted: Iterable[HistoryRequest]
    ) -> AsyncGenerator[tuple[HistoryRequest, Ended | errors.DexorderError], None]:
        """Yield the end of each request, or the error that refused it, as they come.

        Raises:
            RelayUnreachable: The relay did not answer within the connection's patience.
        """
        self._waiting.extend({each.request_id: each for each in wanted}.values())
        try:
            while self._waiting or self._open:
                self._submit()
                try:
                    news = await asyncio.wait_for(self._news.get(), self._pause_seconds())
                except TimeoutError:
                    continue
                if isinstance(news, _Broken):
                    raise news.error
                request, result = news
                self._open -= 1
                if isinstance(result, _NoRoom):
                    self._refused_for_now(request, result.seconds)
                    continue
                self._parallel = min(self._most, self._parallel + 1)
                self._not_before_s = 0.0
                yield request, result
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _pause_seconds(self) -> float | None:
        """Return how long to wait for news at most: until submissions that were refused may be repeated."""
        paused = self._waiting and self._open < self._parallel and self._not_before_s
        return max(self._not_before_s - self._loop.time(), 0) if paused else None

    def _refused_for_now(self, request: HistoryRequest, seconds: float) -> None:
        """Keep a request for later, and no more of them at the relay than it has taken."""
        self._waiting.append(request)
        self._parallel = max(self._open, 1)
        self._not_before_s = self._loop.time() + seconds

    def _submit(self) -> None:
        """Start calls for as many requests as there is room for."""
        if self._loop.time() < self._not_before_s:
            return
        smallest = max(self._parallel // SMALLEST_PART, 1)
        while self._waiting and (room := self._parallel - self._open) >= min(smallest, len(self._waiting)):
            part = [self._waiting.popleft() for _ in range(min(room, len(self._waiting), LARGEST_BATCH))]
            self._open += len(part)
            task = asyncio.create_task(self._follow(part))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _follow(self, part: Sequence[HistoryRequest]) -> None:
        """Submit requests and tell what becomes of each."""
        try:
            in_batch = self._has_batches
            if batch := [each for each in part if in_batch and not each.refresh]:
                await self._follow_batch(batch)
            async with asyncio.TaskGroup() as group:
                for each in part:
                    if not in_batch or each.refresh:
                        group.create_task(self._follow_one(each))
        except BaseExceptionGroup as group_error:
            self._break(group_error.exceptions[0])
        except Exception as error:
            self._break(error)

    def _break(self, error: BaseException) -> None:
        if isinstance(error, Exception):
            self._news.put_nowait(_Broken(error))

    async def _follow_batch(self, part: Sequence[HistoryRequest]) -> None:
        left = {each.request_id: each for each in part}
        call = self._connection.stub.history.SubmitHistoricalBatch

        def submit(_: object) -> Any:
            # A stream that broke is opened with what is left of it; what was accepted is answered as DUPLICATE.
            requests = map(encode_request, left.values())
            return call(pb.SubmitHistoricalBatchRequest(requests=requests, with_progress=self._on_progress is not None))

        try:
            async with aclosing(self._connection.stream(submit, None)) as messages:
                async for message in messages:
                    self._answered(left, message.answers)
                    for each in message.progress:
                        if self._on_progress and (request := left.get(each.request_id)):
                            self._on_progress(request, decode_progress(each.state, each.progress))
                    self._ended(left, message.ended)
                    if not left:
                        return
        except errors.RelayUnreachable:
            raise
        except errors.NotSupported:
            self._has_batches = False
            self._tell(left, _NoRoom(0))
        except errors.DexorderError as error:
            self._tell(left, error)

    def _answered(self, left: dict[str, HistoryRequest], answers: Iterable[pb.BatchAnswer]) -> None:
        notes = dict[str, None]()
        for each in answers:
            answer = each.answer
            if (request := left.get(answer.request_id)) is None:
                continue
            if answer.notification_topic:
                self._on_accepted(request)
            elif each.over_quota:
                notes[answer.error_message] = None
                seconds = each.retry_after_ms / 1_000 if each.HasField("retry_after_ms") else QUOTA_SECONDS
                self._tell_one(left, request, _NoRoom(seconds))
            else:
                status = type(answer).SubmitStatus.Name(answer.status)
                text = f"the relay answered {status}: {answer.error_message}"
                self._tell_one(left, request, errors.RequestRefused(text))
        for note in list(notes)[:1]:
            self._note(note)

    def _ended(self, left: dict[str, HistoryRequest], records: Iterable[pb.RequestRecord]) -> None:
        for each in records:
            record = decode_record(each)
            if request := left.get(record.request_id):
                if self._on_progress:
                    self._on_progress(request, record.progress)
                self._tell_one(left, request, ended_by(record))

    def _tell_one(
        self,
        left: dict[str, HistoryRequest],
        request: HistoryRequest,
        result: Ended | errors.DexorderError | _NoRoom,
    ) -> None:
        del left[request.request_id]
        self._news.put_nowait((request, result))

    def _tell(self, left: dict[str, HistoryRequest], result: errors.DexorderError | _NoRoom) -> None:
        for request in list(left.values()):
            self._tell_one(left, request, result)

    def _note(self, reason: object) -> None:
        self._connection.on_note(f"{reason}; waiting until a request ends")

    async def _follow_one(self, request: HistoryRequest) -> None:
        """Follow a refresh, or a request at a relay without batches."""
        on_progress = partial(self._on_progress, request) if self._on_progress else None
        result: Ended | errors.DexorderError | _NoRoom
        try:
            await self._requests.submit(request)
            self._on_accepted(request)
            result = await self._requests.wait(request.request_id, on_progress=on_progress)
        except errors.RelayUnreachable:
            raise
        except errors.QuotaReached as error:
            self._note(error)
            result = _NoRoom(QUOTA_SECONDS)
        except errors.DexorderError as error:
            result = error
        self._news.put_nowait((request, result))


async def fetch_many(
    client: AsyncClient,
    requests: Sequence[HistoryRequest],
    *,
    parallel: int,
    on_progress: Callable[[str, Progress], None],
) -> Rows:
    """Return the rows of all requests in their order, ``parallel`` of which run at a time.

    Raises:
        ManyFailed: Some ended without all of their rows, when all have ended; it has the errors and the other rows.
        RelayUnreachable: The relay did not answer, so that all would fail.
    """
    from dexorder.rows.table import Rows

    found: dict[str, Rows] = {}
    failed: dict[str, errors.DexorderError] = {}
    reading = asyncio.Semaphore(READ_AT_ONCE)

    async def read(request: HistoryRequest, ended: Ended) -> None:
        async with reading:
            try:
                found[request.request_id] = await client.read(ended)
            except errors.RelayUnreachable:
                raise
            except errors.DexorderError as error:
                failed[request.ticker] = error

    def report(request: HistoryRequest, now: Progress) -> None:
        on_progress(request.ticker, now)

    try:
        with histories_span(requests):
            ends = client.fetch_each(requests, parallel=parallel, on_progress=report)
            async with asyncio.TaskGroup() as group, aclosing(ends):
                async for request, result in ends:
                    if isinstance(result, Ended):
                        group.create_task(read(request, result))
                    else:
                        failed[request.ticker] = result
    except BaseExceptionGroup as group_error:
        raise group_error.exceptions[0] from None
    rows = Rows.concat(found[each.request_id] for each in requests if each.request_id in found) if found else None
    if failed:
        raise errors.ManyFailed(failed, rows)
    assert rows is not None
    return rows
