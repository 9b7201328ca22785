"""ROUTER socket: invalid frames are dropped and counted by reason, and the next valid frame is served."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import zmq
import zmq.asyncio
from prometheus_client import CollectorRegistry
from zmq.utils.monitor import recv_monitor_message

from dexorder_common.messaging.frames import encode_work
from dexorder_common.model.history import Dispatch
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_relay.broker.router import open_broker
from dexorder_relay.metrics import RelayMetrics
from tests import zmtp
from tests.unit.services.relay.harness import at, minute, settings, suite, until

GARBAGE: list[tuple[str, list[bytes]]] = [
    ("frame_count", [b""]),
    ("frame_count", [b"\x01", b"\x20", b""]),
    ("frame_count", [b""] * 50),
    ("version", [b"\x02", b"\x20"]),
    ("version", [b"", b""]),
    ("type", [b"\x01", b""]),
    ("type", [b"\x01", b"\x01"]),
    ("type", [b"\x01", b"\xff" * 60_000]),
    ("undecodable", [b"\x01", b"\x20\xff\xff"]),
    ("undecodable", [b"\x01", b"\x21" + b"\xff" * 1_000]),
    ("direction", encode_work(ingest.DataRequest(request_id="r"))),
    ("direction", encode_work(ingest.WorkStop(job_id="x"))),
    ("exchange", encode_work(ingest.WorkerReady())),
    ("exchange", encode_work(ingest.WorkerReady(exchanges=["SIM", "SIM"]))),
    ("exchange", encode_work(ingest.WorkerReady(exchanges=["MOON"]))),
    ("job_type", [b"\x01", b"\x20" + ingest.WorkerReady(exchanges=["SIM"]).SerializeToString() + b"\x10\x09"]),
    ("no_job_id", encode_work(ingest.WorkComplete())),
    ("no_job_id", encode_work(ingest.WorkHeartbeat())),
    ("not_current", encode_work(ingest.WorkComplete(job_id="x", success=True))),
    ("not_current", encode_work(ingest.WorkReject(job_id="x"))),
    ("not_current", encode_work(ingest.WorkHeartbeat(job_id="x"))),
]


async def test_garbage_is_dropped_and_counted_and_good_frames_are_served(tmp_path: Path, monkeypatch: Any) -> None:
    registries: list[CollectorRegistry] = []
    monkeypatch.setattr("dexorder_relay.server.CollectorRegistry", lambda: _kept(registries))
    async with suite(tmp_path, max_slots_per_ingestor=2) as s:
        ingestor = s.ingestor()
        for _, frames in GARBAGE:
            await ingestor.socket.send_multipart(frames)
        await ingestor.offer(5)  # three too many
        await s.queued("r", 0, 10)
        dispatch = await ingestor.take()  # the broker takes frames in order: all garbage is behind us
        assert minute(dispatch.historical.end_time) == 10
        expected: dict[str, int] = {"too_many_slots": 3}
        for reason, _ in GARBAGE:
            expected[reason] = expected.get(reason, 0) + 1
        assert {reason: _dropped(registries[0], reason) for reason in expected} == expected
        free = {"exchange": "SIM", "kind": "HISTORICAL"}
        await until(lambda: registries[0].get_sample_value("dexorder_relay_jobs_running", {"exchange": "SIM"}) == 1)
        assert registries[0].get_sample_value("dexorder_relay_slots_free", free) == 1


def _kept(registries: list[CollectorRegistry]) -> CollectorRegistry:
    registries.append(CollectorRegistry())
    return registries[-1]


def _dropped(registry: CollectorRegistry, reason: str) -> float | None:
    return registry.get_sample_value("dexorder_relay_frames_dropped_total", {"reason": reason})


async def test_oversized_frames_and_raw_bytes_cost_the_peer_its_connection_not_the_relay(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        host, port = s.running.broker_address.removeprefix("tcp://").split(":")
        for junk in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 4 * 1024 * 1024):
            with socket.create_connection((host, int(port))) as raw, suppress(OSError):
                raw.sendall(junk)
        huge = s.ingestor()
        watch = huge.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        await huge.socket.send_multipart([b"\x01", b"\x20" * 100_000])  # far below the limit of unread bytes
        cut = await asyncio.wait_for(recv_monitor_message(watch), 60)
        assert cut["event"] == zmq.EVENT_DISCONNECTED
        huge.socket.disable_monitor()
        watch.close()
        ingestor = await s.offering()
        await s.queued("r", 0, 10)
        assert (await ingestor.take()).request_id == "r"


async def test_a_message_without_an_end_costs_its_connection_and_no_memory(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("dexorder_common.messaging.zmq_tcp_proxy.STUCK_SECONDS", 0.2)
    async with suite(tmp_path) as s:
        assert await asyncio.to_thread(zmtp.is_closed_in_an_endless_message, s.running.broker_address)
        ingestor = await s.offering()
        await s.queued("r", 0, 10)
        assert (await ingestor.take()).request_id == "r"


async def test_dispatch_is_these_bytes_and_an_unknown_peer_is_told_of(tmp_path: Path) -> None:
    span = TimeRange(at(0), at(10))
    dispatch = Dispatch("j1", "r1", Series("BTC/USDT.SIM", 60), span, "me")
    context = zmq.asyncio.Context()
    peer = context.socket(zmq.DEALER)
    peer.setsockopt(zmq.IDENTITY, b"peer")
    with open_broker(settings(tmp_path), new_metrics()) as broker:
        peer.connect(broker.address)
        assert not await broker.send(b"nobody", dispatch)
        await peer.send_multipart(encode_work(ingest.WorkHeartbeat(job_id="j0")))
        heard: asyncio.Queue[str] = asyncio.Queue()
        only_heartbeats: Any = SimpleNamespace(heartbeat=lambda job_id, identity: heard.put_nowait(job_id))
        served = asyncio.create_task(broker.run(only_heartbeats))
        assert await asyncio.wait_for(heard.get(), 20) == "j0"
        assert await broker.send(b"peer", dispatch)
        version, body = await peer.recv_multipart()
        served.cancel()
    peer.close(linger=0)
    context.term()
    assert (version, body.hex()) == (
        b"\x01",
        "240a0272311a0c4254432f555344542e53494d2216088080948bf08284d3171080e0b9a1ab9484d317183c32026d653a026a31",
    )


def new_metrics() -> RelayMetrics:
    return RelayMetrics(CollectorRegistry())


def test_a_taken_address_is_named(tmp_path: Path) -> None:
    context = zmq.Context()
    taken = context.socket(zmq.ROUTER)
    port = taken.bind_to_random_port("tcp://127.0.0.1")
    try:
        with open_broker(settings(tmp_path, broker_listen=f"tcp://127.0.0.1:{port}"), new_metrics()):
            raise AssertionError("bound twice")
    except OSError as error:
        assert str(port) in str(error)
    finally:
        taken.close()
        context.term()
