"""Async client. A request takes three steps, submit -> wait -> read; ``history`` does all three.

Every call is retried while the relay can't be reached, for up to ``patience_seconds``. A submit may be repeated, as its
``request_id`` makes it idempotent. Streams are resumed after a restart of the relay, so a request that is QUEUED is
followed to its end whatever restarts meanwhile.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from dexorder import errors
from dexorder.client import connection
from dexorder.client.connection import Connection, relay_address
from dexorder.client.coverage import CoverageCalls
from dexorder.client.ended import Ended
from dexorder.client.many import fetch_many
from dexorder.client.moments import Moment
from dexorder.client.notebook import ProgressView, is_notebook
from dexorder.client.reading import RowCalls
from dexorder.client.realtime import RealtimeCalls
from dexorder.client.request import make_request
from dexorder.client.traces import fetch_span, history_span
from dexorder.client.triggers import AsyncTriggers
from dexorder.client.udfs import UdfCalls
from dexorder.rows.answers import TABLE
from dexorder_common import tracing
from dexorder_common.model.history import (
    HistoryRequest,
    Notification,
    Progress,
    RequestRecord,
    RequestState,
)
from dexorder_common.model.instrument import InstrumentList
from dexorder_common.rpc.history_messages import (
    decode_instruments,
    decode_notification,
    decode_progress,
    decode_record,
    encode_request,
)
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2
from dexorder_protos.dexorder.relay.v1 import relay_service_pb2 as pb

if TYPE_CHECKING:
    from dexorder.rows.table import Rows

# What reads rows is imported by the first call that does: pyiceberg takes most of a second of processor time.

GRACE_SECONDS = 10.0
"""Longest wait for the notification after the progress stream has reported the end."""
T = TypeVar("T")
OnProgress = Callable[[Progress], None]


class AsyncClient(RowCalls, CoverageCalls, RealtimeCalls, UdfCalls):
    """Connection to one relay. Use it as an async context manager, in the event loop that created it."""

    def __init__(
        self,
        relay: str | None = None,
        catalog: tuple[str, Mapping[str, str]] | None = None,
        *,
        patience_seconds: float | None = None,
        on_note: Callable[[str], None] | None = None,
    ) -> None:
        """Create a client; it connects at the first call.

        Args:
            relay: host:port; default ``DEXORDER_RELAY``, else 127.0.0.1:50051.
            catalog: Name and pyiceberg properties; default those that the relay announces, overridden by
                ``DEXORDER_CATALOG_<NAME>`` in the environment. If neither is given and the announced catalog is not a
                file of this machine, the tables are read through the relay.
            patience_seconds: Longest time without an answer of the relay before RelayUnreachable is raised; default
                ``DEXORDER_PATIENCE_SECONDS``, else 30 for a relay that has answered before, while a first call fails at
                once if nothing listens at the address, or something else.
            on_note: Called with a sentence on an event that is not an error: the relay can't be reached and the call is
                retried, or a snapshot has expired and a later one was read.
        """
        patience = connection.patience_seconds(patience_seconds)
        self._connection = Connection(relay_address(relay), patience, on_note or (lambda _: None))
        self._call = self._connection.call
        self._stub = self._connection.stub
        self._catalog = catalog

    @property
    def relay(self) -> str:
        """host:port of the relay."""
        return self._connection.address

    @property
    def triggers(self) -> AsyncTriggers:
        """Triggers: conditions and patterns that the pipeline evaluates on live data."""
        return AsyncTriggers(self._connection)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; requests continue."""
        await self._connection.close()

    def history(
        self,
        ticker: str | Iterable[str],
        period: str | int,
        since: Moment,
        until: Moment = "now",
        *,
        limit: int | None = None,
        request_id: str | None = None,
        client_id: str = "",
        refresh: bool = False,
        on_progress: OnProgress | None = None,
        progress: bool | None = None,
        parallel: int = 16,
        timeout: float | None = None,
    ) -> Coroutine[Any, Any, Rows]:
        """Return the candles of ``[since, until)``; those that are not in the table yet are fetched first.

        Args:
            ticker: ``BTC/USDT.BINANCE``; or several, whose rows follow each other in this order.
            period: ``1h`` or seconds.
            since: ``now``, ``today``, ``-30d``, ``3 days ago``, ISO text, date, datetime (UTC without a zone), or
                seconds, milliseconds or nanoseconds since the epoch; rounded down to the period's grid.
            until: Like ``since``; exclusive; by default the end of the last closed candle.
            limit: Return only the first candles of each ticker.
            request_id: Repeating a call with the same id repeats the same request; default a new id. Of several
                tickers each request has this id with its number: ``ID-0001``.
            client_id: The caller, for ``list_requests``.
            refresh: Fetch the whole range from the exchange again; candles that have changed are replaced.
            on_progress: Called at each change; of several tickers with the progress of each.
            progress: Show progress below the cell of a notebook; by default if there is one.
            parallel: Of several tickers, so many are fetched at a time.
            timeout: Longest wait for the end, in seconds; None waits as long as the relay does.

        Returns:
            Rows of ``trading.ohlc``, ascending by ``open_time``; their number is the one that the relay counted.
            They are Arrow data: see ``Rows`` for pandas, polars and pyarrow.

        Raises:
            RequestRefused: The relay refuses the request; the message names the field and its value.
            HistoryError: The request ended without all rows; ``record.missing`` has the ranges.
            ManyFailed: Some of several tickers have no complete history; ``rows`` has those of the others.
            WaitEnded: ``timeout`` passed; the request continues under its id.
            RelayUnreachable: The relay did not answer for ``patience_seconds``.
        """
        names, is_one = ((ticker,), True) if isinstance(ticker, str) else (tuple(dict.fromkeys(ticker)), False)
        run_id = request_id or new_request_id()
        requests = [
            make_request(
                run_id if is_one else f"{run_id}-{number:04}",
                name,
                period,
                since,
                until,
                limit=limit,
                client_id=client_id,
                refresh=refresh,
            )
            for number, name in enumerate(names, 1)
        ]
        if not requests:
            raise errors.RequestRefused("ticker: no tickers are given; give at least one")
        # Not part of the coroutine: what a thread of its own shows would appear below another cell of a notebook.
        report = _reporter(names, on_progress, progress)
        return self._history(requests, report, is_one=is_one, parallel=parallel, timeout=timeout)

    async def _history(
        self,
        requests: Sequence[HistoryRequest],
        report: Callable[[str, Progress], None],
        *,
        is_one: bool,
        parallel: int,
        timeout: float | None,
    ) -> Rows:
        first = requests[0]
        if is_one:
            with history_span(first):
                ended = await self.fetch(first, on_progress=partial(report, first.ticker), timeout=timeout)
                return await self.read(ended)
        try:
            async with asyncio.timeout(timeout):
                return await fetch_many(
                    self, requests, parallel=parallel, on_note=self._connection.on_note, on_progress=report
                )
        except TimeoutError:
            raise errors.WaitEnded(
                f"not all tickers were done in {timeout:g} s; their requests continue, {first.request_id} and others"
            ) from None

    async def notifications(self, topic: str, *, after: int = 0) -> AsyncGenerator[Notification, None]:
        """Yield the notifications of a topic, those that are stored and every further one, in order, without end.

        The stream is opened again behind the last one whenever it breaks. Store ``notification.cursor`` to resume.

        Args:
            topic: ``RESPONSE:{client_id}`` for the ends of all requests of a client, ``HISTORY_READY:{request_id}``,
                or ``REVISED:{ticker}`` for candles that turned up later.
            after: Cursor of the last notification that is known; 0 for all that are stored.

        Raises:
            NotAllowed: The topic is another client's.
            RelayUnreachable: The relay did not answer for ``patience_seconds``.
        """
        request = pb.SubscribeNotificationsRequest(topic=topic, after_cursor=after)

        async def answers() -> None:
            await self._call(self._stub.ListRequests, pb.ListRequestsRequest(page_size=1))

        messages = self._connection.stream(self._stub.SubscribeNotifications, request, answers)
        async with aclosing(messages):
            async for message in messages:
                request.after_cursor = message.cursor
                yield decode_notification(topic, message)

    async def fetch(
        self,
        request: HistoryRequest,
        *,
        on_progress: OnProgress | None = None,
        on_accepted: Callable[[], None] = lambda: None,
        timeout: float | None = None,
    ) -> Ended:
        """Submit a request and wait for its end; the errors of ``submit`` and ``wait``.

        Args:
            on_accepted: Called once the request is on the relay's disk.
            timeout: Longest time for both, in seconds.
        """
        request_id, is_accepted = request.request_id, False
        try:
            with fetch_span(request):
                async with asyncio.timeout(timeout):
                    await self.submit(request)
                    is_accepted = True
                    on_accepted()
                    return await self.wait(request_id, on_progress=on_progress)
        except TimeoutError:
            if is_accepted:
                raise _not_ended(request_id, timeout) from None
            raise errors.WaitEnded(f"the relay did not accept request {request_id} within {timeout:g} s") from None

    async def submit(self, request: HistoryRequest) -> str:
        """Submit a request. Return the topic on which its end is announced.

        When this returns, the request is on the relay's disk. Submitting the same request again has no effect.

        Raises:
            RequestRefused: The relay answered INVALID or ERROR; the message has its reason.
        """
        message = encode_request(request)
        if request.refresh:
            answer = await self._call(self._stub.RefreshHistorical, pb.RefreshHistoricalRequest(request=message))
        else:
            answer = await self._call(self._stub.SubmitHistorical, message)
        if answer.status in (ingest_pb2.SubmitResponse.QUEUED, ingest_pb2.SubmitResponse.DUPLICATE):
            return str(answer.notification_topic)
        status = ingest_pb2.SubmitResponse.SubmitStatus.Name(answer.status)
        raise errors.RequestRefused(f"the relay answered {status}: {answer.error_message}")

    async def wait(
        self, request_id: str, *, on_progress: OnProgress | None = None, timeout: float | None = None
    ) -> Ended:
        """Follow a request until its notification. The last call of ``on_progress`` has the progress of the record.

        Raises:
            WaitEnded: ``timeout`` seconds passed.
            RequestUnknown: No request has this id.
        """
        report = without_repeats(on_progress or (lambda _: None))
        try:
            async with asyncio.timeout(timeout):
                notification = await self._notified(request_id, report)
        except TimeoutError:
            raise _not_ended(request_id, timeout) from None
        record = await self.get_request(request_id)
        report(record.progress)  # the stream may be behind the notification
        tracing.current().event("notification received", {"dexorder.status": str(record.status)})
        return Ended(record, notification or _notification_of(record))

    async def get_request(self, request_id: str) -> RequestRecord:
        """Return the record of a request; RequestUnknown if there is none."""
        answer = await self._call(self._stub.GetRequest, pb.GetRequestRequest(request_id=request_id))
        return decode_record(answer.record)

    async def list_requests(
        self, client_id: str = "", *, state: RequestState | None = None, limit: int = 100
    ) -> list[RequestRecord]:
        """Return the newest records, newest first, optionally only those of a client or in a state."""
        wanted = pb.RequestState.Value(f"REQUEST_STATE_{state or RequestState.UNSPECIFIED}")
        request = pb.ListRequestsRequest(client_id=client_id, state=wanted)
        found: list[RequestRecord] = []
        while len(found) < limit:
            request.page_size = min(1_000, limit - len(found))
            answer = await self._call(self._stub.ListRequests, request)
            found += map(decode_record, answer.records)
            request.page_token = answer.next_page_token
            if not request.page_token:
                break
        return found

    async def cancel(self, request_id: str) -> RequestRecord:
        """End a request as ERROR "cancelled", unless it has ended. Return its record."""
        answer = await self._call(self._stub.CancelRequest, pb.CancelRequestRequest(request_id=request_id))
        return decode_record(answer.record)

    async def markets(self, venue: str) -> InstrumentList:
        """Return the instruments of a venue, as its ingestors last reported them; VenueUnknown if none has yet."""
        try:
            answer = await self._call(self._stub.ListMarkets, pb.ListMarketsRequest(exchange=venue))
        except errors.RequestUnknown as error:
            raise errors.VenueUnknown(f"venue {venue!r} is unknown: {error}") from None
        return decode_instruments(venue, answer)

    async def _notified(self, request_id: str, on_progress: OnProgress) -> Notification | None:
        """Return the notification, or None if it does not arrive within ``GRACE_SECONDS`` of the end."""
        listening = asyncio.create_task(self._first_notification(request_id))
        watching = asyncio.create_task(self._watch(request_id, on_progress))
        try:
            await asyncio.wait((listening, watching), return_when=asyncio.FIRST_COMPLETED)
            if not listening.done():
                await watching
                with suppress(TimeoutError):
                    async with asyncio.timeout(GRACE_SECONDS):
                        await asyncio.wait((listening,))
            return await listening if listening.done() else None
        finally:
            for task in (listening, watching):
                task.cancel()
            await asyncio.gather(listening, watching, return_exceptions=True)

    async def _watch(self, request_id: str, on_progress: OnProgress) -> None:
        request = pb.WatchProgressRequest(request_id=request_id)
        known = partial(self.get_request, request_id)
        async for message in self._connection.stream(self._stub.WatchProgress, request, known):
            progress = decode_progress(message.state, message.progress)
            on_progress(progress)
            if progress.state is RequestState.FINISHED:
                return

    async def _first_notification(self, request_id: str) -> Notification:
        # Every connection starts at cursor 0: the topic holds the end of one request, and duplicates do no harm.
        topic = f"HISTORY_READY:{request_id}"
        request = pb.SubscribeNotificationsRequest(topic=topic)
        known = partial(self.get_request, request_id)
        async for message in self._connection.stream(self._stub.SubscribeNotifications, request, known):
            notification = decode_notification(topic, message)
            if notification.request_id == request_id:
                return notification
        raise AssertionError("the stream of notifications never ends")


