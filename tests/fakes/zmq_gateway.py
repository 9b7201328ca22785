"""A gateway's side of both ports that answers as a test says, and publishers that find it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import zmq

from dexorder.events import Outcome, Publisher
from dexorder_common.messaging.frames import encode_ack, event_body, published_body, topic
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as pb

PATIENCE_MS = 5_000


class Gateway:
    """SUB and ROUTER, bound. Nothing is answered but by `answer`."""

    def __init__(self, fast: str = "tcp://127.0.0.1:*", guaranteed: str = "tcp://127.0.0.1:*") -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._sub, self._router = self._context.socket(zmq.SUB), self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        for socket in (self._sub, self._router):
            socket.setsockopt(zmq.LINGER, 0)
        self._sub.bind(fast)
        self._router.bind(guaranteed)
        self.fast = self._sub.getsockopt_string(zmq.LAST_ENDPOINT)
        self.guaranteed = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._peer = b""

    def watch(self, user_id: str) -> None:
        self._sub.setsockopt(zmq.SUBSCRIBE, topic(user_id))

    def unwatch(self, user_id: str) -> None:
        self._sub.setsockopt(zmq.UNSUBSCRIBE, topic(user_id))

    def event(self, wait_ms: int = PATIENCE_MS) -> pb.UserEvent | None:
        """The next event on 5571; None if there is none for so long."""
        if not self._router.poll(wait_ms):
            return None
        self._peer, *frames = self._router.recv_multipart()
        return pb.UserEvent.FromString(event_body(frames))

    def fast_event(self, wait_ms: int = PATIENCE_MS) -> pb.UserEvent | None:
        """The next event on 5570."""
        if not self._sub.poll(wait_ms):
            return None
        to, body = published_body(self._sub.recv_multipart())
        event = pb.UserEvent.FromString(body)
        assert to == topic(event.user_id)
        return event

    def answer(self, event_id: str, status: Any, error: str = "", via: Any = 0) -> None:
        """Answer whoever sent last.

        A publisher that was stalled for two heartbeats has a new connection and identity by then, on which it sends
        again what is not answered: that connection gets the answer.
        """
        ack = pb.EventAck(event_id=event_id, status=status, error_message=error, delivered_via=via)
        self.answer_raw(*encode_ack(ack))

    def answer_copies(self, event_id: str, status: Any, *, until: Callable[[], bool], via: Any = 0) -> None:
        """Answer, and answer each further copy, until a condition holds; those to an old connection are lost."""
        end = time.monotonic() + PATIENCE_MS / 1_000
        self.answer(event_id, status, via=via)
        while not until():
            assert time.monotonic() < end, f"no answer to {event_id} has arrived"
            if self.event(0):
                self.answer(event_id, status, via=via)

    def answer_raw(self, *frames: bytes) -> None:
        while True:
            try:
                self._router.send_multipart([self._peer, *frames])
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH or self.event() is None:
                    raise
            else:
                return

    def tick(self) -> None:
        """A socket that binds takes new peers only while its owner looks at it."""
        if not self._context.closed:
            self._sub.poll(0)
            self._router.poll(0)

    def close(self) -> None:
        self._context.destroy(linger=0)


class Container:
    """Makes publishers over one outbox, and keeps the outcomes they tell of."""

    def __init__(self, gateway: Gateway, outbox: Path, closing: ExitStack) -> None:
        self.gateway = gateway
        self.outbox = outbox
        self._closing = closing
        self.outcomes: list[Outcome] = []

    def start(self, **settings: Any) -> Publisher:
        given: dict[str, Any] = {
            "outbox": self.outbox,
            "fast": self.gateway.fast,
            "guaranteed": self.gateway.guaranteed,
            "heartbeat_ms": 100,
            "retransmit_base_seconds": 30,
            "query_seconds": 60,
        }
        publisher = Publisher(on_outcome=self.outcomes.append, **given | settings)
        self._closing.callback(publisher.close)
        return publisher
