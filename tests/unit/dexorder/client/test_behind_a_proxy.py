"""Streams behind a proxy that resets each after a message, and behind one that no longer reaches the relay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from dexorder import AsyncClient
from dexorder.client import table_rows
from dexorder_common.rpc import streams
from dexorder_common.rpc.history_messages import decode_request
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2 as ipb
from dexorder_relay.reading import row_stream
from tests.fakes.mesh_proxy import ResettingProxy
from tests.fakes.tcp_proxy import StallingProxy
from tests.unit.services.relay.harness import EARLIER, TICKER, Suite, free_port, page, request, suite, until
from tests.unit.services.relay.realtime.test_live_rpc import push, running_job, trade
from tests.unit.services.relay.triggers import test_trigger_rpc as triggers

RESETS = 4


def port_of(s: Suite) -> int:
    return int(s.running.address.rpartition(":")[2])


@asynccontextmanager
async def behind(s: Suite) -> AsyncIterator[tuple[ResettingProxy, AsyncClient]]:
    """Give a client behind a proxy that does not reset anything yet."""
    proxy = ResettingProxy(port_of(s))
    async with proxy.listening(0) as port, AsyncClient(f"127.0.0.1:{port}") as client:
        yield proxy, client


async def test_a_history_is_complete_though_every_stream_of_it_is_reset(tmp_path: Path) -> None:
    async with suite(tmp_path) as s, behind(s) as (proxy, client):
        ingestor = await s.offering()
        await client.submit(decode_request(request("r", 0, 20)))
        proxy.after = [1] * RESETS
        waiting = asyncio.create_task(client.wait("r", on_progress=lambda _: None))
        await until(lambda: proxy.resets == RESETS)
        work = asyncio.create_task(ingestor.work(s.pipeline, dispatches=2))
        ended = await asyncio.wait_for(waiting, 60)
        assert (await client.read(ended)).num_rows == 20 and proxy.resets == RESETS
        work.cancel()


async def test_notifications_come_once_each_though_the_stream_is_reset(tmp_path: Path) -> None:
    async with suite(tmp_path) as s, behind(s) as (proxy, client):
        await s.pipeline.report(snapshot_id=s.pipeline.write(range(60)), pages=[page(EARLIER, 0, 60)])
        for number in range(RESETS):
            await s.queued(f"r{number}", number, number + 1, client_id="me")
        proxy.after = [1] * RESETS
        async with aclosing(client.notifications("RESPONSE:me")) as found:
            names = [(await anext(found)).request_id for _ in range(RESETS)]
        assert sorted(names) == [f"r{number}" for number in range(RESETS)], "in the order of their ends, which varies"
        assert proxy.resets == RESETS


async def test_live_data_goes_on_after_a_reset(tmp_path: Path) -> None:
    async with suite(tmp_path) as s, behind(s) as (proxy, client):
        job_id = await running_job(s)
        proxy.after = [1] * RESETS
        async with aclosing(client.live(TICKER)) as updates:
            assert (await anext(updates)).statuses
            while proxy.resets < RESETS:  # the calls between the streams are reset, too
                assert (await anext(updates)).statuses, "the first answer of a stream has the states"
            await push(s, ipb.JobMarketData(job_id=job_id, trades=[trade(1)]))
            assert [each.trade_id for each in (await anext(updates)).trades] == ["1"]
        assert proxy.resets == RESETS


async def test_events_of_a_trigger_come_once_each_though_the_stream_is_reset(tmp_path: Path) -> None:
    async with suite(tmp_path) as s, behind(s) as (proxy, client):
        await triggers.register(s, "t")
        await triggers.report(s, [triggers.event(f"e{number}", 1) for number in range(RESETS)])
        proxy.after = [1] * RESETS
        async with aclosing(client.triggers.events("t")) as found:
            assert [(await anext(found)).event_id for _ in range(RESETS)] == [f"e{n}" for n in range(RESETS)]
        assert proxy.resets == RESETS


@pytest.mark.parametrize("batch", [7, 1])
async def test_rows_are_those_of_one_stream_though_each_is_reset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr(table_rows, "is_here", lambda properties: False)
    monkeypatch.setattr(row_stream, "BATCH_ROWS", batch)
    async with suite(tmp_path) as s, behind(s) as (proxy, client):
        s.pipeline.write(range(60))
        expected = await client.read_stored(TICKER, "1m")
        found = await client.find_stored(TICKER, "1m")
        proxy.after = [1, 2, 3, 6, 3, 1]  # after the schema, the number, or some rows
        got = await asyncio.to_thread(lambda: list(found.batches()))
        rows = got[0].concat(got)
        assert rows == expected and rows.num_rows == 60 and proxy.resets == 6


async def test_a_stream_that_is_silent_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "SILENCE_SECONDS", 1.0)
    async with suite(tmp_path, keep_alive_seconds=0.1) as s:
        job_id = await running_job(s)
        proxy, notes = StallingProxy(port_of(s)), list[str]()
        async with (
            proxy.listening(0) as port,
            AsyncClient(f"127.0.0.1:{port}", on_note=notes.append) as client,
            aclosing(client.live(TICKER)) as updates,
        ):
            assert (await anext(updates)).statuses
            quiet = asyncio.ensure_future(anext(updates))
            await asyncio.sleep(0)
            proxy.stall()
            await until(lambda: bool(notes))
            assert "is silent (no answer for 1 s); opening it again" in notes[0]
            proxy.resume()
            assert (await asyncio.wait_for(quiet, 60)).statuses, "of a new stream"
            await push(s, ipb.JobMarketData(job_id=job_id, trades=[trade(1)]))
            assert [each.trade_id for each in (await anext(updates)).trades] == ["1"]


async def test_live_data_alone_goes_on_after_a_restart_of_the_relay(tmp_path: Path) -> None:
    port = free_port()
    async with AsyncClient(f"127.0.0.1:{port}") as client, aclosing(client.live(TICKER)) as updates:
        async with suite(tmp_path, listen=f"127.0.0.1:{port}"):
            assert (await anext(updates)).statuses
        again = asyncio.ensure_future(anext(updates))
        await asyncio.sleep(0.5)  # the address refuses connections, which ends only a first call
        async with suite(tmp_path, listen=f"127.0.0.1:{port}"):
            assert (await asyncio.wait_for(again, 60)).statuses
