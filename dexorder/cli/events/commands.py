"""Commands of ``dexorder events``: tail, send, show, list, token."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import aclosing
from pathlib import Path
from typing import Any

from dexorder.cli.events.text import STATUSES as STATUSES
from dexorder.cli.events.text import ack_json, event_line, record_cells, record_json, record_lines, shown_json
from dexorder.cli.terminal import output
from dexorder.errors import DexorderError, RequestRefused, WaitEnded
from dexorder.events import gateway_client
from dexorder.events.event_builder import build_event
from dexorder.events.outcomes import FinalStatus, Outcome
from dexorder.events.publisher import Publisher
from dexorder.supervisor.state import EVENTS_FAST, EVENTS_GUARANTEED, GATEWAY, address_of
from dexorder_common.model.user_events import Channel, Preference
from dexorder_common.storage.whole_file import replace_text
from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.events.sessions import user_tokens
from dexorder_protos.dexorder.events.v1 import event_service_pb2 as pb
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as given

_SUBSCRIBER_WAIT_SECONDS = 1.0
_MAX_PAYLOAD_BYTES = int(EventsSettings.model_fields["max_payload_bytes"].default)
_COLUMNS = ("accepted", "user", "container", "event", "type", "priority", "status", "via", "attempts")


def token_source(token_file: Path | None, user: str, key: Path | None) -> Callable[[], str]:
    """Return a function that returns a user's JWT, read from ``token_file`` or signed with ``key`` at each call."""

    def token() -> str:
        if token_file is None:
            assert key is not None
            return _signed(user, key, 900, "dexorder")
        try:
            return token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise RequestRefused(f"--token-file {token_file} can't be read: {error}") from None

    return token


def print_token(user: str, key: Path, seconds: int, audience: str) -> None:
    """Print a new JWT."""
    output.stdout().print(_signed(user, key, seconds, audience))


def _signed(user: str, key: Path, seconds: int, audience: str) -> str:
    try:
        return user_tokens.sign(key, user, audience=audience, seconds=seconds)
    except (OSError, ValueError) as error:
        raise RequestRefused(f"the token can't be signed with {key}: {error}") from None


def tail(
    token: Callable[[], str],
    cursor: Path | None,
    *,
    receive: bool,
    count: int | None,
    as_json: bool,
    gateway: str | None,
) -> None:
    """Print events until ``count`` have been printed; without ``count``, until Ctrl-C."""
    err, shown = output.stderr(), 0

    def handle(message: pb.WatchEventsResponse, place: pb.Cursor) -> bool:
        nonlocal shown
        if message.HasField("reset"):
            err.print("the cursor is unknown to the gateway or too old; all kept events follow")
        if message.HasField("event"):
            if as_json:
                output.print_json_line(shown_json(message.event))
            else:
                output.stdout().print(event_line(message.event))
            shown += 1
        _write_cursor(cursor, place)
        return shown != count

    asyncio.run(
        gateway_client.follow(
            address_of(GATEWAY, gateway),
            token,
            _read_cursor(cursor),
            handle,
            client_name="dexorder events tail",
            receive=receive,
            on_note=err.print,
        )
    )


def _read_cursor(path: Path | None) -> pb.Cursor | None:
    if path is None or not path.exists():
        return None
    try:
        epoch, sequence = path.read_text().split()
        return pb.Cursor(epoch=epoch, sequence=int(sequence))
    except (OSError, ValueError):
        raise DexorderError(
            f"--cursor {path} does not contain a cursor; delete the file to start from the beginning"
        ) from None


def _write_cursor(path: Path | None, place: pb.Cursor) -> None:
    if path is None:
        return
    try:
        replace_text(path, f"{place.epoch} {place.sequence}\n")
    except OSError as error:
        raise DexorderError(f"--cursor {path} can't be written: {error.strerror}") from None


def draft(
    user_id: str, event_type: str, payload: str, priority: str, channels: Sequence[str], event_id: str | None
) -> given.UserEvent:
    """Return the event that the arguments describe; RequestRefused or EventRefused names an invalid one."""
    try:
        content = json.loads(sys.stdin.read() if payload == "-" else payload)
    except ValueError as error:
        raise RequestRefused(f"payload is not JSON: {error}") from None
    return build_event(
        user_id,
        int(event_type) if event_type.isdecimal() else event_type.upper(),
        content,
        priority.upper(),
        [_preference(each) for each in channels],
        event_id=event_id or uuid.uuid4().hex,
        timestamp_ms=time.time_ns() // 1_000_000,
        max_payload_bytes=_MAX_PAYLOAD_BYTES,
    )


