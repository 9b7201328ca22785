"""Unix sockets: a server never takes over the path of a living process. Idle connections are closed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from dexorder_common import logs, tracing
from dexorder_common.rpc import lifecycle
from dexorder_common.rpc.lifecycle import bind, grpc_server, refuse_if_served
from dexorder_common.rpc.settings import ServiceSettings


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s"


@pytest.fixture
async def server() -> AsyncIterator[grpc.aio.Server]:
    made = grpc.aio.server()
    yield made
    await made.stop(None)


def kind(path: Path) -> str:
    return "socket" if path.is_socket() else path.read_text()


async def test_free_path_is_bound(server: grpc.aio.Server, path: Path) -> None:
    refuse_if_served(path)
    assert bind(server, f"unix:{path}", None) > 0
    assert kind(path) == "socket"


async def test_socket_of_a_killed_process_is_replaced(server: grpc.aio.Server, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert bind(server, f"unix:{path}", None) > 0
    await server.start()
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(path))


async def test_path_of_a_living_process_is_refused_and_unchanged(server: grpc.aio.Server, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(OSError, match="another process does"):
            bind(server, f"unix:{path}", None)
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(path))


@pytest.mark.parametrize("name", ["x" * 150, "no/folder/s"])
async def test_impossible_path_is_an_error_of_bind(server: grpc.aio.Server, path: Path, name: str) -> None:
    with pytest.raises(OSError, match="can't listen on unix:"):
        bind(server, f"unix:{path.parent}/{name}", None)


@pytest.fixture
def file(path: Path) -> Path:
    path.write_text("kept")
    return path


async def test_other_file_is_kept(server: grpc.aio.Server, file: Path) -> None:
    with pytest.raises(OSError, match="can't listen on unix:"):
        bind(server, f"unix:{file}", None)
    assert kind(file) == "kept"


@pytest.mark.parametrize("where", ["listen", "metrics_listen", "unix"])
def test_an_address_in_use_or_impossible_ends_the_process_with_one_line(
    path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A traceback of forty lines ends in the same words, where nobody finds them."""
    for configured in (logs, tracing):  # of this process, which goes on
        monkeypatch.setattr(configured, "configure", lambda *_, **__: None)
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        given: dict[str, Any] = {
            "listen": "127.0.0.1:0",
            "metrics_listen": "",
            **({} if where == "unix" else {where: taken}),
        }
        unix = f"unix:{path.parent}/no/folder/s"

        async def serve() -> None:
            extra = [unix] if where == "unix" else []
            async with grpc_server(ServiceSettings(**given), lambda server: (), extra_addresses=extra):
                raise AssertionError("it serves")

        with pytest.raises(SystemExit) as ended:
            lifecycle.run("test", ServiceSettings(**given), serve)
    text = str(ended.value)
    assert text.startswith(f"can't listen on {unix if where == 'unix' else taken}") and "\n" not in text, text


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"


@pytest.mark.parametrize("sent", [b"", PREFACE[:10], PREFACE], ids=["nothing", "half a handshake", "no call"])
async def test_connection_that_is_idle_is_closed(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    short = {"grpc.max_connection_idle_ms": 500, "grpc.server_handshake_timeout_ms": 500}
    monkeypatch.setattr(lifecycle, "IDLE", tuple((name, short.get(name, value)) for name, value in lifecycle.IDLE))
    async with grpc_server(ServiceSettings(listen="127.0.0.1:0"), lambda server: ()) as running:
        host, port = running.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        async with asyncio.timeout(20):
            with suppress(ConnectionResetError):
                await reader.read()
        writer.close()


async def test_a_connection_may_ping_each_second() -> None:
    """A proxy does, on a connection without calls; the third ping that is too early would end the connection."""
    ping, settings, goaway = 6, 4, 7
    async with grpc_server(ServiceSettings(listen="127.0.0.1:0", drain_seconds=0), lambda server: []) as running:
        host, _, port = running.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, settings, 0, 0, 0, 0, 0]))
        answered = 0
        while answered < 5:
            writer.write(bytes([0, 0, 8, ping, 0, 0, 0, 0, 0]) + answered.to_bytes(8))
            kind = flags = None
            while (kind, flags) != (ping, 1):
                head = await asyncio.wait_for(reader.readexactly(9), 20)
                await reader.readexactly(int.from_bytes(head[:3]))
                kind, flags = head[3], head[4]
                assert kind != goaway
            answered += 1
            await asyncio.sleep(1)
        writer.close()