def _reporter(
    tickers: Sequence[str], on_progress: OnProgress | None, progress: bool | None
) -> Callable[[str, Progress], None]:
    """Return a function that is told the progress of a ticker, and shows it in a notebook."""
    view = ProgressView(tickers) if progress or (progress is None and is_notebook()) else None

    def report(ticker: str, now: Progress) -> None:
        if view is not None:
            view.update(ticker, now)
        if on_progress is not None:
            on_progress(now)

    return report


def without_repeats(callback: Callable[[T], None]) -> Callable[[T], None]:
    """Return a function that calls ``callback`` unless the value equals the last one."""
    last: T | None = None

    def call(value: T) -> None:
        nonlocal last
        if value != last:
            last = value
            callback(value)

    return call


def new_request_id() -> str:
    """Return a unique id."""
    return uuid.uuid4().hex


def _notification_of(record: RequestRecord) -> Notification:
    if record.outcome is None:
        raise errors.DexorderError(
            f"request {record.request_id} was announced as ended, but its record is not finished"
        )
    return Notification(f"HISTORY_READY:{record.request_id}", 0, record.request, record.outcome, TABLE)


def _not_ended(request_id: str, timeout: float | None) -> errors.WaitEnded:
    return errors.WaitEnded(f"request {request_id} did not end within {timeout:g} s; it continues under this id")
