"""Raw references of ``bench.events``: separate processes that only move the same messages.

    python -m bench.parts.events_raw router|outbox|sub|grpc|web FOLDER

``router`` acks what comes; ``outbox`` keeps it in SQLite before, in groups as large as what has come; ``sub`` counts;
``grpc`` and ``web`` give each session a ready event as often as the line on stdin says. The first line of the output is
the address.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import uvloop
import zmq
from aiohttp import web

from bench.parts.events_load import USER_EVENT, VERSION, WATCH, made
from dexorder_protos.dexorder.events.v1 import event_service_pb2 as session_pb
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as pb

MOST = 512
_ACK = b"\x21"


def open_outbox(path: Path) -> sqlite3.Connection:
    """Open a database as durable as the outbox."""
    raw = sqlite3.connect(path, isolation_level=None)
    raw.execute("PRAGMA journal_mode = WAL")
    raw.execute("PRAGMA synchronous = FULL")
    raw.execute("CREATE TABLE events (id INTEGER PRIMARY KEY, event_id TEXT UNIQUE, user_id TEXT, body BLOB)")
    return raw


def insert(raw: sqlite3.Connection, bodies: list[bytes]) -> list[str]:
    """Insert rows in one transaction; return their ids."""
    events = [pb.UserEvent.FromString(body) for body in bodies]
    raw.execute("BEGIN IMMEDIATE")
    raw.executemany(
        "INSERT INTO events (event_id, user_id, body) VALUES (?, ?, ?)",
        [(event.event_id, event.user_id, body) for event, body in zip(events, bodies, strict=True)],
    )
    raw.execute("COMMIT")
    return [event.event_id for event in events]


def insert_rate(path: Path, rows: int, group: int) -> float:
    """Return the rows per second, inserted in groups."""
    bodies = [made(f"bench-{number % 1_000}", f"{group}-{number}", pb.CRITICAL)[1:] for number in range(rows)]
    raw = open_outbox(path)
    started_s = time.perf_counter()
    for first in range(0, rows, group):
        insert(raw, bodies[first : first + group])
    seconds = time.perf_counter() - started_s
    raw.close()
    return rows / seconds


def router(folder: Path, keep: bool) -> None:
    """Ack each event, before or after a commit."""
    socket = zmq.Context().socket(zmq.ROUTER)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.SNDHWM, 0)
    print(f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}", flush=True)
    raw = open_outbox(folder / f"raw-{time.time_ns()}.db") if keep else None
    while True:
        socket.poll()
        taken: list[list[bytes]] = []
        while len(taken) < MOST:
            try:
                taken.append(socket.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                break
        bodies = [frames[2][1:] for frames in taken]
        ids = insert(raw, bodies) if raw else [pb.UserEvent.FromString(body).event_id for body in bodies]
        for (identity, _, _), event_id in zip(taken, ids, strict=True):
            ack = pb.EventAck(event_id=event_id, status=pb.QUEUED).SerializeToString()
            socket.send_multipart([identity, VERSION, _ACK + ack])


def sub() -> None:
    """Count events for the user of each line on stdin, ``USER COUNT``; print when the last has arrived."""
    socket = zmq.Context().socket(zmq.SUB)
    print(f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}", flush=True)
    for line in sys.stdin:
        user, count = line.split()
        socket.subscribe(b"USER:" + user.encode() + b"\0")
        for _ in range(int(count)):
            pb.UserEvent.FromString(socket.recv_multipart()[2][1:])
        print(time.monotonic(), flush=True)


async def sessions(serve: Callable[[asyncio.Future[int]], Any]) -> None:
    """Serve; each line on stdin is the number of events for each session."""
    loop = asyncio.get_running_loop()
    wanted: asyncio.Future[int] = loop.create_future()
    print(await serve(wanted), flush=True)
    wanted.set_result(int(await loop.run_in_executor(None, sys.stdin.readline)))
    await asyncio.Event().wait()


def ready() -> session_pb.WatchEventsResponse:
    """Return an event for sessions."""
    event = pb.UserEvent.FromString(made("bench", "i-1", pb.INFORMATIONAL).removeprefix(USER_EVENT))
    event.ClearField("delivery")
    shown = session_pb.SessionEvent(container="local", event=event, title="BTC/USDT", body="x" * 40)
    return session_pb.WatchEventsResponse(event=shown)


async def grpc_sessions(wanted: asyncio.Future[int]) -> str:
    """Serve sessions with grpcio only."""
    opened = session_pb.WatchEventsResponse(opened=session_pb.Opened()).SerializeToString()
    message = ready().SerializeToString()

    async def subscribe(request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield opened
        for _ in range(await asyncio.shield(wanted)):
            yield message

    service, _, method = WATCH[1:].partition("/")
    handler = grpc.method_handlers_generic_handler(service, {method: grpc.unary_stream_rpc_method_handler(subscribe)})
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    _KEPT.append(server)
    return f"127.0.0.1:{port}"


async def web_sessions(wanted: asyncio.Future[int]) -> str:
    """Serve sessions with aiohttp only."""
    from google.protobuf import json_format

    text = json_format.MessageToJson(ready(), indent=None)

    async def events(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.receive()
        await socket.send_str('{"opened":{}}')
        for _ in range(await asyncio.shield(wanted)):
            await socket.send_str(text)
        await socket.receive()
        return socket

    app = web.Application()
    app.router.add_get("/v1/events", events)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    _KEPT.append(runner)
    return f"127.0.0.1:{runner.addresses[0][1]}"


_KEPT: list[object] = []


def main() -> None:
    kind, folder = sys.argv[1], Path(sys.argv[2])
    if kind in ("router", "outbox"):
        router(folder, kind == "outbox")
    elif kind == "sub":
        sub()
    else:
        uvloop.run(sessions({"grpc": grpc_sessions, "web": web_sessions}[kind]))


if __name__ == "__main__":
    main()
