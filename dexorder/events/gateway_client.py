"""The gateway's gRPC services of user events, as people and programs beside the containers call them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from pydantic import SecretStr

from dexorder.errors import DexorderError
from dexorder.events.errors import GatewayRefused, GatewayUnreachable
from services.common.config import BadSettings, read_settings
from services.common.model.errors import Code
from services.common.rpc.channel import ChannelSettings, open_channel
from services.common.rpc.client_retry import Failure, code_of, details_of, error_text, failure_of
from services.gen.dexorder.events.v1 import event_service_pb2 as pb
from services.gen.dexorder.events.v1 import event_service_pb2_grpc as rpc
from services.gen.dexorder.events.v1 import user_events_pb2 as given

DEFAULT_GATEWAY = "127.0.0.1:50053"
CALL_SECONDS = 10.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 5.0
Handle = Callable[[pb.SubscribeResponse, pb.Cursor], bool]


def gateway_address(asked: str | None) -> str:
    """host:port: the given one, else ``DEXORDER_GATEWAY_ADDRESS``, else 127.0.0.1:50053."""
    return asked or os.environ.get("DEXORDER_GATEWAY_ADDRESS") or DEFAULT_GATEWAY


@asynccontextmanager
async def _channel(address: str, token: str | None = None) -> AsyncIterator[grpc.aio.Channel]:
    """A channel whose calls carry a user's JWT, if one is given, else who we are by the settings."""
    try:
        given_token = {} if token is None else {"token": SecretStr(token)}
        channel = open_channel(address, read_settings(ChannelSettings, **given_token))
    except (BadSettings, ValueError, OSError) as error:
        raise DexorderError(f"can't connect to {address}: {error}") from None
    async with channel:
        try:
            yield channel
        except grpc.aio.AioRpcError as error:
            raise _translated(address, error) from None


def _translated(address: str, error: grpc.aio.AioRpcError) -> DexorderError:
    code = code_of(error)
    if code is Code.UNAVAILABLE:
        return GatewayUnreachable(
            f"the gateway at {address} does not answer ({details_of(error)}); is it running, or elsewhere: "
            "--gateway or DEXORDER_GATEWAY_ADDRESS?",
            code,
        )
    if code is Code.UNIMPLEMENTED:
        return GatewayRefused(
            f"the gateway at {address} serves no user events: DEXORDER_EVENTS_DB is not set there", code
        )
    return GatewayRefused(f"the gateway at {address} answered {error_text(error)}", code)


async def get_event(address: str, container: str, event_id: str) -> pb.EventRecord:
    """What became of an event.

    Raises:
        GatewayRefused: There is none, or we may not ask.
    """
    async with _channel(address) as channel:
        request = pb.GetEventRequest(container=container, event_id=event_id)
        stub: Any = rpc.EventLogServiceStub(channel)
        return (await stub.GetEvent(request, timeout=CALL_SECONDS)).record  # type: ignore[no-any-return]


async def list_events(address: str, request: pb.ListEventsRequest, most: int) -> list[pb.EventRecord]:
    """The newest events that a request asks for, newest first, at most ``most``."""
    found: list[pb.EventRecord] = []
    async with _channel(address) as channel:
        stub: Any = rpc.EventLogServiceStub(channel)
        while len(found) < most:
            request.page_size = min(1_000, most - len(found))
            answer = await stub.ListEvents(request, timeout=CALL_SECONDS)
            found += answer.records
            request.page_token = answer.next_page_token
            if not request.page_token:
                break
    return found


async def publish(address: str, event: given.UserEvent) -> AsyncGenerator[given.EventAck, None]:
    """Publish an event over gRPC; its acks, the last of which is final."""
    async with _channel(address) as channel:
        stub: Any = rpc.EventPublisherServiceStub(channel)
        call = stub.PublishMany()
        try:
            await call.write(pb.PublishManyRequest(event=event))
            async for answer in call:
                yield answer.ack
                if answer.ack.status != given.QUEUED:
                    return
        finally:
            call.cancel()


async def follow(
    address: str,
    token: Callable[[], str],
    cursor: pb.Cursor | None,
    handle: Handle,
    *,
    client_name: str,
    receive: bool,
    on_note: Callable[[str], None],
) -> None:
    """A user's session, opened again where it was whenever it breaks, until ``handle`` has enough.

    Args:
        token: Gives the user's JWT; asked for anew at each connection, since JWTs are short-lived.
        cursor: What was received before; None begins with what still waits.
        handle: Given each message, once, with the cursor behind it; whether there shall be more.
        receive: Ack each event after ``handle``; else whoever looks only looks.
        on_note: Told when the session breaks, and why.

    Raises:
        GatewayRefused: The token is not good, though it is fresh, or the session is not possible.
    """
    place, pause, opened = cursor, FIRST_PAUSE_SECONDS, False
    while True:
        try:
            async with _channel(address, token()) as channel:
                stub: Any = rpc.EventServiceStub(channel)
                async for message in stub.Subscribe(pb.SubscribeRequest(cursor=place, client_name=client_name)):
                    place, opened, pause = _behind(message, place), True, FIRST_PAUSE_SECONDS
                    more = handle(message, place)
                    if receive and message.event.sequence:
                        ack = pb.AckRequest(place=place, kind=pb.ACK_KIND_RECEIVED)
                        await stub.Ack(ack, timeout=CALL_SECONDS)
                    if not more:
                        return
                on_note("the session has ended")
        except (GatewayUnreachable, GatewayRefused) as error:
            # A session ends with its token, so one that was open goes on with a fresh one.
            expired = opened and error.code is Code.UNAUTHENTICATED
            if failure_of(error.code) not in (Failure.UNANSWERED, Failure.OVERLOADED) and not expired:
                raise
            opened = False
            on_note(str(error))
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def _behind(message: pb.SubscribeResponse, place: pb.Cursor | None) -> pb.Cursor:
    """The cursor after a message; an event of the fast path has no place and moves nothing."""
    if message.HasField("opened"):
        return message.opened.cursor
    if message.HasField("reset"):
        return message.reset.cursor
    assert place is not None, "a session begins with opened or reset"
    return pb.Cursor(epoch=place.epoch, sequence=message.event.sequence or place.sequence)
