"""Events over gRPC from services that do not speak ZMQ, with the guarantees of port 5571."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from services.common.model.errors import Unavailable
from services.common.model.user_events import Status
from services.common.rpc.identity import current_caller
from services.common.rpc.streams import beside, until
from services.gateway.events.dispatcher.port import DispatcherPort
from services.gateway.events.ingress.acks import Ack
from services.gateway.events.ingress.containers import Container, Containers
from services.gen.dexorder.events.v1 import event_service_pb2 as pb
from services.gen.dexorder.events.v1 import event_service_pb2_grpc as rpc
from services.gen.dexorder.events.v1 import user_events_pb2 as given

Context = grpc.aio.ServicerContext[Any, Any]
MOST_UNANSWERED = 1_000
"""Most events of a stream that are not on disk yet; then no more is read of it."""
MOST_UNREAD = 10_000
"""Most acks that a stream's caller has not read; then no more is read of it."""


class EventPublisherService(rpc.EventPublisherServiceServicer):
    """Hands events to the dispatcher; made on the event loop that serves."""

    def __init__(self, dispatcher: DispatcherPort, containers: Callable[[], Containers]) -> None:
        self._dispatcher = dispatcher
        self._containers = containers
        self._stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def stop_taking(self) -> None:
        """From now on events are refused; streams end when what they brought so far is answered."""
        if not self._stopping.done():
            self._stopping.set_result(None)

    async def Publish(self, request: pb.PublishRequest, context: Context) -> pb.PublishResponse:  # noqa: N802
        """One event; its state once that is on disk."""
        self._refuse_if_stopping()
        answered: asyncio.Future[Ack] = asyncio.get_running_loop().create_future()

        def answer(ack: Ack) -> None:
            if not answered.done():  # the end of the event comes later, and the caller is gone
                answered.set_result(ack)

        self._dispatcher.publish(self._container(), body_of(request.event), answer)
        return pb.PublishResponse(ack=(await answered).proto())

    async def PublishMany(  # type: ignore[override]  # noqa: N802
        self, request_iterator: AsyncIterator[pb.PublishManyRequest], context: Context
    ) -> AsyncIterator[list[bytes]]:
        """Many events; lists of serialized answers, as `server_interceptor` takes them."""
        self._refuse_if_stopping()
        stream = PublishStream()
        try:
            async with beside(self._publish_all(request_iterator, stream)):
                while acks := await stream.next():
                    yield [pb.PublishManyResponse(ack=ack.proto()).SerializeToString() for ack in acks]
        finally:
            stream.close()

    async def _publish_all(self, requests: AsyncIterator[pb.PublishManyRequest], stream: PublishStream) -> None:
        """Until there are no more; the stream is told what ended them."""
        try:
            self._container()
            async for request in until(self._stopping, requests):
                await stream.admit()
                # each time: a container that was taken out of the file must not go on for as long as its stream lasts
                self._dispatcher.publish(self._container(), body_of(request.event), stream.answerer())
        except Exception as error:
            stream.fail(error)
        else:
            stream.end(Unavailable("the gateway is stopping") if self._stopping.done() else None)

    def _container(self) -> Container:
        caller = current_caller()
        return self._containers().publisher(caller.client_id if caller else None)

    def _refuse_if_stopping(self) -> None:
        if self._stopping.done():
            raise Unavailable("the gateway is stopping")


def body_of(event: given.UserEvent) -> bytes:
    """The bytes that make a repeat a repeat: the same for the same event, however it was encoded."""
    return event.SerializeToString(deterministic=True)


class PublishStream:
    """A PublishMany stream between its requests and its answers; one task brings, another takes."""

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
        """Returns when one more event may be taken."""
        while self._unanswered >= MOST_UNANSWERED or len(self._acks) >= MOST_UNREAD:
            self._room.clear()
            await self._room.wait()

    def answerer(self) -> Callable[[Ack], None]:
        """Where the answers to one more event go: its state now, and its end if that is later."""
        self._unanswered += 1
        first = True

        def answer(ack: Ack) -> None:
            nonlocal first
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
        """No more events come: the stream lasts until all are final; with an error until all are answered."""
        self._ended = True
        self._last = after
        self._changed.set()

    def fail(self, error: Exception) -> None:
        """The stream ends now."""
        self._failure = error
        self._changed.set()

    def close(self) -> None:
        """The caller is gone."""
        self._closed = True
        self._acks = []
        self._open = set()

    async def next(self) -> list[Ack]:
        """The next answers, at least one; none when the stream is over.

        Raises:
            Exception: What ``fail`` or ``end`` was told.
        """
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
