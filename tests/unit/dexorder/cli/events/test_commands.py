import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import grpc
import pytest
from typer.testing import Result

from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.events.sessions.user_tokens import TokenVerifier, make_keys
from dexorder_protos.dexorder.events.v1 import event_service_pb2 as pb
from dexorder_protos.dexorder.events.v1 import event_service_pb2_grpc as rpc
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as given
from tests.fakes.zmq_gateway import Gateway
from tests.rig.command import dexorder

run = partial(dexorder, "events")


def event(number: int, payload: bytes = b'{"order_id":"17"}') -> given.UserEvent:
    channels = [
        given.ChannelPreference(channel=given.ACTIVE_SESSION),
        given.ChannelPreference(channel=given.TELEGRAM, only_if_active=True),
    ]
    return given.UserEvent(
        user_id="alice",
        event_id=f"e{number}",
        timestamp=1_700_000_000_000,
        event_type=given.ORDER_FILLED,
        payload=payload,
        delivery=given.DeliverySpec(priority=given.CRITICAL, channels=channels),
    )


def record(number: int) -> pb.EventRecord:
    return pb.EventRecord(
        container="bot",
        event=event(number),
        accepted_ms=1_700_000_000_500,
        status=given.DELIVERED,
        delivered_via=given.TELEGRAM,
        completed_ms=1_700_000_006_000,
        attempts=[
            pb.Attempt(
                number=1, channel=given.WEB, started_ms=1_700_000_000_500, ended_ms=1_700_000_005_500, outcome="no ack"
            ),
            pb.Attempt(
                number=2,
                channel=given.TELEGRAM,
                started_ms=1_700_000_005_500,
                ended_ms=1_700_000_006_000,
                outcome="sent",
            ),
        ],
    )


class FakeGateway(rpc.EventServiceServicer, rpc.EventPublisherServiceServicer, rpc.EventLogServiceServicer):
    """A gateway with five events in alice's log; it closes a session after two."""

    def __init__(self, tokens: TokenVerifier) -> None:
        self.tokens = tokens
        self.cursors: list[tuple[str, int] | None] = []
        self.acked: list[int] = []
        self.published: list[given.UserEvent] = []
        self.acks = [
            given.EventAck(status=given.QUEUED),
            given.EventAck(status=given.DELIVERED, delivered_via=given.EMAIL),
        ]
        self.asked: list[pb.ListEventsRequest] = []
        self.cut = grpc.StatusCode.UNAVAILABLE
        self.refuse = ""
        self.shown = [event(n) for n in range(1, 6)]

    def _user(self, context: Any) -> str:
        token = dict(context.invocation_metadata())["authorization"].removeprefix("Bearer ")
        return self.tokens.user(token).user_id

    def WatchEvents(self, request: pb.WatchEventsRequest, context: Any) -> Iterator[pb.WatchEventsResponse]:
        if self.refuse:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, self.refuse)
        assert self._user(context) == "alice"
        given_cursor = (request.cursor.epoch, request.cursor.sequence) if request.HasField("cursor") else None
        self.cursors.append(given_cursor)
        at = given_cursor[1] if given_cursor and given_cursor[0] == "E" else 0
        opened = pb.Opened(cursor=pb.Cursor(epoch="E", sequence=at))
        reset = given_cursor is not None and given_cursor[0] != "E"
        yield pb.WatchEventsResponse(reset=opened) if reset else pb.WatchEventsResponse(opened=opened)
        for number in range(at + 1, min(at + 3, 6)):
            shown = pb.SessionEvent(
                sequence=number, container="bot", event=self.shown[number - 1], title="Order filled"
            )
            yield pb.WatchEventsResponse(event=shown)
        context.abort(self.cut, "cut")

    def AckEvent(self, request: pb.AckEventRequest, context: Any) -> pb.AckEventResponse:
        assert self._user(context) == "alice" and request.cursor.epoch == "E"
        assert request.kind == pb.ACK_KIND_RECEIVED
        self.acked.append(request.cursor.sequence)
        return pb.AckEventResponse()

    def Publish(self, request: pb.PublishRequest, context: Any) -> pb.PublishResponse:
        raise NotImplementedError

    def PublishMany(self, requests: Iterator[pb.PublishManyRequest], context: Any) -> Iterator[pb.PublishManyResponse]:
        self.published.append(next(requests).event)
        for ack in self.acks:
            ack.event_id = self.published[-1].event_id
            yield pb.PublishManyResponse(ack=ack)

    def GetEvent(self, request: pb.GetEventRequest, context: Any) -> pb.GetEventResponse:
        if request.container != "bot":
            context.abort(grpc.StatusCode.NOT_FOUND, f"event_id {request.event_id!r} was never accepted")
        return pb.GetEventResponse(record=record(1))

    def ListEvents(self, request: pb.ListEventsRequest, context: Any) -> pb.ListEventsResponse:
        self.asked.append(request)
        number = int(request.page_token or 9)
        return pb.ListEventsResponse(records=[record(number)], next_page_token=str(number - 1))


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys", "dev")
    return tmp_path / "keys"


