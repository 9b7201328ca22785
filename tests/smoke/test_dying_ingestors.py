"""Ingestors that go away in the worst moment for libzmq: see docs/decisions/0018. None takes the relay with it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import zmq

from services.common.messaging.frames import encode_work
from services.gen.dexorder.ingest.v1 import ingest_pb2 as pb
from tests import zmtp
from tests.paths import ROOT
from tests.smoke.harness import wait_for
from tests.soak.broker_campaign import Relay, running_relay
from tests.unit.services.ingestor.conftest import minutes
from tests.unit.services.ingestor.fakes import dispatch

pytestmark = [pytest.mark.smoke, pytest.mark.timeout(180)]
HEARTBEAT_S = 0.5
BEAT = encode_work(pb.WorkHeartbeat(job_id="0" * 32))
FLOOD_S, KILLS, BREAKS = 1.0, 2, 20
STALLED_S = 8.0
"""Longer than the ingestor's heartbeats need to find out, and to be due once more."""
INGESTOR = """
import sys, time, zmq
address, pause_s, *beat = sys.argv[1:]
dealer = zmq.Context().socket(zmq.DEALER)
dealer.setsockopt(zmq.IDENTITY, b"same")
dealer.setsockopt(zmq.HEARTBEAT_IVL, 100)
dealer.connect(address)
print("begun", flush=True)
while True:
    dealer.send_multipart([bytes.fromhex(frame) for frame in beat])
    time.sleep(float(pause_s))
"""


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[Relay]:
    with running_relay(tmp_path, DEXORDER_RELAY_BROKER_HEARTBEAT_SECONDS=str(HEARTBEAT_S)) as made:
        yield made


@contextmanager
def sending(relay: Relay, pause_s: float) -> Iterator[None]:
    """An ingestor of its own process says one thing again and again until it is killed, at the block's end."""
    order = [relay.broker, str(pause_s), *(frame.hex() for frame in BEAT)]
    process = subprocess.Popen([sys.executable, "-c", INGESTOR, *order], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "begun\n"
        yield
    finally:
        process.kill()
        process.communicate()


def assert_it_serves(relay: Relay) -> None:
    """A frame of somebody new comes to the engine."""
    before = relay.dropped().get("no_job_id", 0)
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.connect(relay.broker)
        dealer.send_multipart(encode_work(pb.WorkHeartbeat()))
        wait_for(lambda: relay.dropped().get("no_job_id", 0) == before + 1, 60, relay.log.read_text)


def test_killed_in_a_flood(relay: Relay) -> None:
    for _ in range(KILLS):
        with sending(relay, 0.0):
            time.sleep(FLOOD_S)
        time.sleep(2 * HEARTBEAT_S)
        assert relay.process.is_alive(), relay.log.read_text()
    assert_it_serves(relay)


def test_broken_off_in_a_flood_with_a_heartbeat_in_it(relay: Relay) -> None:
    flood = (zmtp.message(*BEAT) * 60 + zmtp.PING) * 200
    for _ in range(BREAKS):
        peer = zmtp.connect(relay.broker)
        peer.sendall(flood)
        zmtp.reset(peer)
        time.sleep(0.1)
        assert relay.process.is_alive(), relay.log.read_text()
    assert_it_serves(relay)


def test_the_older_of_two_under_one_identity_is_killed(relay: Relay) -> None:
    """The younger has taken the identity; what the older sends nobody reads any more."""
    with ExitStack() as younger:
        with sending(relay, 0.05):
            time.sleep(FLOOD_S)
            younger.enter_context(sending(relay, 0.05))
            time.sleep(FLOOD_S)
        time.sleep(4 * HEARTBEAT_S)
        assert relay.process.is_alive(), relay.log.read_text()
        assert_it_serves(relay)


def test_an_ingestor_outlives_a_relay_that_goes_while_a_thousand_dispatches_are_unread() -> None:
    """More than it has offered, which a relay of ours never sends."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as relay:
        port = relay.bind_to_random_port("tcp://127.0.0.1")
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.smoke.stalled_worker", f"tcp://127.0.0.1:{port}", str(STALLED_S)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            ingestor, *_ = relay.recv_multipart()
            relay.send_multipart([ingestor, *encode_work(dispatch("first", minutes(0, 10)))])
            assert process.stdout is not None and "stalled\n" in process.stdout
            for number in range(1_100):
                relay.send_multipart([ingestor, *encode_work(dispatch(str(number), minutes(0, 10)))])
            time.sleep(1)
            relay.close(linger=0)
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()
            process.communicate()
