"""Sockets where libzmq alone would not do: peers that disconnect while we read, or send while we do not."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
import zmq

from dexorder.events import PublisherSettings
from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.events.ingress.containers import ContainersFile
from dexorder_gateway.events.ingress.sockets import EventSockets, open_sockets
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as pb
from tests import zmtp

SENT = 400
SECONDS = 30.0
WINDOW = int(PublisherSettings.model_fields["window"].default)
SENT_AGAIN = 4
"""Copies of each event that our library sends in a quarter of a minute without an answer."""


def main() -> None:
    """Read from a container that has disconnected, frame by frame, as far as possible; libzmq may abort."""
    with zmq.Context() as context, context.socket(zmq.XPUB) as xpub, context.socket(zmq.DEALER) as dealer:
        sub, router = (bound(socket) for socket in (xpub, dealer))
        with open_sockets(EventsSettings(sub=sub, router=router, connect=True), ContainersFile(None), print) as ports:
            send(dealer, 1)
            until_read(ports, 1)
            for _ in range(2):  # one frame less: libzmq looks for news at every 100th, which is in a message now
                dealer.send(b"\x01")
            send(dealer, SENT)
            time.sleep(0.5)
            dealer.close()
            time.sleep(0.5)
            read = len(list(ports.events(SENT)))  # without asking for news before
            with context.socket(zmq.DEALER) as another:
                bound(another, router)
                until_read(ports, 0)
                send(another, SENT)
                until_read(ports, SENT)
            assert read == SENT - 2, read


def bound(socket: zmq.Socket[bytes], address: str = "tcp://127.0.0.1:0") -> str:
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.IMMEDIATE, 1)
    socket.bind(address)
    return socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\x00")


def send(dealer: zmq.Socket[bytes], count: int) -> None:
    body = b"\x20" + pb.UserEvent(event_id="e").SerializeToString()
    for _ in range(count):
        dealer.send_multipart([b"\x01", body])


def until_read(ports: EventSockets, count: int) -> None:
    """Read this many messages."""
    until_s = time.monotonic() + SECONDS
    while ports.wait(100, router=True, sub=True)[0] or count:
        count -= len(list(ports.events(count)))
        assert time.monotonic() < until_s, count


def test_heartbeats_are_answered_while_messages_wait() -> None:
    settings = EventsSettings(sub="tcp://127.0.0.1:0", router="tcp://127.0.0.1:0")
    with zmq.Context() as context, open_sockets(settings, ContainersFile(None), print) as ports, ExitStack() as stack:
        dealer = stack.enter_context(context.socket(zmq.DEALER))
        for option, value in ((zmq.HEARTBEAT_IVL, 50), (zmq.HEARTBEAT_TIMEOUT, 200), (zmq.LINGER, 0), (zmq.SNDHWM, 0)):
            dealer.setsockopt(option, value)
        monitor = stack.enter_context(dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED))
        stack.callback(dealer.disable_monitor)
        dealer.connect(ports.router_address)
        until_read(ports, 0)
        send(dealer, WINDOW * SENT_AGAIN)
        assert not monitor.poll(1000), "a slow disk must not look like a gateway that has disconnected"
        until_read(ports, WINDOW * SENT_AGAIN)


@pytest.mark.parametrize(("port", "kind"), [("router_address", b"DEALER"), ("sub_address", b"XPUB")])
def test_a_message_without_an_end_costs_its_connection_and_no_memory(
    monkeypatch: pytest.MonkeyPatch, port: str, kind: bytes
) -> None:
    monkeypatch.setattr("dexorder_common.messaging.zmq_tcp_proxy.STUCK_SECONDS", 0.2)
    settings = EventsSettings(sub="tcp://127.0.0.1:0", router="tcp://127.0.0.1:0")
    with open_sockets(settings, ContainersFile(None), print) as ports, ThreadPoolExecutor(1) as attacker:
        closed = attacker.submit(zmtp.is_closed_in_an_endless_message, getattr(ports, port), kind)
        while not closed.done():
            ports.wait(20, router=True, sub=True)
            assert not list(ports.events(SENT)) and not list(ports.published(SENT))
    assert closed.result()


def test_container_that_disconnects_within_a_message_does_not_abort_the_process() -> None:
    done = subprocess.run([sys.executable, "-m", __name__], capture_output=True, text=True, timeout=4 * SECONDS)
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    main()
