"""``dexorder events``: tail, send, show, list, token."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import aclosing
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from dexorder.cli import output
from dexorder.cli.events_text import STATUSES as STATUSES
from dexorder.cli.events_text import ack_json, event_line, record_cells, record_json, record_lines, shown_json
from dexorder.errors import DexorderError, WaitEnded
from dexorder.events import gateway_client
from dexorder.events.event_builder import build_event
from dexorder.events.outcome import FinalStatus, Outcome
from dexorder.events.publisher import Publisher
from services.common.model.user_events import Channel, Preference
from services.gateway.events.config import EventsSettings
from services.gateway.events.sessions import user_tokens
from services.gen.dexorder.events.v1 import event_service_pb2 as pb
from services.gen.dexorder.events.v1 import user_events_pb2 as given

_LOOK_SECONDS = 1.0
_MOST_PAYLOAD_BYTES = int(EventsSettings.model_fields["max_payload_bytes"].default)
_COLUMNS = ("accepted", "user", "container", "event", "type", "priority", "status", "via", "tries")


def token_source(token_file: Path | None, user: str, key: Path | None) -> Callable[[], str]:
    """Where a user's JWT comes from, each time it is needed."""

    def read() -> str:
        assert token_file is not None
        try:
            return token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise DexorderError(f"the token in {token_file} can't be read: {error}") from None

    def sign() -> str:
        assert key is not None
        return _signed(user, key, 900, "dexorder")

    return read if token_file else sign


def print_token(user: str, key: Path, seconds: int, audience: str) -> None:
    """A fresh JWT on stdout."""
    output.stdout().print(_signed(user, key, seconds, audience), markup=False)


def _signed(user: str, key: Path, seconds: int, audience: str) -> str:
    try:
        return user_tokens.sign(key, user, audience=audience, seconds=seconds)
    except (OSError, ValueError) as error:
        raise DexorderError(f"no token can be signed: {error}") from None


# ---- tail


def tail(
    token: Callable[[], str],
    cursor: Path | None,
    *,
    receive: bool,
    count: int | None,
    as_json: bool,
    gateway: str | None,
) -> None:
    """Print events until there were ``count``, or for ever."""
    asyncio.run(_tail(token, cursor, receive, count, as_json, gateway_client.gateway_address(gateway)))


async def _tail(
    token: Callable[[], str], cursor: Path | None, receive: bool, count: int | None, as_json: bool, address: str
) -> None:
    err, shown = output.stderr(), 0

    def handle(message: pb.SubscribeResponse, place: pb.Cursor) -> bool:
        nonlocal shown
        if message.HasField("reset"):
            err.print("the gateway's log is another one, or no longer goes back that far: all that is kept follows")
        if message.HasField("event"):
            _show(message.event, as_json)
            shown += 1
        _write_cursor(cursor, place)
        return shown != count

    await gateway_client.follow(
        address,
        token,
        _read_cursor(cursor),
        handle,
        client_name="dexorder events tail",
        receive=receive,
        on_note=lambda note: err.print(note, markup=False),
    )


def _show(event: pb.SessionEvent, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(shown_json(event)) + "\n")
        sys.stdout.flush()
    else:
        output.stdout().print(event_line(event), markup=False)


def _read_cursor(path: Path | None) -> pb.Cursor | None:
    if path is None or not path.exists():
        return None
    try:
        epoch, sequence = path.read_text().split()
        return pb.Cursor(epoch=epoch, sequence=int(sequence))
    except (OSError, ValueError):
        raise DexorderError(f"{path} holds no cursor as --cursor writes it") from None


def _write_cursor(path: Path | None, place: pb.Cursor) -> None:
    if path is None:
        return
    fresh = path.with_name(path.name + ".new")
    try:
        fresh.write_text(f"{place.epoch} {place.sequence}\n")
        fresh.replace(path)
    except OSError as error:
        raise DexorderError(f"the cursor can't be kept in {path}: {error.strerror}") from None


# ---- send


def draft(
    user_id: str, event_type: str, payload: str, priority: str, channels: Sequence[str], event_id: str | None
) -> given.UserEvent:
    """The event that the arguments mean."""
    try:
        said = json.loads(sys.stdin.read() if payload == "-" else payload)
    except ValueError as error:
        raise DexorderError(f"the payload is no JSON: {error}") from None
    return build_event(
        user_id,
        int(event_type) if event_type.isdecimal() else event_type.upper(),
        said,
        priority.upper(),
        [_way(each) for each in channels],
        event_id=event_id or uuid.uuid4().hex,
        timestamp_ms=time.time_ns() // 1_000_000,
        max_payload_bytes=_MOST_PAYLOAD_BYTES,
    )


