"""A relay that can't be reached: each cause against a real server, at once, and how long a client waits."""

from __future__ import annotations

import asyncio
import http.server
import socket
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest

from dexorder import AsyncClient, errors
from dexorder.client import connection, failures
from dexorder.client.failures import cause_of
from dexorder_common.model.errors import Code
from dexorder_protos.dexorder.relay.v1 import history_service_pb2
from tests.fakes.relay_server import FakeRelay
from tests.fixtures_tls import Authority

SERVICE = history_service_pb2.DESCRIPTOR.services_by_name["HistoryService"].full_name
ASKED = ("BTC/USDT.SIM", "1h", "2024-01-01", "2024-01-02")


def repeated(note: str) -> None:
    """Take a client's notes; the first one is that a call is repeated."""
    raise AssertionError(f"repeated: {note}")


async def refusal(address: str) -> str:
    async with AsyncClient(address, on_note=repeated) as client:
        with pytest.raises(errors.RelayUnreachable) as caught:
            await client.get_request("any")
    return str(caught.value)


async def test_nothing_listens() -> None:
    text = await refusal("127.0.0.1:1")
    assert text.startswith("nothing listens at 127.0.0.1:1; start the suite with `dexorder up`, or --relay")


async def test_no_such_host() -> None:
    assert (await refusal("no-such-host.invalid:50051")).startswith("no-such-host.invalid:50051 names no known host")


async def test_http_server() -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            text = await refusal(f"127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
    assert "is not a gRPC server; is it the port of another part?" in text


@pytest.mark.parametrize("how", ["Socket closed", "recvmsg: Connection reset by peer", "sendmsg: Broken pipe"])
def test_server_that_closes_while_a_client_connects(how: str) -> None:
    details = f"failed to connect to all addresses; last error: UNAVAILABLE: ipv4:10.0.0.1:50051: {how}"
    cause = cause_of(Code.UNAVAILABLE, details, "relay:50051")
    assert cause and cause.startswith(
        "relay:50051 closes the connection; it requires TLS (DEXORDER_CHANNEL_TLS_CA), or"
    )
    assert cause_of(Code.UNAVAILABLE, how, "relay:50051") is None, "a connection broke, which says nothing of the relay"
    assert cause_of(Code.DEADLINE_EXCEEDED, details, "relay:50051") is None


async def test_a_server_that_accepts_and_stays_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CALL_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        text = await refusal(address)
    assert text.startswith(f"{address} accepts connections or drops their packets, and says nothing: it is not a relay")


async def test_another_part() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with AsyncClient(f"127.0.0.1:{port}", on_note=repeated) as client:
            with pytest.raises(errors.NotSupported, match=f"if 127.0.0.1:{port} is not a relay, --relay or"):
                await client.get_request("any")
    finally:
        await server.stop(None)


async def test_tls_on_one_side_only(tmp_path: Path, fake: FakeRelay, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)
    pair = authority.server()
    server = grpc.aio.server()
    credentials = grpc.ssl_server_credentials([(pair.key.read_bytes(), pair.certificate.read_bytes())])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        assert "it requires TLS" in await refusal(f"127.0.0.1:{port}")
        monkeypatch.setenv("DEXORDER_CHANNEL_TLS_CA", str(authority.ca))
        assert f"{fake.address} does not speak TLS; unset DEXORDER_CHANNEL_TLS_CA" in await refusal(fake.address)
        other = Authority(tmp_path / "other")
        monkeypatch.setenv("DEXORDER_CHANNEL_TLS_CA", str(other.ca))
        assert "must be signed by an authority in the file" in await refusal(f"localhost:{port}")
    finally:
        await server.stop(None)


async def test_with_patience_the_first_call_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncClient("127.0.0.1:1", patience_seconds=5, on_note=repeated) as client:
        with pytest.raises(AssertionError, match="repeated: the relay at"):
            await client.get_request("any")
    monkeypatch.setenv("DEXORDER_PATIENCE_SECONDS", "5")
    async with AsyncClient("127.0.0.1:1", on_note=repeated) as client:
        with pytest.raises(AssertionError, match="repeated"):
            await client.get_request("any")


async def _missing(_: object, context: Any) -> None:
    await context.abort(grpc.StatusCode.NOT_FOUND, "no such request")


async def test_a_relay_that_has_answered_is_waited_for() -> None:
    server = grpc.aio.server()
    missing: Any = grpc.unary_unary_rpc_method_handler(_missing)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"GetRequest": missing}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with AsyncClient(f"127.0.0.1:{port}", on_note=repeated) as client:
        with pytest.raises(errors.DexorderError, match="no such request"):
            await client.get_request("any")
        await server.stop(None)
        with pytest.raises(AssertionError, match="repeated"):
            await client.get_request("any")


@pytest.mark.parametrize("value", ["soon", "-1", "inf"])
def test_patience_that_is_no_number_of_seconds(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEXORDER_PATIENCE_SECONDS", value)
    with pytest.raises(errors.DexorderError, match=f"DEXORDER_PATIENCE_SECONDS: '{value}' is not"):
        AsyncClient("127.0.0.1:1")


async def test_timeout_bounds_the_submission() -> None:
    """The server accepts the connection and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        async with AsyncClient(address) as client, asyncio.timeout(20):
            with pytest.raises(errors.WaitEnded, match=r"the relay did not accept request one within 0\.2 s"):
                await client.history(*ASKED, request_id="one", timeout=0.2)
            with pytest.raises(errors.WaitEnded, match=r"no snapshot of SIM within 0\.2 s"):
                await client.snapshot_tickers("SIM", timeout=0.2)


@pytest.mark.parametrize(
    ("code", "details", "advice"),
    [
        (Code.PERMISSION_DENIED, "RBAC: access denied", "AuthorizationPolicy"),
        (Code.UNAUTHENTICATED, "Jwt is not in the form of Header.Payload.Signature", "DEXORDER_TOKEN_METADATA"),
        (Code.UNAVAILABLE, "no healthy upstream", "pods"),
        (Code.UNAVAILABLE, "upstream connect error or disconnect/reset before headers", "part of the mesh"),
        (Code.UNAVAILABLE, "upstream connect error. reset reason: overflow", "max_requests"),
        (Code.UNAVAILABLE, "stream timeout", "set it to 0"),
        (Code.UNAVAILABLE, "upstream request timeout", "set it to 0"),
        (Code.UNIMPLEMENTED, "no details", "no route"),
        (Code.UNIMPLEMENTED, "Received http2 header with status: 404", "no route"),
        (Code.UNAVAILABLE, "local_rate_limited", "rate limit"),
        (Code.UNAVAILABLE, "Received http2 header with status: 429", "rate limit"),
    ],
)
def test_what_a_proxy_answers_is_shown_with_what_to_check(code: Code, details: str, advice: str) -> None:
    found = failures.proxy_cause(code, details)
    assert found is not None and advice in found and found.startswith("a proxy answered")
    if code in (Code.PERMISSION_DENIED, Code.UNAUTHENTICATED):
        assert str(failures.answer_error(code, details)) == found
        assert details in found


def test_what_our_relay_answers_is_not_of_a_proxy() -> None:
    for code in (Code.UNAVAILABLE, Code.PERMISSION_DENIED, Code.INTERNAL):
        assert failures.proxy_cause(code, "the table can't be read now") is None
