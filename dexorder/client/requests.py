"""Requests as a client sees them, ``client.requests``: submit, follow, list, cancel.

Every call is retried while the relay can't be reached, for up to ``patience_seconds``. A submission may be repeated
because its ``request_id`` makes it idempotent. Streams are resumed after a restart of the relay, so a request that is
QUEUED is followed to its end across restarts.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, get_current_span

from dexorder import errors
from dexorder.client.connection import RelayConnection
from dexorder_common import tracing
from dexorder_common.model.cursor import Cursor
from dexorder_common.model.errors import Code
from dexorder_common.model.history import (
    HistoryRequest,
    Notification,
    Progress,
    RequestRecord,
    RequestState,
    RequestStatus,
)
from dexorder_common.rpc.common_messages import encode_cursor
from dexorder_common.rpc.history_messages import (
    decode_notification,
    decode_progress,
    decode_record,
    encode_request,
)
from dexorder_common.tracing import Attributes
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as pb
from dexorder_protos.dexorder.relay.v1 import operator_service_pb2 as operator_pb

GRACE_SECONDS = 10.0
"""Longest wait for the notification after the progress stream has reported the end."""
HISTORY = "dexorder.history"
"""Name of the span of a history, from its submission to its rows; docs/tracing.md has the whole tree."""
T = TypeVar("T")
OnProgress = Callable[[Progress], None]
_RAISES = {
    RequestStatus.NOT_FOUND: errors.HistoryNotFound,
    RequestStatus.ERROR: errors.HistoryFailed,
    RequestStatus.TIMEOUT: errors.HistoryTimedOut,
}


@dataclass(frozen=True)
class Ended:
    """A request that has ended, with any status."""

    record: RequestRecord
    notification: Notification


def history_error(record: RequestRecord) -> errors.HistoryError:
    """Return the error for a record with a status other than OK."""
    assert record.status is not None and record.status is not RequestStatus.OK
    return _RAISES[record.status](f"request {record.request_id} ended {record.status}: {record.reason()}", record)


class AsyncRequests:
    """Requests of one relay, for asyncio."""

    def __init__(self, connection: RelayConnection) -> None:
        self._connection = connection
        self._call = connection.call
        self._stub = connection.stub

    async def notifications(self, topic: str, *, after: Cursor | None = None) -> AsyncGenerator[Notification, None]:
        """Yield the notifications of a topic, stored ones and new ones, in order, without end.

        The stream is opened again behind the last one whenever it breaks. Store ``notification.cursor`` to resume. If
        the relay can't resume there because its database was restored, a note says so and all stored ones follow. A
        notification may then come twice, but all of them come.

        Args:
            topic: ``RESPONSE:{client_id}`` for the ends of all requests of a client, ``HISTORY_READY:{request_id}``,
                or ``REVISED:{ticker}`` for candles that turned up later.
            after: Cursor of the last notification that is known; None for all that are stored.

        Raises:
            NotAllowed: The topic is another client's.
            RelayUnreachable: The relay did not answer for ``patience_seconds``.
        """
        request = pb.WatchNotificationsRequest(topic=topic, after=encode_cursor(after))
        call = self._stub.history.WatchNotifications
        async with aclosing(self._connection.resumed(call, request, "notification")) as found:
            async for message in found:
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
            answer = await self._call(
                self._stub.operator.RefreshHistorical, operator_pb.RefreshHistoricalRequest(request=message)
            )
        else:
            answer = await self._call(self._stub.history.SubmitHistorical, message)
        return await self._accepted(answer.answer)

    async def _accepted(self, answer: ingest_pb2.SubmitResponse) -> str:
        """Return the topic of an accepted request; RequestRefused has the reason of another answer."""
        if answer.status in (ingest_pb2.SubmitResponse.QUEUED, ingest_pb2.SubmitResponse.DUPLICATE):
            return str(answer.notification_topic)
        status = ingest_pb2.SubmitResponse.SubmitStatus.Name(answer.status)
        text = f"the relay answered {status}: {answer.error_message}"
        raise await self._connection.answer_error(Code.INVALID_ARGUMENT, text)

    async def snapshot_tickers(
        self, venue: str, *, request_id: str | None = None, client_id: str = "", timeout: float | None = None
    ) -> Ended:
        """Take a snapshot of all tickers of an exchange, and wait until it is stored; the errors of ``submit``.

        WaitEnded: ``timeout`` seconds passed; the request continues.
        """
        name = request_id or f"tickers-{uuid.uuid4().hex}"
        request = pb.SnapshotTickersRequest(request_id=name, exchange=venue, client_id=client_id or None)
        try:
            async with asyncio.timeout(timeout):
                await self._accepted((await self._call(self._stub.history.SnapshotTickers, request)).answer)
                return await self.wait(name)
        except TimeoutError:
            raise errors.WaitEnded(
                f"no snapshot of {venue} within {timeout:g} s; if the relay has accepted request {name}, it continues"
            ) from None

    async def wait(
        self, request_id: str, *, on_progress: OnProgress | None = None, timeout: float | None = None
    ) -> Ended:
        """Follow a request until its notification. The last call of ``on_progress`` has the progress of the record.

        Without ``on_progress`` the relay sends no progress, which takes a stream and several messages a request.

        Raises:
            WaitEnded: ``timeout`` seconds passed.
            RequestUnknown: No request has this id.
        """
        report = without_repeats(on_progress or (lambda _: None))
        notification: Notification | None
        try:
            async with asyncio.timeout(timeout):
                if on_progress is None:
                    notification = await self._notified_only(request_id)
                else:
                    notification = await self._notified(request_id, report)
        except TimeoutError:
            raise _not_ended(request_id, timeout) from None
        record = await self.get(request_id)
        report(record.progress)  # the stream may be behind the notification
        get_current_span().add_event("notification received", {"dexorder.status": str(record.status)})
        return Ended(record, notification) if notification else ended_by(record)

    async def get(self, request_id: str) -> RequestRecord:
        """Return the record of a request; RequestUnknown for an unknown id."""
        answer = await self._call(self._stub.history.GetRequest, pb.GetRequestRequest(request_id=request_id))
        return decode_record(answer.record)

    async def list(
        self, client_id: str = "", *, state: RequestState | None = None, limit: int = 100
    ) -> list[RequestRecord]:
        """Return the newest records, newest first, optionally only of a client or in a state."""
        wanted = pb.RequestState.Value(f"REQUEST_STATE_{state or RequestState.UNSPECIFIED}")
        request = pb.ListRequestsRequest(client_id=client_id, state=wanted)
        found: list[RequestRecord] = []
        while len(found) < limit:
            request.page_size = min(1_000, limit - len(found))
            answer = await self._call(self._stub.history.ListRequests, request)
            found += map(decode_record, answer.records)
            request.page_token = answer.next_page_token
            if not request.page_token:
                break
        return found

    async def cancel(self, request_id: str) -> RequestRecord:
        """End a request as ERROR "cancelled", unless it has ended. Return its record."""
        answer = await self._call(self._stub.history.CancelRequest, pb.CancelRequestRequest(request_id=request_id))
        return decode_record(answer.record)

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

    async def _notified_only(self, request_id: str) -> Notification | None:
        """Return the same, without progress: the record is read instead, seldom."""
        listening, has_ended = asyncio.create_task(self._first_notification(request_id)), False
        try:
            while not has_ended:
                has_ended = (await self.get(request_id)).progress.state is RequestState.FINISHED
                await asyncio.wait((listening,), timeout=GRACE_SECONDS)
                if listening.done():
                    return await listening
            return None
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _watch(self, request_id: str, on_progress: OnProgress) -> None:
        request = pb.WatchProgressRequest(request_id=request_id)
        known = partial(self.get, request_id)
        async for message in self._connection.stream(self._stub.history.WatchProgress, request, known):
            progress = decode_progress(message.state, message.progress)
            on_progress(progress)
            if progress.state is RequestState.FINISHED:
                return

    async def _first_notification(self, request_id: str) -> Notification:
        topic = f"HISTORY_READY:{request_id}"
        request = pb.WatchNotificationsRequest(topic=topic)
        known = partial(self.get, request_id)
        call = self._stub.history.WatchNotifications
        async for message in self._connection.resumed(call, request, "notification", known):
            notification = decode_notification(topic, message)
            if notification.request_id == request_id:
                return notification
        raise AssertionError("the stream of notifications never ends")


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


def history_span(request: HistoryRequest) -> AbstractContextManager[Span]:
    """Return the span of a history; it starts a trace unless the application has started one."""
    attributes: Attributes = {
        "dexorder.request_id": request.request_id,
        "dexorder.ticker": request.ticker,
        "dexorder.period_seconds": request.period_seconds,
        "dexorder.start_ns": request.start_ns,
        "dexorder.end_ns": request.end_ns,
    }
    return tracing.span(HISTORY, SpanKind.INTERNAL, attributes, root=True)


def fetch_span(request: HistoryRequest) -> AbstractContextManager[Span]:
    """Return the span of a request that is submitted and followed: a new one only outside a trace."""
    return nullcontext(INVALID_SPAN) if get_current_span().is_recording() else history_span(request)


def histories_span(requests: Sequence[HistoryRequest]) -> AbstractContextManager[Span]:
    """Return the span of many histories, whose calls they share."""
    return tracing.span(HISTORY, SpanKind.INTERNAL, {"dexorder.requests": len(requests)}, root=True)


def ended_by(record: RequestRecord) -> Ended:
    """Return the end that a record tells; DexorderError if it has none."""
    if record.outcome is None:
        raise errors.DexorderError(
            f"request {record.request_id} was announced as ended, but its record is not finished"
        )
    table, topic = record.request.dataset.table, f"HISTORY_READY:{record.request_id}"
    return Ended(record, Notification(topic, None, record.request, record.outcome, table))


def _not_ended(request_id: str, timeout: float | None) -> errors.WaitEnded:
    return errors.WaitEnded(f"request {request_id} did not end within {timeout:g} s; it continues under this id")
