"""The WebSocket with real aiohttp clients, the real registry and a dispatcher in memory."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
import structlog
from google.protobuf import json_format
from yarl import URL

from dexorder_common.config import BadSettings
from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.events.sessions import session, websocket
from dexorder_gateway.events.sessions.web_server import web_server
from dexorder_protos.dexorder.events.v1 import event_service_pb2 as pb
from dexorder_protos.dexorder.events.v1 import event_service_pb2_grpc as rpc
from tests.fakes.events.sessions_gateway import Served, served, until
from tests.fixtures_tls import Authority

PATIENCE_S = 5.0


class Browser:
    """A page's side of a WebSocket."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket

    async def say(self, **message: Any) -> None:
        await self.socket.send_str(json.dumps(message))

    async def hear(self) -> dict[str, Any]:
        message = await self.socket.receive(PATIENCE_S)
        assert message.type is aiohttp.WSMsgType.TEXT, message
        return dict(json.loads(message.data))

    async def authorize(self, token: str, cursor: dict[str, str] | None = None) -> dict[str, Any]:
        await self.say(authorize={"token": token, "cursor": cursor, "clientName": "test"})
        return await self.hear()

    async def event(self) -> pb.SessionEvent:
        return json_format.ParseDict(await self.hear(), pb.WatchEventsResponse()).event

    async def refused(self) -> tuple[str, int | None]:
        """The error's code and the close code that follows."""
        error = (await self.hear())["error"]
        message = await self.socket.receive(PATIENCE_S)
        assert message.type is aiohttp.WSMsgType.CLOSE, message
        return error["code"], self.socket.close_code


@asynccontextmanager
async def browser(gateway: Served, **options: Any) -> AsyncIterator[Browser]:
    async with (
        aiohttp.ClientSession() as client,
        client.ws_connect(f"http://{gateway.web}/v1/events", max_msg_size=0, **options) as opened,
    ):
        yield Browser(opened)


async def test_a_client_that_does_not_authorize_in_time_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "AUTHORIZE_SECONDS", 0.05)
    async with served(tmp_path) as gateway, browser(gateway) as page:
        assert await page.refused() == ("DEADLINE_EXCEEDED", 4408)


