"""A container that counts answers, with a gateway that is stopped (SIGSTOP) again and again while its window is full.

It is a peer without the suite's library: no heartbeats, no resends. An answer that is not sent is a place of its window
that it never gets back.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import zmq

from dexorder_common.messaging.frames import VERSION, decode_ack
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as pb
from tests.integration.events.container import NORMAL, USER_EVENT, event
from tests.rig.events_gateway import EventsGateway, Keys

SILENCE_MS = 30_000
"""Time without an answer, beyond the freezes, after which the missing ones are lost."""
_NO_QUOTA = {"soft_events_per_second": 1e9, "hard_events_per_second": 1e9, "queued_events": 1_000_000_000}


def gateway_without_quotas(folder: Path) -> EventsGateway:
    """Return a gateway without CURVE and quotas, not started."""
    keys = Keys(folder / "keys")
    keys.local(quota=_NO_QUOTA)
    keys.write()
    return EventsGateway(folder, keys, curve=False, log_level="info")


def unanswered(gateway: EventsGateway, *, count: int, in_flight: int, freezes_s: list[float]) -> tuple[int, int]:
    """Send events, at most ``in_flight`` without an answer, while the gateway freezes, at least ``count``.

    Return how many got no answer, and how many were sent.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    for option in (zmq.LINGER, zmq.SNDHWM, zmq.RCVHWM):
        dealer.setsockopt(option, 0)
    dealer.connect(gateway.router)
    freezing = threading.Thread(target=_freeze, args=(gateway.pid, freezes_s))
    missing: set[str] = set()
    sent = 0
    freezing.start()
    try:
        while sent < count or missing or freezing.is_alive():
            while (sent < count or freezing.is_alive()) and len(missing) < in_flight:
                # no user has a contact: the event is final, and answered once
                made = event("zoe", f"e-{sent}", NORMAL, [pb.TELEGRAM])
                dealer.send_multipart([VERSION, USER_EVENT + made.SerializeToString()])
                missing.add(made.event_id)
                sent += 1
            if not dealer.poll(SILENCE_MS):
                break
            missing.discard(decode_ack(dealer.recv_multipart()).event_id)
    finally:
        freezing.join()
        context.destroy(0)
    return len(missing), sent


def _freeze(pid: int, freezes_s: list[float]) -> None:
    draw = random.Random(len(freezes_s))
    for seconds in freezes_s:
        time.sleep(draw.uniform(0.02, 0.4))
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)


@contextmanager
def busy_cores(processes: int) -> Iterator[None]:
    """Keep cores busy: the acks are lost where libzmq's own thread has to wait for one."""
    burning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for each in burning:
            each.kill()
            each.wait()
