"""RPCs for requests for history: each converts its message, calls the engine and converts the result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass

import structlog
from opentelemetry.trace import get_current_span

from dexorder_common.model.cursor import StreamStart
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.history import HistoryRequest, RequestState
from dexorder_common.rpc import history_messages as messages
from dexorder_common.rpc.common_messages import decode_cursor, encode_start
from dexorder_common.rpc.identity import current_caller
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as history_pb
from dexorder_protos.dexorder.relay.v1 import operator_service_pb2 as operator_pb
from dexorder_relay import access
from dexorder_relay.engine import RelayEngine
from dexorder_relay.reading.fetch_ohlc import Submit
from dexorder_relay.requests.queries import fitting, page_size, read_token

log = structlog.get_logger(__name__)
RECORDS_AT_ONCE = 100
"""Records of a page that are encoded before other calls have their turn."""


@dataclass(frozen=True)
class RequestRpcs:
    """RPCs for requests for history and their notifications."""

    engine: RelayEngine

    async def SubmitHistorical(
        self, request: ingest.SubmitHistoricalRequest, _: object
    ) -> history_pb.SubmitHistoricalResponse:
        """Accept a request; an invalid field is status INVALID in the answer, not a gRPC error."""
        submit = self.engine.submitter.submit
        answer = await self._submit(request.request_id, lambda: messages.decode_request(request), submit)
        return history_pb.SubmitHistoricalResponse(answer=answer)

    async def RefreshHistorical(
        self, request: operator_pb.RefreshHistoricalRequest, _: object
    ) -> operator_pb.RefreshHistoricalResponse:
        """Accept a request that fetches its whole range again."""
        given, submit = request.request, self.engine.submitter.submit
        answer = await self._submit(given.request_id, lambda: messages.decode_request(given, refresh=True), submit)
        return operator_pb.RefreshHistoricalResponse(answer=answer)

    async def SnapshotTickers(
        self, request: history_pb.SnapshotTickersRequest, _: object
    ) -> history_pb.SnapshotTickersResponse:
        """Accept a request for a snapshot of all tickers of an exchange."""
        submit = self.engine.submitter.submit_for_exchange
        answer = await self._submit(request.request_id, lambda: messages.decode_snapshot_request(request), submit)
        return history_pb.SnapshotTickersResponse(answer=answer)

    async def _submit(
        self, request_id: str, decode: Callable[[], HistoryRequest], submit: Submit
    ) -> ingest.SubmitResponse:
        caller = current_caller()
        answer = ingest.SubmitResponse(request_id=request_id)
        try:
            request = access.signed(caller, decode())
            new = await submit(request, caller)
        except InvalidRequest as error:
            answer.status = ingest.SubmitResponse.INVALID
            answer.error_message = str(error)
        else:
            answer.status = ingest.SubmitResponse.QUEUED if new else ingest.SubmitResponse.DUPLICATE
            answer.notification_topic = request.topics[-1]
        self.engine.context.metrics.submitted.labels(ingest.SubmitResponse.SubmitStatus.Name(answer.status)).inc()
        return answer

    async def StreamOhlc(
        self, request: history_pb.StreamOhlcRequest, _: object
    ) -> AsyncIterator[history_pb.StreamOhlcResponse]:
        """Submit a request in its older form and stream the rows once it has ended."""
        caller = current_caller()
        submitted = access.signed(caller, messages.decode_request(request.request))
        with self.engine.context.quotas.stream(caller):
            async with aclosing(self.engine.answers.pages(submitted, caller)) as pages:
                async for page in pages:
                    yield history_pb.StreamOhlcResponse(page=page)

    async def GetRequest(self, request: history_pb.GetRequestRequest, _: object) -> history_pb.GetRequestResponse:
        """Return one record."""
        record = access.seen(current_caller(), await self.engine.queries.record(request.request_id))
        return history_pb.GetRequestResponse(record=messages.encode_record(record))

    async def ListRequests(self, request: history_pb.ListRequestsRequest, _: object) -> history_pb.ListRequestsResponse:
        """Return a page of records; the token is the sequence number of its last one."""
        size = page_size(request.page_size)
        state = RequestState.from_number(request.state) if request.state else None
        client_id = access.listed(current_caller(), request.client_id)
        records = await self.engine.queries.records(client_id, state, read_token(request.page_token), size)
        encoded = list[history_pb.RequestRecord]()
        for first in range(0, len(records), RECORDS_AT_ONCE):
            encoded += map(messages.encode_record, records[first : first + RECORDS_AT_ONCE])
            await asyncio.sleep(0)
        page = fitting(encoded)  # ranges that are missing may take many bytes
        is_last = len(page) == len(records) < size
        return history_pb.ListRequestsResponse(
            records=page, next_page_token="" if is_last or not page else str(records[len(page) - 1].sequence)
        )

    async def CancelRequest(
        self, request: history_pb.CancelRequestRequest, _: object
    ) -> history_pb.CancelRequestResponse:
        """End a request; one that has ended keeps its status."""
        self.engine.context.store.check_space()
        await self._check_seen(request.request_id)
        access.check_may_cancel(current_caller(), (await self.engine.queries.record(request.request_id)).request)
        await self.engine.completion.cancel(request.request_id)
        record = await self.engine.queries.record(request.request_id)
        return history_pb.CancelRequestResponse(record=messages.encode_record(record))

    async def WatchProgress(
        self, request: history_pb.WatchProgressRequest, _: object
    ) -> AsyncIterator[history_pb.WatchProgressResponse]:
        """Stream state and progress until FINISHED."""
        await self._check_seen(request.request_id)
        with self.engine.context.quotas.stream(current_caller()):
            async with aclosing(self.engine.queries.watch(request.request_id)) as changes:
                async for progress in changes:
                    yield history_pb.WatchProgressResponse(
                        state=messages.encode_state(progress.state), progress=messages.encode_progress(progress)
                    )

    async def WatchNotifications(
        self, request: history_pb.WatchNotificationsRequest, _: object
    ) -> AsyncIterator[history_pb.WatchNotificationsResponse]:
        """Stream a topic's notifications after a cursor, without end."""
        after = decode_cursor(request.after) if request.HasField("after") else None
        caller = current_caller()
        form, _, name = request.topic.partition(":")
        if form == "RESPONSE":
            access.listed(caller, name)
        elif form == "HISTORY_READY":
            await self._check_seen(name)
        with self.engine.context.quotas.stream(caller):
            async with aclosing(self.engine.queries.notifications(request.topic, after)) as found:
                async for item in found:
                    if isinstance(item, StreamStart):
                        field = "reset" if item.is_reset else "opened"
                        yield history_pb.WatchNotificationsResponse(**{field: encode_start(item)})  # type: ignore[arg-type]
                    elif access.sees(caller, item.request):  # a forgotten id may be used by another client
                        get_current_span().add_event("notification sent", {"dexorder.request_id": item.request_id})
                        yield history_pb.WatchNotificationsResponse(notification=messages.encode_notification(item))

    async def _check_seen(self, request_id: str) -> None:
        """Raise NotFound for a request of another client."""
        if (caller := current_caller()) is not None:
            access.seen(caller, await self.engine.queries.record(request_id))
