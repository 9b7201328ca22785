"""Client of the gateway's gRPC services of user events, for the command line and other programs than containers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc
from pydantic import SecretStr

from dexorder.errors import DexorderError, GatewayRefused, GatewayUnreachable
from dexorder_common.config import BadSettings, read_settings
from dexorder_common.model.errors import Code
from dexorder_common.rpc.channel import ChannelSettings, open_channel
from dexorder_common.rpc.client_retry import Failure, code_of, details_of, error_text, failure_of, is_failure
from dexorder_common.rpc.streams import StreamSilent, unless_silent
from dexorder_protos.dexorder.events.v1 import event_service_pb2 as pb
from dexorder_protos.dexorder.events.v1 import event_service_pb2_grpc as rpc
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as given

CALL_SECONDS = 10.0
FIRST_PAUSE_SECONDS = 0.2
MAX_PAUSE_SECONDS = 5.0


@asynccontextmanager
async def _channel(address: str, token: str | None = None) -> AsyncIterator[grpc.aio.Channel]:
    """Open a channel with a user's JWT, or with the identity of the settings if ``token`` is None."""
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
    if is_failure(error, Failure.UNANSWERED):
        details = details_of(error)
        reason = "nothing listens there" if "Connection refused" in details else details
        return GatewayUnreachable(
            f"the gateway at {address} does not answer: {reason}; start it, or give its address with "
            "--gateway or DEXORDER_GATEWAY_ADDRESS",
            code,
        )
    if code is Code.UNIMPLEMENTED:
        return GatewayRefused(
            f"the gateway at {address} does not serve user events; set DEXORDER_EVENTS_DB there", code
        )
    return GatewayRefused(f"the gateway at {address} answered {error_text(error)}", code)


async def get_event(address: str, container: str, event_id: str) -> pb.EventRecord:
    """Return the record of an event.

    Raises:
        GatewayRefused: There is no such event, or the caller may not read it.
    """
    async with _channel(address) as channel:
        request = pb.GetEventRequest(container=container, event_id=event_id)
        stub: Any = rpc.EventLogServiceStub(channel)
        return (await stub.GetEvent(request, timeout=CALL_SECONDS)).record  # type: ignore[no-any-return]


async def list_events(address: str, request: pb.ListEventsRequest, limit: int) -> list[pb.EventRecord]:
    """Return the records that match a request, newest first, at most ``limit``."""
    found: list[pb.EventRecord] = []
    async with _channel(address) as channel:
        stub: Any = rpc.EventLogServiceStub(channel)
        while len(found) < limit:
            request.page_size = min(1_000, limit - len(found))
            answer = await stub.ListEvents(request, timeout=CALL_SECONDS)
            found += answer.records
            request.page_token = answer.next_page_token
            if not request.page_token:
                break
    return found


async def publish(address: str, event: given.UserEvent) -> AsyncGenerator[given.EventAck, None]:
    """Publish an event over gRPC and yield its acks; the last one is final.

    A stream that breaks is opened again for the same event, which the gateway knows by its id.

    Raises:
        GatewayRefused: The gateway refuses the call.
        GatewayUnreachable: It can't be reached, or does not answer.
    """
    pause, last = FIRST_PAUSE_SECONDS, None
    while True:
        try:
            async with _channel(address) as channel, aclosing(_acks(channel, event)) as acks:
                async for ack in acks:
                    if ack != last:
                        yield ack
                    last, pause = ack, FIRST_PAUSE_SECONDS
                    if ack.status != given.QUEUED:
                        return
        except StreamSilent as silent:
            raise GatewayUnreachable(f"the gateway at {address} does not answer ({silent})", Code.UNAVAILABLE) from None
        except GatewayUnreachable as error:
            if last is None and error.code is Code.UNAVAILABLE:  # another code is of a stream that was open
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, MAX_PAUSE_SECONDS)


async def _acks(channel: grpc.aio.Channel, event: given.UserEvent) -> AsyncGenerator[given.EventAck, None]:
    stub: Any = rpc.EventPublisherServiceStub(channel)
    call = stub.PublishMany()
    try:
        await call.write(pb.PublishManyRequest(event=event))
        async with aclosing(unless_silent(call)) as answers:
            async for answer in answers:
                yield answer.ack
    finally:
        call.cancel()


async def follow(
    address: str,
    token: Callable[[], str],
    cursor: pb.Cursor | None,
    handle: Callable[[pb.WatchEventsResponse, pb.Cursor], bool],
    *,
    client_name: str,
    receive: bool,
    on_note: Callable[[str], None],
) -> None:
    """Follow a user's session, which is resumed whenever it breaks, until ``handle`` returns False.

    Args:
        token: Returns the user's JWT; called for each connection, because JWTs are short-lived.
        cursor: Last position received; None starts with the events that still wait.
        handle: Called once for each message with the cursor after it; returns whether to continue.
        receive: Acknowledge each event after ``handle``; otherwise the session only observes.
        on_note: Called with the reason when the session breaks.

    Raises:
        GatewayRefused: A new token is not accepted, or the session is refused.
    """
    pause = FIRST_PAUSE_SECONDS
    opened = False
    while True:
        try:
            async with _channel(address, token()) as channel:
                stub: Any = rpc.EventServiceStub(channel)
                call = stub.WatchEvents(pb.WatchEventsRequest(cursor=cursor, client_name=client_name))
                async with aclosing(unless_silent(call)) as messages:
                    async for message in messages:
                        cursor = _cursor_after(message, cursor)
                        opened = True
                        pause = FIRST_PAUSE_SECONDS
                        more = handle(message, cursor)
                        if receive and message.event.sequence:
                            ack = pb.AckEventRequest(cursor=cursor, kind=pb.ACK_KIND_RECEIVED)
                            await stub.AckEvent(ack, timeout=CALL_SECONDS)
                        if not more:
                            return
                on_note("the session has ended")
        except StreamSilent as silent:
            on_note(f"the session at {address} is silent ({silent})")
        except GatewayRefused as error:
            # A session ends with its token, so one that was open continues with a new token.
            expired = opened and error.code is Code.UNAUTHENTICATED
            unreachable = isinstance(error, GatewayUnreachable)
            if not unreachable and failure_of(error.code) is not Failure.OVERLOADED and not expired:
                raise
            opened = False
            on_note(str(error))
        await asyncio.sleep(pause)
        pause = min(2 * pause, MAX_PAUSE_SECONDS)


def _cursor_after(message: pb.WatchEventsResponse, cursor: pb.Cursor | None) -> pb.Cursor:
    """Return the cursor after a message; an event of the fast path lacks a sequence and leaves the cursor unchanged."""
    if message.HasField("opened"):
        return message.opened.cursor
    if message.HasField("reset"):
        return message.reset.cursor
    assert cursor is not None, "a session begins with opened or reset"
    return pb.Cursor(epoch=cursor.epoch, sequence=message.event.sequence or cursor.sequence)
