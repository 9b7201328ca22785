"""gRPC service that accepts events, with the guarantees of port 5571."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from dexorder_common.model.errors import Exhausted, SuiteError, Unavailable
from dexorder_common.model.user_events import Status
from dexorder_common.rpc.identity import current_caller
from dexorder_common.rpc.streams import beside, until
from dexorder_gateway.events.dispatcher.port import DispatcherPort
from dexorder_gateway.events.event_codec import ack_message
from dexorder_gateway.events.ingress.containers import Container, Containers
from dexorder_gateway.events.model import HELD, Ack
from dexorder_protos.dexorder.events.v1 import event_service_pb2 as pb
from dexorder_protos.dexorder.events.v1 import event_service_pb2_grpc as rpc
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as given

Context = grpc.aio.ServicerContext[Any, Any]
MAX_UNANSWERED = 1_000
"""Limit of a stream's events that are not on disk yet; at the limit the stream is not read."""
RETRY_SECONDS = 5.0
"""Wait that a call with a CRITICAL event above the limit is told."""
MAX_UNREAD = 10_000
"""Limit of acks that a stream's caller has not read; at the limit the stream is not read."""


class EventPublisherService(rpc.EventPublisherServiceServicer):
    """Service that hands events to the dispatcher; created on the event loop that serves it."""

    def __init__(self, dispatcher: DispatcherPort, containers: Callable[[], Containers]) -> None:
        self._dispatcher = dispatcher
        self._containers = containers
        self._stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting: set[asyncio.Future[Ack]] = set()
        self._streams: set[PublishStream] = set()
        dispatcher.on_full.append(self._refuse_waiting)

    def stop_taking(self) -> None:
        """Refuse new events; streams end when their events so far are answered."""
        if not self._stopping.done():
            self._stopping.set_result(None)

    async def Publish(self, request: pb.PublishRequest, context: Context) -> pb.PublishResponse:  # noqa: N802
        """Accept one event; answers with its state when that is on disk."""
        self._refuse_if_stopping()
        answered: asyncio.Future[Ack] = asyncio.get_running_loop().create_future()

        def answer(ack: Ack) -> None:
            if answered.done():  # the final ack comes after the call has ended
                return
            if not ack.taken:
                answered.set_exception(held())
            else:
                answered.set_result(ack)

        self._dispatcher.publish(self._container(), body_of(request.event), answer)
        self._waiting.add(answered)
        try:
            return pb.PublishResponse(ack=ack_message(await answered))
        finally:
            self._waiting.discard(answered)

    async def PublishMany(  # type: ignore[override]  # noqa: N802
        self, request_iterator: AsyncIterator[pb.PublishManyRequest], context: Context
    ) -> AsyncIterator[list[bytes]]:
        """Accept a stream of events; yields lists of serialized responses, as `server_interceptor` accepts them."""
        self._refuse_if_stopping()
        stream = PublishStream()
        self._streams.add(stream)
        try:
            async with beside(self._publish_all(request_iterator, stream)):
                while acks := await stream.next():
                    yield [pb.PublishManyResponse(ack=ack_message(ack)).SerializeToString() for ack in acks]
        finally:
            self._streams.discard(stream)
            stream.close()

    async def _publish_all(self, requests: AsyncIterator[pb.PublishManyRequest], stream: PublishStream) -> None:
        """Publish until the requests end; the reason ends the stream."""
        try:
            self._container()
            async for request in until(self._stopping, requests):
                await stream.admit()
                # looked up each time: a container removed from the file must not continue on its open stream
                self._dispatcher.publish(self._container(), body_of(request.event), stream.answerer())
        except Exception as error:
            stream.fail(error)
        else:
            stream.end(Unavailable("the gateway is stopping") if self._stopping.done() else None)

    def _refuse_waiting(self, refusal: SuiteError) -> None:
        for answered in self._waiting:
            if not answered.done():
                answered.set_exception(refusal)
        for stream in self._streams:
            stream.fail(refusal)

    def _container(self) -> Container:
        caller = current_caller()
        return self._containers().publisher(caller.client_id if caller else None)

    def _refuse_if_stopping(self) -> None:
        if self._stopping.done():
            raise Unavailable("the gateway is stopping")


def held() -> Exhausted:
    """Return the status of a call with a CRITICAL event above the limit."""
    return Exhausted(HELD, retry_seconds=RETRY_SECONDS)


def body_of(event: given.UserEvent) -> bytes:
    """Return the bytes by which duplicates are recognized: the same for each encoding of an event."""
    return event.SerializeToString(deterministic=True)


class PublishStream:
    """State of a PublishMany stream, shared by the task that reads requests and the one that writes answers."""

    def __init__(self) -> None:
        self._unanswered = 0
        self._open: set[str] = set()
        self._acks: list[Ack] = []
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._ended = self._closed = False
        self._failure: Exception | None = None
        self._last: Exception | None = None

    async def admit(self) -> None:
        """Wait until one more event may be accepted."""
        while self._unanswered >= MAX_UNANSWERED or len(self._acks) >= MAX_UNREAD:
            self._room.clear()
            await self._room.wait()

    def answerer(self) -> Callable[[Ack], None]:
        """Return the callback for one more event's acks: the first one, and the final one if it comes later."""
        self._unanswered += 1
        first = True

        def answer(ack: Ack) -> None:
            nonlocal first
            if not ack.taken:
                self.fail(held())
                return
            if first:
                first = False
                self._unanswered -= 1
            if self._closed:
                return
            if ack.status is Status.QUEUED:
                self._open.add(ack.event_id)
            else:
                self._open.discard(ack.event_id)
            self._acks.append(ack)
            self._changed.set()
            self._room.set()

        return answer

    def end(self, after: Exception | None) -> None:
        """End the requests. The stream ends when all events are final; with an error, when all are answered."""
        self._ended = True
        self._last = after
        self._changed.set()

    def fail(self, error: Exception) -> None:
        """End the stream at once."""
        self._failure = error
        self._changed.set()

    def close(self) -> None:
        """Drop the acks of a caller that has disconnected."""
        self._closed = True
        self._acks = []
        self._open = set()

    async def next(self) -> list[Ack]:
        """Return the next acks, none at the end of the stream; raise the error given to ``fail`` or ``end``."""
        while not self._acks:
            if self._failure:
                raise self._failure
            if self._ended and not self._unanswered:
                if self._last:
                    raise self._last
                if not self._open:
                    return []
            self._changed.clear()
            await self._changed.wait()
        acks = self._acks
        self._acks = []
        self._room.set()
        return acks
