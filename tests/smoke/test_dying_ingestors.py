"""Ingestors that die at the worst moment for libzmq (docs/decisions/0018); the relay survives each."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import zmq

from dexorder_common.messaging.frames import encode_work
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb
from tests import zmtp
from tests.nightly.broker_campaign import Relay, running_relay
from tests.paths import ROOT
from tests.rig.processes import until
from tests.unit.services.ingestor.conftest import minutes
from tests.unit.services.ingestor.fakes import dispatch

pytestmark = [pytest.mark.smoke, pytest.mark.timeout(180)]
HEARTBEAT_S = 0.5
BEAT_FRAMES = encode_work(pb.WorkHeartbeat(job_id="0" * 32))
FLOOD_S, KILLS, BREAKS = 1.0, 2, 20
STALLED_S = 8.0
"""Longer than the ingestor's heartbeats need to detect the loss and to be due once more."""
INGESTOR = """
import sys, time, zmq
address, pause_s, *heartbeat_frames = sys.argv[1:]
dealer = zmq.Context().socket(zmq.DEALER)
dealer.setsockopt(zmq.IDENTITY, b"same")
dealer.setsockopt(zmq.HEARTBEAT_IVL, 100)
dealer.connect(address)
print("started", flush=True)
while True:
    dealer.send_multipart([bytes.fromhex(frame) for frame in heartbeat_frames])
    time.sleep(float(pause_s))
"""


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[Relay]:
    with running_relay(tmp_path, DEXORDER_RELAY_BROKER_HEARTBEAT_SECONDS=str(HEARTBEAT_S)) as made:
        yield made


@contextmanager
def sending(relay: Relay, pause_s: float) -> Iterator[None]:
    """Run an ingestor process that repeats one message until it is killed at the end of the block."""
    order = [relay.broker, str(pause_s), *(frame.hex() for frame in BEAT_FRAMES)]
    process = subprocess.Popen([sys.executable, "-c", INGESTOR, *order], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "started\n"
        yield
    finally:
        process.kill()
        process.communicate()


def assert_relay_serves(relay: Relay) -> None:
    """Assert that a frame of a new peer reaches the engine."""
    before = relay.dropped().get("no_job_id", 0)
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.connect(relay.broker)
        dealer.send_multipart(encode_work(pb.WorkHeartbeat()))
        until(lambda: relay.dropped().get("no_job_id", 0) == before + 1, 60, relay.process.tail)


def test_ingestor_killed_during_a_flood(relay: Relay) -> None:
    for _ in range(KILLS):
        with sending(relay, 0.0):
            time.sleep(FLOOD_S)
        time.sleep(2 * HEARTBEAT_S)
        assert relay.process.lives, relay.process.tail()
    assert_relay_serves(relay)


def test_connection_broken_during_a_flood_with_a_heartbeat_in_it(relay: Relay) -> None:
    flood = (zmtp.message(*BEAT_FRAMES) * 60 + zmtp.PING) * 200
    for _ in range(BREAKS):
        peer = zmtp.connect(relay.broker)
        peer.sendall(flood)
        zmtp.reset(peer)
        time.sleep(0.1)
        assert relay.process.lives, relay.process.tail()
    assert_relay_serves(relay)


def test_older_of_two_ingestors_with_one_identity_is_killed(relay: Relay) -> None:
    """The newer connection has the identity; nothing reads the frames of the older one."""
    with ExitStack() as newer:
        with sending(relay, 0.05):
            time.sleep(FLOOD_S)
            newer.enter_context(sending(relay, 0.05))
            time.sleep(FLOOD_S)
        time.sleep(4 * HEARTBEAT_S)
        assert relay.process.lives, relay.process.tail()
        assert_relay_serves(relay)


def test_ingestor_survives_a_relay_that_ends_while_a_thousand_dispatches_are_unread() -> None:
    """More dispatches than slots, which our relay never sends."""
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