@pytest.mark.parametrize(
    ("message", "refusal"),
    [
        ({"ack": {}}, ("UNAUTHENTICATED", 4401)),
        ({"authorize": {}}, ("UNAUTHENTICATED", 4401)),
        ({"authorize": {"token": "s3cret"}}, ("UNAUTHENTICATED", 4401)),
        ({"authorize": {"token": ["s3cret"]}}, ("UNAUTHENTICATED", 4401)),
        ({"authorize": "s3cret"}, ("INVALID_ARGUMENT", 4400)),
        ({"authorize": {"token": "GOOD", "clientName": "x" * 65}}, ("INVALID_ARGUMENT", 4400)),
        ({"authorize": {"token": "GOOD", "cursor": {"epoch": 7}}}, ("INVALID_ARGUMENT", 4400)),
        (
            {"authorize": {"token": "GOOD", "cursor": {"epoch": "e", "sequence": str(2**63)}}},
            ("INVALID_ARGUMENT", 4400),
        ),
        ({"authorize": {"token": "GOOD", "cursor": "s3cret"}}, ("INVALID_ARGUMENT", 4400)),
        ({}, ("INVALID_ARGUMENT", 4400)),
        ([1], ("INVALID_ARGUMENT", 4400)),
        ({"authorize": {}, "ack": {}}, ("INVALID_ARGUMENT", 4400)),
        ("s3cret", ("INVALID_ARGUMENT", 4400)),
    ],
)
async def test_a_bad_first_message_is_refused(
    message: Any, refusal: tuple[str, int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path) as gateway, browser(gateway) as page:
        await page.socket.send_str(json.dumps(message).replace("GOOD", gateway.token("alice")))
        error = await page.socket.receive_str(timeout=PATIENCE_S)
        assert "s3cret" not in error
        assert (json.loads(error)["error"]["code"], (await page.socket.receive(PATIENCE_S)).data) == refusal
        assert gateway.dispatcher.calls == []
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize(
    ("message", "refusal"),
    [
        ({"ack": {"cursor": {"epoch": "EPOCH", "sequence": "1"}}}, ("INVALID_ARGUMENT", 4400)),
        ({"ack": {"cursor": {"epoch": "EPOCH"}, "kind": "ACK_KIND_SEEN"}}, ("INVALID_ARGUMENT", 4400)),
        ({"ack": {"kind": "ACK_KIND_SEEN"}}, ("INVALID_ARGUMENT", 4400)),
        ({"ack": {"cursor": {"epoch": "x", "sequence": 1}, "kind": "ACK_KIND_SEEN"}}, ("INVALID_ARGUMENT", 4400)),
        ({"list": {"pageSize": 1001}}, ("INVALID_ARGUMENT", 4400)),
        ({"list": {"pageToken": "x"}}, ("INVALID_ARGUMENT", 4400)),
        ({"shout": {}}, ("INVALID_ARGUMENT", 4400)),
        ({"authorize": {"token": "BOB"}}, ("PERMISSION_DENIED", 4403)),
        ({"authorize": {"token": "none"}}, ("UNAUTHENTICATED", 4401)),
    ],
)
async def test_a_bad_later_message_ends_the_session(message: Any, refusal: tuple[str, int], tmp_path: Path) -> None:
    async with served(tmp_path) as gateway, browser(gateway) as page:
        await page.authorize(gateway.token("alice"))
        text = json.dumps(message).replace("EPOCH", gateway.dispatcher.epoch).replace("BOB", gateway.token("bob"))
        await page.socket.send_str(text)
        assert await page.refused() == refusal
        assert gateway.dispatcher.calls == [("opened", "alice"), ("closed", "alice")]


async def test_binary_and_oversized_messages_end_the_session(tmp_path: Path) -> None:
    async with served(tmp_path) as gateway:
        async with browser(gateway) as page:
            await page.socket.send_bytes(b"{}")
            assert await page.refused() == ("INVALID_ARGUMENT", 4400)
        async with browser(gateway) as page:
            await page.authorize(gateway.token("alice"))
            await page.socket.send_str(json.dumps({"list": {"pageToken": "9" * websocket.MAX_MESSAGE_BYTES}}))
            assert (await page.socket.receive(PATIENCE_S)).data == aiohttp.WSCloseCode.MESSAGE_TOO_BIG
        assert gateway.dispatcher.calls == [("opened", "alice"), ("closed", "alice")]


async def test_a_session_ends_when_its_token_expires_unless_a_new_one_came(tmp_path: Path) -> None:
    async with served(tmp_path) as gateway, browser(gateway) as cut, browser(gateway) as kept:
        await until(lambda: time.time() % 1 < 0.2)  # exp is in whole seconds
        short = gateway.token("alice", seconds=1)
        opened, began = await cut.authorize(short), time.time()
        assert 0 < int(opened["opened"]["expiresMs"]) / 1_000 - began <= 1
        await kept.authorize(short)
        gateway.dispatcher.keep("alice", "one")
        assert (await kept.event()).event.event_id == (await cut.event()).event.event_id == "one"
        again = (await kept.authorize(gateway.token("alice")))["opened"]
        assert again["cursor"] == {"epoch": gateway.dispatcher.epoch, "sequence": "1"}
        assert int(again["expiresMs"]) > (began + 500) * 1_000
        assert await cut.refused() == ("UNAUTHENTICATED", 4401)
        assert time.time() >= int(opened["opened"]["expiresMs"]) / 1_000, "not before its token expires"
        gateway.dispatcher.keep("alice", "two")
        assert (await kept.event()).event.event_id == "two"


async def test_a_page_that_does_not_read_is_disconnected_without_delaying_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "CLOSE_SECONDS", 0.1)
    async with served(tmp_path, session_queue=50) as gateway, browser(gateway) as quick:
        host, port = gateway.web.split(":")
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, (host, int(port)))
        reader, writer = await asyncio.open_connection(sock=raw, limit=1)
        writer.write(
            f"GET /v1/events HTTP/1.1\r\nHost: {gateway.web}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
        )
        body = json.dumps({"authorize": {"token": gateway.token("alice")}}).encode()
        writer.write(b"\x81\xfe" + len(body).to_bytes(2, "big") + bytes(4) + body)
        await quick.authorize(gateway.token("alice"))
        await until(lambda: gateway.dispatcher.calls and len(gateway.backend.sessions._sessions["alice"]) == 2)
        for number in range(400):  # more than the sockets between them hold
            gateway.dispatcher.keep("alice", f"e{number}", payload=b'"%s"' % (b"x" * 60_000))
            assert (await quick.event()).sequence == number + 1
            if counted(gateway, "ended_total", kind="websocket", reason="RESOURCE_EXHAUSTED"):
                break
        assert len(gateway.backend.sessions._sessions["alice"]) == 1
        with pytest.raises(ConnectionError):
            await until_closed(reader)
        writer.close()


