"""CURVE on real sockets: a peer without an allowed key reaches nothing; an added key is accepted at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zmq
import zmq.asyncio
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from dexorder_common.clock import SystemClock
from dexorder_common.messaging.curve import curve_client, make_keys
from dexorder_common.messaging.frames import encode_work
from dexorder_ingestor.broker.connection import BrokerConnection
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.metrics import IngestorMetrics
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_relay.broker.router import Broker, open_broker
from dexorder_relay.metrics import RelayMetrics
from dexorder_relay.state.workers import Slot
from tests.unit.services.ingestor.fakes import history_slots
from tests.unit.services.relay.harness import settings, until

READY = encode_work(ingest.WorkerReady(exchanges=["SIM"], job_type=ingest.HISTORICAL))

MISFIT = ("protocol", "other")
"""Both sides see that their greetings do not fit; where the other side hangs up first, ours gives no details."""


class Stage:
    """Broker with CURVE and one allowed key, and the keys of other peers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.registry = CollectorRegistry()
        self.slots: asyncio.Queue[Slot] = asyncio.Queue()
        self.server_public, self.server_secret = make_keys(folder, "server")
        make_keys(folder / "clients", "allowed")
        for name in ("foreign", "other-server"):
            make_keys(folder, name)
        self.broker: Broker | None = None

    def refused(self, *reasons: str) -> float:
        """Return the number of refusals for a reason."""
        name = "dexorder_relay_broker_connections_refused_total"
        return sum(self.registry.get_sample_value(name, {"reason": reason}) or 0.0 for reason in reasons)

    @property
    def address(self) -> str:
        assert self.broker is not None
        return self.broker.address


@asynccontextmanager
async def staged(folder: Path) -> AsyncIterator[Stage]:
    stage = Stage(folder)
    made = settings(folder, broker_curve_key=stage.server_secret, broker_curve_clients=folder / "clients")
    with open_broker(made, RelayMetrics(stage.registry)) as stage.broker:
        dispatcher: Any = SimpleNamespace(venues={"SIM"}, ready=stage.slots.put_nowait)
        task = asyncio.create_task(stage.broker.run(dispatcher))
        yield stage
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@asynccontextmanager
async def peer(stage: Stage, key: Path | None = None, server: str = "server") -> AsyncIterator[zmq.asyncio.Socket]:
    with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        if key is not None:
            curve_client(socket, key, stage.folder / f"{server}.key")
        socket.connect(stage.address)
        await socket.send_multipart(READY)
        yield socket


async def test_only_a_client_with_an_allowed_key_reaches_the_handler(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:

        async def kept_out(*reasons: str, above: float = 0) -> None:
            await until(lambda: stage.refused(*reasons) > above or not stage.slots.empty())
            assert stage.slots.empty()

        async with peer(stage):
            await kept_out(*MISFIT)
        async with peer(stage, tmp_path / "foreign.key_secret"):
            await kept_out("key")
        before = stage.refused(*MISFIT)
        async with peer(stage, tmp_path / "clients" / "allowed.key_secret", server="other-server"):
            await kept_out(*MISFIT, above=before)
        async with peer(stage, tmp_path / "clients" / "allowed.key_secret"):
            assert (await asyncio.wait_for(stage.slots.get(), 60)).exchange == "SIM"
        assert stage.slots.empty()


async def test_hundreds_of_strangers_do_not_keep_an_allowed_client_out(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        host, port = stage.address.removeprefix("tcp://").split(":")
        for _ in range(200):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x00NULL" + bytes(48) + b"\x04\x19\x05READY" + bytes(64))
            writer.close()
        async with (
            peer(stage, tmp_path / "foreign.key_secret"),
            peer(stage),
            peer(stage, tmp_path / "clients" / "allowed.key_secret"),
        ):
            await asyncio.wait_for(stage.slots.get(), 60)
        assert stage.slots.empty()


@pytest.mark.parametrize("with_key", [True, False], ids=["its key is not allowed yet", "it has no key, nor the broker"])
async def test_an_ingestor_gets_in_once_it_is_let_in(tmp_path: Path, monkeypatch: Any, with_key: bool) -> None:
    monkeypatch.setattr("dexorder_ingestor.broker.connection._REFUSED_SECONDS", 0.05)
    async with staged(tmp_path) as stage:
        keys: dict[str, Any] = {}
        if with_key:
            keys = {"broker_curve_key": tmp_path / "foreign.key_secret", "broker_curve_server": stage.server_public}
        stop = asyncio.Event()
        worker = BrokerConnection(
            IngestorSettings(broker=stage.address, drain_seconds=0, **keys),
            history_slots(1),
            no_job,
            IngestorMetrics(CollectorRegistry()),
            SystemClock(),
            on_connected=nothing,
        )
        task = asyncio.create_task(worker.run(stop))
        await until(lambda: stage.refused(*(("key",) if with_key else MISFIT)) >= 2)  # it does try again
        assert stage.slots.empty()
        if with_key:
            (tmp_path / "foreign.key").rename(tmp_path / "clients" / "foreign.key")
            await asyncio.wait_for(stage.slots.get(), 60)
        stop.set()
        await task


async def test_a_stop_in_the_pause_after_a_refusal_ends_the_connection(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stop = asyncio.Event()
        worker = BrokerConnection(
            IngestorSettings(broker=stage.address, drain_seconds=0),
            history_slots(1),
            no_job,
            IngestorMetrics(CollectorRegistry()),
            SystemClock(),
            on_connected=nothing,
        )
        with capture_logs() as lines:
            task = asyncio.create_task(worker.run(stop))
            await until(lambda: any(line["event"] == "handshake with the broker failed" for line in lines))
            stop.set()
            await task


async def no_job(job: object, stop: object, fetched: object) -> None:
    raise AssertionError


async def nothing(there: bool) -> None:
    pass
