"""Channels to real servers: token and certificate in every call type."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from dexorder_common.config import BadSettings, read_settings
from dexorder_common.rpc.channel import (
    CLIENT_KEEPALIVE,
    ChannelSettings,
    _merged,
    open_channel,
    open_sync_channel,
)
from tests.fixtures_tls import Authority

TOKEN = "a-token-nobody-may-read"
KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


class Mirror(grpc.GenericRpcHandler):
    """Servicer that returns the authorization metadata of each call, one line per entry."""

    def __init__(self) -> None:
        self.calls = 0

    def service(self, handler_call_details: Any) -> Any:
        self.calls += 1
        entries = handler_call_details.invocation_metadata
        told = "\n".join(str(value) for key, value in entries if key == "authorization").encode()

        async def one(request: Any, context: Any) -> bytes:
            return told

        async def many(request: Any, context: Any) -> AsyncIterator[bytes]:
            yield told

        kind = handler_call_details.method.rpartition("/")[2]
        return getattr(grpc, f"{kind}_rpc_method_handler")(many if kind.endswith("stream") else one)


@asynccontextmanager
async def mirror(credentials: grpc.ServerCredentials | None = None) -> AsyncIterator[tuple[str, Mirror]]:
    server, handler = grpc.aio.server(), Mirror()
    server.add_generic_rpc_handlers((handler,))
    address = "127.0.0.1:0"
    port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    await server.start()
    try:
        yield f"127.0.0.1:{port}", handler
    finally:
        await server.stop(0)


def tls(authority: Authority) -> grpc.ServerCredentials:
    pair = authority.server()
    return grpc.ssl_server_credentials([(pair.key.read_bytes(), pair.certificate.read_bytes())])


async def say(channel: Any, kind: str) -> str:
    call = getattr(channel, kind)(f"/mirror/{kind}")(iter([b""]) if kind.startswith("stream") else b"", timeout=30)
    if kind.endswith("stream"):
        return "".join([part.decode() async for part in call])
    return str((await call).decode())


def say_sync(address: str, settings: ChannelSettings, kind: str) -> str:
    with open_sync_channel(address, settings) as channel:
        call: Any = getattr(channel, kind)(f"/mirror/{kind}")
        answer = call(iter([b""]) if kind.startswith("stream") else b"", timeout=30)
        return (b"".join(answer) if kind.endswith("stream") else answer).decode()


@pytest.mark.parametrize("secure", [False, True], ids=["plaintext", "tls"])
@pytest.mark.parametrize("token", [None, TOKEN], ids=["no-token", "token"])
async def test_token_is_sent_with_every_call_type(secure: bool, token: str | None, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    settings = ChannelSettings(tls_ca=authority.ca if secure else None, token=token)  # type: ignore[arg-type]
    async with mirror(tls(authority) if secure else None) as (address, _), open_channel(address, settings) as channel:
        arrived = [await say(channel, kind) for kind in KINDS]
        arrived += [await asyncio.to_thread(say_sync, address, settings, kind) for kind in KINDS]
    assert arrived == [f"Bearer {token}" if token else ""] * 8


async def test_server_of_another_authority_receives_neither_call_nor_token(tmp_path: Path) -> None:
    ours, other = Authority(tmp_path / "ours"), Authority(tmp_path / "other")
    settings = ChannelSettings(tls_ca=ours.ca, token=TOKEN)  # type: ignore[arg-type]
    async with mirror(tls(other)) as (address, handler), open_channel(address, settings) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await say(channel, "unary_unary")
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert TOKEN not in str(caught.value)
    assert handler.calls == 0


async def test_tls_against_a_plaintext_server_and_the_reverse_fail(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    for credentials, ca in ((None, authority.ca), (tls(authority), None)):
        async with mirror(credentials) as (address, handler):
            async with open_channel(address, ChannelSettings(tls_ca=ca)) as channel:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await say(channel, "unary_unary")
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert handler.calls == 0


async def test_token_leaves_the_machine_only_encrypted_or_with_permission() -> None:
    settings = ChannelSettings(token=TOKEN)  # type: ignore[arg-type]
    for opened in (open_channel, open_sync_channel):
        with pytest.raises(ValueError, match=r"relay\.example:1 without TLS") as caught:
            opened("relay.example:1", settings)
        assert TOKEN not in str(caught.value)
    permitted = ChannelSettings(token=TOKEN, allow_insecure=True)  # type: ignore[arg-type]
    await open_channel("relay.example:1", permitted).close()


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ({"CHANNEL_TLS_CERTIFICATE": "c.pem", "CHANNEL_TLS_CA": "ca.pem"}, "tls_certificate and tls_key go together"),
        ({"CHANNEL_TLS_CERTIFICATE": "c.pem", "CHANNEL_TLS_KEY": "c.key"}, "tls_certificate needs tls_ca"),
        ({"TOKEN": f"{TOKEN}\n{TOKEN}"}, "DEXORDER_TOKEN: .*visible ASCII"),
        ({"TOKEN": f"{TOKEN}\x01"}, "DEXORDER_TOKEN: .*visible ASCII"),
        ({"TOKEN": TOKEN, "ALLOW_INSECURE": "perhaps"}, "DEXORDER_ALLOW_INSECURE"),
    ],
)
def test_error_names_the_variable_and_shows_no_value(
    variables: dict[str, str], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"DEXORDER_{name}", value)
    with pytest.raises(BadSettings, match=problem) as caught:
        open_channel("127.0.0.1:1")
    assert TOKEN not in str(caught.value)


def test_token_from_a_file_is_stripped_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEXORDER_TOKEN", f"{TOKEN}\n")
    settings = read_settings(ChannelSettings)
    assert settings.token is not None
    assert settings.token.get_secret_value() == TOKEN
    assert TOKEN not in f"{settings} {settings!r} {settings.model_dump()} {settings.model_dump_json()}"
    monkeypatch.setenv("DEXORDER_TOKEN", "")
    assert read_settings(ChannelSettings).token is None


def test_options_override_the_keepalive() -> None:
    assert _merged(()) == list(CLIENT_KEEPALIVE)
    merged = _merged([("grpc.keepalive_time_ms", 1), ("grpc.max_send_message_length", 2)])
    assert dict(merged)["grpc.keepalive_time_ms"] == 1
    assert len(merged) == len(CLIENT_KEEPALIVE) + 1