@pytest.fixture
def gateway(keys: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGateway]:
    monkeypatch.setattr("dexorder.events.gateway_client.FIRST_PAUSE_SECONDS", 0.01)
    fake = FakeGateway(TokenVerifier(EventsSettings(jwt_keys=keys)))
    with ThreadPoolExecutor(4) as threads:
        server = grpc.server(threads)
        rpc.add_EventServiceServicer_to_server(fake, server)
        rpc.add_EventPublisherServiceServicer_to_server(fake, server)
        rpc.add_EventLogServiceServicer_to_server(fake, server)
        monkeypatch.setenv("DEXORDER_GATEWAY_ADDRESS", f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
        server.start()
        yield fake
        server.stop(None).wait()


def ids(result: Result) -> list[str]:
    return [json.loads(line)["event"]["event_id"] for line in result.stdout.splitlines()]


@pytest.mark.parametrize("cut", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAUTHENTICATED])
def test_tail_continues_after_a_broken_session(gateway: FakeGateway, keys: Path, cut: grpc.StatusCode) -> None:
    gateway.cut = cut
    result = run("tail", "--user", "alice", "--key", str(keys / "dev.key"), "--count", "5", "--json")
    assert result.exit_code == 0, result.stderr
    assert ids(result) == ["e1", "e2", "e3", "e4", "e5"]
    assert gateway.cursors == [None, ("E", 2), ("E", 4)] and gateway.acked == [1, 2, 3, 4, 5]