async def until_closed(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await reader.read(1 << 20):
            pass
    raise ConnectionResetError  # a proper end is one too


def counted(gateway: Served, name: str, **labels: str) -> float | None:
    return gateway.registry.get_sample_value(f"dexorder_gateway_event_sessions_{name}", labels)


async def test_a_page_receives_only_its_users_records(tmp_path: Path) -> None:
    async with served(tmp_path) as gateway, browser(gateway) as page:
        for number in range(3):
            gateway.dispatcher.keep("alice", f"a{number}")
            gateway.dispatcher.keep("bob", f"b{number}")
        await page.authorize(gateway.token("alice"), {"epoch": gateway.dispatcher.epoch, "sequence": "3"})
        token, names = "", []
        for _ in range(2):
            await page.say(list={"pageSize": 2, "pageToken": token, "userId": "bob", "status": "DELIVERED"})
            answer = json_format.ParseDict((await page.hear())["records"], pb.ListEventsResponse())
            token = answer.next_page_token
            names += [record.event.event_id for record in answer.records]
        assert (names, token) == (["a2", "a1", "a0"], "")


async def test_acks_are_not_waited_for_one_by_one(tmp_path: Path) -> None:
    async with served(tmp_path) as gateway, browser(gateway) as page:
        await page.authorize(gateway.token("alice"))
        epoch = gateway.dispatcher.epoch
        gateway.dispatcher.keep("alice", "one")
        for kind in ["ACK_KIND_RECEIVED"] * 500 + ["ACK_KIND_SEEN"]:
            await page.say(ack={"cursor": {"epoch": epoch, "sequence": "1"}, "kind": kind})
        await until(lambda: gateway.dispatcher.acks["alice", 1] == 501)
        (kept,) = gateway.dispatcher.users["alice"]
        assert kept.record.seen_ns


# ---- around it -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (None, 101),
        ("http://HOST", 101),
        ("https://trade.example", 101),
        ("https://evil.example", 403),
        ("http://HOST.evil.example", 403),
        ("http://trade.example", 403),
        ("null", 403),
        ("", 403),
    ],
)
async def test_only_known_origins_may_open_a_session(origin: str | None, status: int, tmp_path: Path) -> None:
    async with served(tmp_path, web_origins="https://trade.example") as gateway:
        own = origin.replace("HOST", gateway.web) if origin else origin
        try:
            async with browser(gateway, headers={} if own is None else {"Origin": own}):
                got = 101
        except aiohttp.WSServerHandshakeError as error:
            got = error.status
        assert got == status


