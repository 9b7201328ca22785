"""The command line's calls against the gateway's own services."""

from pathlib import Path

import pytest

from dexorder.errors import DexorderError, GatewayRefused
from dexorder.events import gateway_client
from dexorder_common.model.errors import Code
from dexorder_protos.dexorder.events.v1 import event_service_pb2 as pb
from tests.fakes.events.sessions_gateway import served
from tests.fakes.mesh_proxy import ResettingProxy


async def test_a_session_whose_token_expires_continues_with_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_client, "FIRST_PAUSE_SECONDS", 0.01)
    async with served(tmp_path) as gateway:
        lives, shown, notes = iter((1, 600)), list[str](), list[str]()
        gateway.dispatcher.keep("alice", "first")

        def handle(message: pb.WatchEventsResponse, place: pb.Cursor) -> bool:
            if message.HasField("event"):
                shown.append(message.event.event.event_id)
            return len(shown) < 2

        def note(text: str) -> None:
            notes.append(text)
            gateway.dispatcher.keep("alice", "second")

        await gateway_client.follow(
            gateway.grpc,
            lambda: gateway.token("alice", next(lives)),
            None,
            handle,
            client_name="test",
            receive=True,
            on_note=note,
        )
        assert shown == ["first", "second"] and len(notes) == 1
        assert "answered UNAUTHENTICATED: the token has expired" in notes[0]


async def test_a_session_goes_on_though_a_proxy_resets_its_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_client, "FIRST_PAUSE_SECONDS", 0.01)
    async with served(tmp_path) as gateway:
        proxy, shown, notes = ResettingProxy(int(gateway.grpc.rpartition(":")[2])), list[str](), list[str]()
        for number in range(3):
            gateway.dispatcher.keep("alice", f"e{number}")

        def handle(message: pb.WatchEventsResponse, place: pb.Cursor) -> bool:
            if message.HasField("event"):
                shown.append(message.event.event.event_id)
            return len(shown) < 3

        proxy.after = [1, 2, 1, 1]  # the stream; that of the next attempt and its ack, or the next ones
        async with proxy.listening(0) as port:
            await gateway_client.follow(
                f"127.0.0.1:{port}",
                lambda: gateway.token("alice"),
                None,
                handle,
                client_name="test",
                receive=True,
                on_note=notes.append,
            )
        assert list(dict.fromkeys(shown)) == ["e0", "e1", "e2"] and proxy.resets == 4
        assert notes and not any("answered" in note for note in notes), "a proxy did"


async def test_a_refusal_has_the_gateways_text(tmp_path: Path) -> None:
    async with served(tmp_path) as gateway:
        with pytest.raises(GatewayRefused, match="answered NOT_FOUND: event_id 'e' of container 'bot'") as refused:
            await gateway_client.get_event(gateway.grpc, "bot", "e")
        assert refused.value.code is Code.NOT_FOUND
        assert await gateway_client.list_events(gateway.grpc, pb.ListEventsRequest(), 5) == []
        with pytest.raises(GatewayRefused, match="UNAUTHENTICATED: the token is not a JWT"):
            await gateway_client.follow(
                gateway.grpc, lambda: "nonsense", None, lambda *_: True, client_name="t", receive=True, on_note=print
            )


async def test_a_token_does_not_leave_the_machine_in_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DEXORDER_ALLOW_INSECURE", raising=False)
    with pytest.raises(DexorderError, match=r"the token would go to 10\.0\.0\.1:1 without TLS"):
        await gateway_client.follow(
            "10.0.0.1:1", lambda: "secret", None, lambda *_: True, client_name="t", receive=True, on_note=print
        )