def test_tail_stores_its_cursor_and_peek_sends_no_acks(gateway: FakeGateway, keys: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(run("token", "alice", "--key", str(keys / "dev.key")).stdout)
    place = tmp_path / "place"
    options = ("tail", "--token-file", str(token), "--cursor", str(place), "--json", "--count", "1", "--peek")
    assert ids(run(*options)) == ["e1"] and ids(run(*options)) == ["e2"]
    assert gateway.acked == [] and gateway.cursors == [None, ("E", 1)]
    place.write_text("other 7\n")
    result = run(*options)
    assert ids(result) == ["e1"] and "the cursor is unknown to the gateway or too old" in result.stderr


def test_tail_with_an_invalid_token_ends(gateway: FakeGateway, tmp_path: Path) -> None:
    gateway.refuse = "the token has expired"
    token = tmp_path / "token"
    token.write_text("old")
    result = run("tail", "--token-file", str(token))
    assert result.exit_code == 1 and "answered UNAUTHENTICATED: the token has expired" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_text_of_events_cannot_control_the_terminal(gateway: FakeGateway, keys: Path) -> None:
    gateway.shown[0].event_id = "\x1b[2J[red]e"
    result = run("tail", "--user", "alice", "--key", str(keys / "dev.key"), "--count", "1")
    assert "\x1b" not in result.stdout and "[red]e" in result.stdout
    assert result.stdout.startswith("2023-11-14T22:13:20Z CRITICAL ORDER_FILLED")


def test_send_prints_the_acks_until_the_final_one(gateway: FakeGateway) -> None:
    arguments = ("send", "alice", "order_filled", '{"n": 1}', "--priority", "critical", "--event-id", "mine")
    result = run(*arguments, "--channel", "email", "--channel", "telegram:active")
    assert (result.exit_code, result.stdout) == (0, "mine QUEUED\nmine DELIVERED via EMAIL\n")
    (sent,) = gateway.published
    assert (sent.user_id, sent.event_type, sent.payload) == ("alice", given.ORDER_FILLED, b'{"n":1}')
    assert [(each.channel, each.only_if_active) for each in sent.delivery.channels] == [
        (given.EMAIL, False),
        (given.TELEGRAM, True),
    ]
    gateway.acks = [given.EventAck(status=given.ACK_ERROR, error_message="user not owned")]
    result = run("send", "alice", "99", "-", "--json", stdin='{"n": 2}')
    assert result.exit_code == 1 and json.loads(result.stdout)["error"] == "user not owned"
    assert gateway.published[-1].payload == b'{"n":2}'


def test_send_over_zmq(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake, stop = Gateway(), Event()
    monkeypatch.setenv("DEXORDER_PUBLISHER_FAST", fake.fast)
    monkeypatch.setenv("DEXORDER_PUBLISHER_GUARANTEED", fake.guaranteed)

    def serve() -> None:
        while not stop.is_set():
            if found := fake.event(20):
                fake.answer(found.event_id, given.QUEUED)
                fake.answer(found.event_id, given.DELIVERED, via=given.SLACK)

    thread = Thread(target=serve)
    thread.start()
    try:
        options = ("--zmq", "--outbox", str(tmp_path / "o.db"), "--event-id", "e")
        result = run("send", "alice", "ORDER_FILLED", "--priority", "CRITICAL", *options)
        assert (result.exit_code, result.stdout) == (0, "e QUEUED\ne DELIVERED via SLACK\n"), result.stderr
    finally:
        stop.set()
        thread.join()
        fake.close()


def test_show_prints_the_record_of_an_event(gateway: FakeGateway) -> None:
    lines = run("show", "bot", "e1").stdout.splitlines()
    assert "status     DELIVERED via TELEGRAM" in [line.rstrip() for line in lines]
    assert lines[-2].split(maxsplit=2)[2].strip() == "2023-11-14T22:13:20Z WEB: no ack after 5,000 ms"
    found = json.loads(run("show", "bot", "e1", "--json").stdout)
    assert found["delivered_via"] == "TELEGRAM" and found["seen_at"] is None
    assert found["event"]["payload"] == {"order_id": "17"} and found["attempts"][1]["outcome"] == "sent"
    unknown = run("show", "other", "e1")
    assert unknown.exit_code == 1 and "NOT_FOUND: event_id 'e1' was never accepted" in unknown.stderr


def test_list_reads_all_pages(gateway: FakeGateway) -> None:
    result = run("list", "--user", "alice", "--status", "delivered", "--limit", "3", "--json")
    assert [each["event"]["event_id"] for each in json.loads(result.stdout)] == ["e9", "e8", "e7"]
    assert [(each.user_id, each.status, each.page_size) for each in gateway.asked] == [
        ("alice", given.DELIVERED, 3),
        ("alice", given.DELIVERED, 2),
        ("alice", given.DELIVERED, 1),
    ]
    assert "e9" in run("list", "--limit", "1").stdout


def test_unreachable_gateway_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run("show", "bot", "e1", "--gateway", "127.0.0.1:1")
    assert result.exit_code == 1 and len(result.stderr.splitlines()) == 1
    assert "the gateway at 127.0.0.1:1 does not answer: nothing listens there; start it, or give" in result.stderr