def _preference(text: str) -> Preference | str:
    name, _, condition = text.upper().partition(":")
    if not condition:
        return name
    if condition != "ACTIVE" or name not in Channel.__members__:
        raise RequestRefused(f"--channel: {text!r} is not a channel; use NAME or NAME:active")
    return Preference(Channel[name], only_if_active=True)


def send_grpc(event: given.UserEvent, gateway: str | None, timeout: float, as_json: bool) -> int:
    """Publish an event over gRPC and print each ack. Return 0 if it was delivered."""
    return asyncio.run(_send(event, address_of(GATEWAY, gateway), timeout, as_json))


async def _send(event: given.UserEvent, address: str, timeout: float, as_json: bool) -> int:
    status: Any = given.QUEUED
    try:
        async with asyncio.timeout(timeout), aclosing(gateway_client.publish(address, event)) as acks:
            async for ack in acks:
                status = ack.status
                _print_ack(ack_json(ack), as_json)
    except TimeoutError:
        raise _not_final(event, timeout) from None
    return 0 if status == given.DELIVERED else 1


def send_zmq(event: given.UserEvent, outbox: Path | None, timeout: float, as_json: bool) -> int:
    """Publish an event over ZMQ and print each ack. An event that is not final at the end remains in the outbox."""
    ended: Future[Outcome] = Future()

    def on_outcome(outcome: Outcome) -> None:
        if outcome.event_id == event.event_id:
            ended.set_result(outcome)

    def on_queued(event_id: str) -> None:
        if event_id == event.event_id:
            _print_ack({"event_id": event_id, "status": "QUEUED"}, as_json)

    chosen: dict[str, Any] = {"outbox": outbox} if outbox else {}
    chosen |= {"fast": address_of(EVENTS_FAST, None), "guaranteed": address_of(EVENTS_GUARANTEED, None)}
    with Publisher(on_outcome=on_outcome, on_queued=on_queued, **chosen) as publisher:
        _wait_for_subscription(publisher, event)
        publisher.submit_event(event)
        try:
            outcome = ended.result(timeout)
        except FutureTimeout:
            raise _not_final(event, timeout) from None
    ack = {"event_id": outcome.event_id, "status": str(outcome.status), "error": outcome.error}
    _print_ack(ack | {"via": outcome.via.name if outcome.via is not None else ""}, as_json)
    return 0 if outcome.status in (FinalStatus.DELIVERED, FinalStatus.SENT) else 1


def _wait_for_subscription(publisher: Publisher, event: given.UserEvent) -> None:
    """Wait for the user's subscription: a new publisher does not know its subscribers yet and assumes none."""
    end_s = time.monotonic() + _SUBSCRIBER_WAIT_SECONDS
    if event.delivery.priority != given.CRITICAL:
        while not publisher.subscribed(event.user_id) and time.monotonic() < end_s:
            time.sleep(0.02)


def _not_final(event: given.UserEvent, timeout: float) -> WaitEnded:
    return WaitEnded(
        f"event {event.event_id} is not final after {timeout:g} s; if it was queued, its delivery continues"
    )


def _print_ack(ack: dict[str, str], as_json: bool) -> None:
    if as_json:
        output.print_json_line({name: text for name, text in ack.items() if text})
    else:
        via, error = ack.get("via"), ack.get("error")
        line = f"{ack['event_id']} {ack['status']}{f' via {via}' if via else ''}{f': {error}' if error else ''}"
        output.stdout().print(line)


def show(container: str, event_id: str, as_json: bool, gateway: str | None) -> None:
    """Print the record of one event."""
    record = asyncio.run(gateway_client.get_event(address_of(GATEWAY, gateway), container, event_id))
    if as_json:
        output.print_json(record_json(record))
        return
    output.stdout().print(output.fields_table(record_lines(record)))


def list_events(user: str, container: str, status: str, limit: int, as_json: bool, gateway: str | None) -> None:
    """Print the newest events, newest first."""
    request = pb.ListEventsRequest(user_id=user, container=container)
    if status:
        request.status = STATUSES[status]
    found = asyncio.run(gateway_client.list_events(address_of(GATEWAY, gateway), request, limit))
    if as_json:
        output.print_json([record_json(record) for record in found])
        return
    output.stdout().print(output.plain_table(_COLUMNS, map(record_cells, found)))