async def test_pages_files_and_their_headers(tmp_path: Path) -> None:
    page = tmp_path / "page"
    (page / "deeper").mkdir(parents=True)
    for name in ("index.html", "app.js", "style.css", "sw.webmanifest", ".hidden", "secret.py", "deeper/x.js"):
        (page / name).write_text(name)
    (tmp_path / "outside.js").write_text("no")
    async with served(tmp_path, page=page) as gateway, aiohttp.ClientSession() as client:
        for path, found in {
            "/": ("index.html", "text/html"),
            "/index.html": ("index.html", "text/html"),
            "/app.js": ("app.js", "text/javascript"),
            "/style.css": ("style.css", "text/css"),
            "/sw.webmanifest": ("sw.webmanifest", "application/manifest+json"),
            "/healthz": ("ok\n", "text/plain"),
            "/.hidden": None,
            "/secret.py": None,
            "/deeper/x.js": None,
            "/%2e%2e/outside.js": None,
            "/..%2foutside.js": None,
            "/nothing": None,
        }.items():
            async with client.get(URL(f"http://{gateway.web}{path}", encoded=True)) as answer:
                assert (answer.status == 200) == (found is not None), path
                assert not found or (await answer.text(), answer.content_type) == found
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
        async with client.post(f"http://{gateway.web}/v1/events") as answer:
            assert answer.status == 405


async def test_health_reports_when_nothing_is_served(tmp_path: Path) -> None:
    async with served(tmp_path) as gateway:
        settings = EventsSettings(web_listen="127.0.0.1:0")
        async with (
            web_server(settings, gateway.backend, healthy=lambda: False) as web,
            aiohttp.ClientSession() as client,
            client.get(f"http://{web}/healthz") as answer,
        ):
            assert answer.status == 503
        async with web_server(EventsSettings(web_listen=""), gateway.backend) as web:
            assert web == ""


async def test_an_invalid_certificate_is_reported_with_its_variable(tmp_path: Path) -> None:
    (tmp_path / "none.pem").write_text("nonsense")
    async with served(tmp_path) as gateway:
        for file in (tmp_path / "none.pem", tmp_path / "absent.pem"):
            settings = EventsSettings(web_listen="127.0.0.1:0", web_tls_certificate=file, web_tls_key=file)
            with pytest.raises(BadSettings, match="DEXORDER_EVENTS_WEB_TLS_CERTIFICATE"):
                async with web_server(settings, gateway.backend):
                    raise AssertionError


async def test_with_a_certificate_the_page_is_only_served_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    pair = authority.server()
    tls = ssl.create_default_context(cafile=str(authority.ca))
    async with served(tmp_path, web_tls_certificate=pair.certificate, web_tls_key=pair.key) as gateway:
        port = gateway.web.split(":")[1]
        async with (
            aiohttp.ClientSession() as client,
            client.ws_connect(f"https://localhost:{port}/v1/events", ssl=tls) as opened,
        ):
            assert "opened" in await Browser(opened).authorize(gateway.token("alice"))
        async with aiohttp.ClientSession() as client:
            with pytest.raises(aiohttp.ClientError):
                await client.get(f"http://localhost:{port}/")


async def test_no_token_is_in_a_log_at_any_level(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with structlog.testing.capture_logs() as logs:
        async with served(tmp_path) as gateway:
            good = gateway.token("alice")
            bad = good[:-6] + "AAAAAA"
            async with browser(gateway) as page:
                await page.authorize(good)
                await page.authorize(good)
            async with browser(gateway) as page:
                assert "error" in await page.authorize(bad)
            async with grpc.aio.insecure_channel(gateway.grpc) as channel:
                stub: Any = rpc.ContactServiceStub(channel)
                await stub.GetContacts(pb.GetContactsRequest(), metadata=(("authorization", f"Bearer {good}"),))
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.GetContacts(pb.GetContactsRequest(), metadata=(("authorization", f"Bearer {bad}"),))
    seen = f"{logs} {caplog.text} {caught.value.details()}"
    assert "keys for users' tokens read" in seen
    for part in (*good.split("."), bad.split(".")[2]):
        assert part not in seen


async def test_a_stop_ends_websockets(tmp_path: Path) -> None:
    async with served(tmp_path) as gateway, browser(gateway) as page:
        await page.authorize(gateway.token("alice"))
        gateway.backend.sessions.stop()
        assert await page.refused() == ("UNAVAILABLE", aiohttp.WSCloseCode.TRY_AGAIN_LATER)