def _way(text: str) -> Preference | str:
    name, _, condition = text.upper().partition(":")
    if not condition:
        return name
    if condition != "ACTIVE" or name not in Channel.__members__:
        raise DexorderError(f"--channel {text} is neither NAME nor NAME:active")
    return Preference(Channel[name], only_if_active=True)


def send_grpc(event: given.UserEvent, gateway: str | None, timeout: float, as_json: bool) -> int:
    """Print each ack; 0 if it was delivered in the end."""
    return asyncio.run(_send(event, gateway_client.gateway_address(gateway), timeout, as_json))


async def _send(event: given.UserEvent, address: str, timeout: float, as_json: bool) -> int:
    status: Any = given.QUEUED
    try:
        async with asyncio.timeout(timeout), aclosing(gateway_client.publish(address, event)) as acks:
            async for ack in acks:
                status = ack.status
                _print_ack(ack_json(ack), as_json)
    except TimeoutError:
        raise _too_long(event, timeout) from None
    return 0 if status == given.DELIVERED else 1


def send_zmq(event: given.UserEvent, outbox: Path | None, timeout: float, as_json: bool) -> int:
    """The same through a publisher of this process, which leaves in its outbox what is not final yet."""
    ended: Future[Outcome] = Future()

    def on_outcome(outcome: Outcome) -> None:
        if outcome.event_id == event.event_id:
            ended.set_result(outcome)

    def on_queued(event_id: str) -> None:
        if event_id == event.event_id:
            _print_ack({"event_id": event_id, "status": "QUEUED"}, as_json)

    chosen: dict[str, Any] = {"outbox": outbox} if outbox else {}
    with Publisher(on_outcome=on_outcome, on_queued=on_queued, **chosen) as publisher:
        _look_for_session(publisher, event)
        publisher.submit_event(event)
        try:
            outcome = ended.result(timeout)
        except NotYet:
            raise _too_long(event, timeout) from None
    said = {"event_id": outcome.event_id, "status": str(outcome.status), "error": outcome.error}
    _print_ack(said | {"via": outcome.via.name if outcome.via is not None else ""}, as_json)
    return 0 if outcome.status in (FinalStatus.DELIVERED, FinalStatus.SENT) else 1


def _look_for_session(publisher: Publisher, event: given.UserEvent) -> None:
    """A publisher that has just started does not know yet who is there, and would take nobody to be."""
    end_s = time.monotonic() + _LOOK_SECONDS
    if event.delivery.priority != given.CRITICAL:
        while not publisher.subscribed(event.user_id) and time.monotonic() < end_s:
            time.sleep(0.02)


def _too_long(event: given.UserEvent, timeout: float) -> WaitEnded:
    return WaitEnded(f"event {event.event_id} is not final after {timeout:g} s; what was queued goes on")


def _print_ack(said: dict[str, str], as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps({name: text for name, text in said.items() if text}) + "\n")
        sys.stdout.flush()
    else:
        via, error = said.get("via"), said.get("error")
        line = f"{said['event_id']} {said['status']}{f' via {via}' if via else ''}{f': {error}' if error else ''}"
        output.stdout().print(line, markup=False)


# ---- show, list


def show(container: str, event_id: str, as_json: bool, gateway: str | None) -> None:
    """Print what became of one event."""
    record = asyncio.run(gateway_client.get_event(gateway_client.gateway_address(gateway), container, event_id))
    if as_json:
        output.print_json(record_json(record))
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in record_lines(record):
        table.add_row(name, Text(value))
    output.stdout().print(table)


def list_events(user: str, container: str, status: str, most: int, as_json: bool, gateway: str | None) -> None:
    """Print the newest events, newest first."""
    request = pb.ListEventsRequest(user_id=user, container=container)
    if status:
        request.status = STATUSES[status]
    found = asyncio.run(gateway_client.list_events(gateway_client.gateway_address(gateway), request, most))
    if as_json:
        output.print_json([record_json(record) for record in found])
        return
    rows = ([escape(cell) for cell in record_cells(record)] for record in found)
    output.stdout().print(output.plain_table(_COLUMNS, rows))
