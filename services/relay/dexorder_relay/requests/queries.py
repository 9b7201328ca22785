"""Queries about requests and coverage: records, progress, notifications, known ranges. They are read-only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from functools import partial
from typing import TypeVar

from google.protobuf.message import Message

from dexorder_common.model.coverage import CoveragePage, CoverageRange, known_ranges
from dexorder_common.model.cursor import Cursor, StreamStart
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.history import HistoryRequest, Notification, Outcome, Progress, RequestRecord, RequestState
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_relay.access import unknown_request
from dexorder_relay.requests.context import Context
from dexorder_relay.state.history import progress
from dexorder_relay.state.request import LiveRequest
from dexorder_relay.store.logs import Log, start_of

WATCH_SECONDS = 0.1
NOTIFICATIONS_IN_A_READ = 500
ENDS_IN_A_READ = 100
PAGE_SIZE = 100
MAX_TOKEN = 2**63 - 1
MAX_PAGE_BYTES = 1024 * 1024
"""Bytes of the entries of a page, of which one alone may have more."""
V = TypeVar("V")
M = TypeVar("M", bound=Message)
TOPIC_FORMS = ("HISTORY_READY:", "RESPONSE:", "REVISED:")


class RequestQueries:
    """Reads unfinished requests from the state, ended ones and notifications from the store, pages from the table."""

    def __init__(self, context: Context) -> None:
        self._state = context.state
        self._store = context.store
        self._signals = context.signals
        self._metrics = context.metrics
        self._reader = context.reader
        self._table_reads = context.table_reads
        self.doubtful: Callable[[Series, TimeRange], list[TimeRange]] = lambda series, span: []
        """Returns the parts of a span that realtime has settled by the word of one source."""
        self.is_live: Callable[[str], object] = self._state.requests.get
        """Returns a request whose outcome is not on disk."""

    async def record(self, request_id: str) -> RequestRecord:
        """Return one request; NotFound if it was never accepted, or is forgotten."""
        live = self._state.requests.get(request_id)
        record = self._live_record(live) if live else await self._store.record(request_id)
        if record is None:
            raise unknown_request(request_id)
        return record

    async def outcome(self, request: HistoryRequest) -> Outcome:
        """Wait until a request has ended and return its outcome; NotFound as ``record``, Unavailable at the stop."""
        with self._signals.listen(f"topic:{request.topics[0]}") as event:
            while (outcome := (await self.record(request.request_id)).outcome) is None:
                await self._signals.wait(event)
        return outcome

    async def records(
        self, client_id: str, state: RequestState | None, before: int | None, size: int
    ) -> list[RequestRecord]:
        """Return requests newest first; ``before`` is the sequence of the last one of the previous page."""
        found = []
        for sequence, request_id, ended in await self._store.page(client_id, state, before, size):
            live = self._state.requests.get(request_id)
            if ended is None and live is None:
                ended = await self._store.record(request_id)  # it ended since the query
            record = ended or (self._live_record(live, sequence) if live else None)
            if record is not None:
                found.append(record)
        return found

    def _live_record(self, live: LiveRequest, sequence: int = 0) -> RequestRecord:
        return RequestRecord(live.request, live.submitted_ns, progress(self._state, live), sequence=sequence)

    async def watch(self, request_id: str) -> AsyncGenerator[Progress, None]:
        """Yield the progress now and at every change, at most ten a second; the last one is FINISHED."""
        last = None
        with self._signals.listen(f"request:{request_id}") as event, self._metrics.progress_streams.track_inprogress():
            while True:
                now = (await self.record(request_id)).progress
                if now != last:
                    last = now
                    yield now
                if now.state is RequestState.FINISHED:
                    return
                await asyncio.sleep(WATCH_SECONDS)
                await self._signals.wait(event)

    async def ends(
        self, request_ids: Iterable[str], *, with_progress: bool
    ) -> AsyncGenerator[list[RequestRecord] | dict[str, Progress], None]:
        """Yield the records of requests when they have ended, until all have; several at a time if they end together.

        Args:
            with_progress: Also yield the progress of unfinished requests, at every change, ten times a second.

        Raises:
            NotFound: A request was forgotten, because the caller has not read for too long.
        """
        left, last = set(request_ids), dict[str, Progress]()
        prefix = "request:" if with_progress else "topic:HISTORY_READY:"
        with self._signals.listen_each(prefix + each for each in left) as event:
            changed = list(left)
            while True:
                over = [each for each in changed if not self.is_live(each)]
                for start in range(0, len(over), ENDS_IN_A_READ):
                    part = over[start : start + ENDS_IN_A_READ]
                    records = await self._store.records(part)
                    left.difference_update(part)
                    if len(records) < len(part):
                        raise unknown_request(min(set(part).difference(each.request_id for each in records)))
                    yield records
                if not left:
                    return
                if with_progress:
                    now = {each: progress(self._state, live) for each in changed if (live := self._live(each))}
                    if news := {each: value for each, value in now.items() if last.get(each) != value}:
                        last |= news
                        yield news
                await asyncio.sleep(WATCH_SECONDS)
                await self._signals.wait(event)
                changed = [each for key in event.take() if (each := key.removeprefix(prefix)) in left]

    def _live(self, request_id: str) -> LiveRequest | None:
        return self._state.requests.get(request_id)

    async def notifications(self, topic: str, after: Cursor | None) -> AsyncGenerator[StreamStart | Notification, None]:
        """Yield where the stream starts, then a topic's notifications after a cursor, in order, without end.

        Raises:
            InvalidRequest: The topic is invalid.
        """
        if not any(topic.startswith(form) and topic != form for form in TOPIC_FORMS):
            raise InvalidRequest(
                f"topic {topic[:64]!r} is not HISTORY_READY:request_id, RESPONSE:client_id or REVISED:ticker"
            )
        with self._signals.listen(f"topic:{topic}") as event, self._metrics.notification_streams.track_inprogress():
            start = await self._store.read(start_of, Log.NOTIFICATIONS, after)
            yield start
            last = start.cursor
            while True:
                found = await self._store.notifications(topic, last.sequence, NOTIFICATIONS_IN_A_READ)
                for notification in found:
                    last = notification.cursor or last
                    yield notification
                if len(found) < NOTIFICATIONS_IN_A_READ:
                    await self._signals.wait(event)

    def coverage(self, series: Series, span: TimeRange) -> list[CoverageRange]:
        """Return the known ranges of a series inside ``span``."""
        covered, empty = self._state.claims(series, span)
        provisional = self._state.provisional_in(series, span)
        return known_ranges(covered, empty, provisional, self.doubtful(series, span))

    async def pages(self, series: Series, span: TimeRange) -> list[CoveragePage]:
        """Return the pages that overlap ``span``, by start, with their retracted parts; Unavailable if unreadable."""
        rows = await self._table_reads.in_thread(partial(self._reader.pages, series, span))
        retractions = self._state.retractions.get(series)
        return [
            CoveragePage(
                row.span,
                row.rows,
                row.empty,
                row.evidence,
                row.fetched_ns,
                row.committed_ns,
                tuple(retractions.taken(row.span, row.order)) if retractions else (),
            )
            for row in rows
        ]


def page_size(wanted: int) -> int:
    """Return the size of a page, of which the rule of the field limits the wanted one."""
    return wanted or PAGE_SIZE


def read_token(text: str) -> int | None:
    """Return the number in a token; None for the first page."""
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= MAX_TOKEN):
        raise InvalidRequest(f"page_token {text[:32]!r} is invalid; pass the next_page_token of the previous answer")
    return int(text)


def fitting(messages: Iterable[M]) -> list[M]:
    """Return the first messages that fit into an answer together, at least one if there are any."""
    found: list[M] = []
    size = 0
    for each in messages:
        size += each.ByteSize()
        if found and size > MAX_PAGE_BYTES:
            break
        found.append(each)
    return found


def page_by_name(
    items: Iterable[V], name_of: Callable[[V], str], encode: Callable[[V], M], wanted: int, token: str
) -> tuple[list[M], str]:
    """Return the messages of the page after the name in a token, and the token of the next one; empty after the last.

    A token names the last item of its page, so that an item added or removed between two calls neither repeats nor
    hides another one.

    Args:
        items: In the order of their names.
        wanted: As in ``page_size``.
    """
    size = page_size(wanted)
    rest = [each for each in items if not token or name_of(each) > token]
    page = fitting(map(encode, rest[:size]))
    return page, name_of(rest[len(page) - 1]) if len(rest) > len(page) else ""
