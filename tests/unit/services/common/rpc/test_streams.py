"""Helpers of streaming handlers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from dexorder_common.rpc import streams
from dexorder_common.rpc.lifecycle import grpc_server
from dexorder_common.rpc.relay_stubs import RelayStubs
from dexorder_common.rpc.settings import ServiceSettings
from dexorder_common.rpc.streams import beside, until
from dexorder_protos.dexorder.events.v1 import event_service_pb2
from dexorder_protos.dexorder.relay.v1 import (
    history_service_pb2,
    ingestor_service_pb2,
    realtime_service_pb2,
    trigger_service_pb2,
)
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as pb
from dexorder_protos.dexorder.relay.v1 import history_service_pb2_grpc as rpc
from tests.simulation.loop import Process, SimulatedLoop


class Requests:
    """Requests of a client from a queue: None for its half-close, an exception to raise."""

    def __init__(self, *sent: object) -> None:
        self.queue: asyncio.Queue[object] = asyncio.Queue()
        for each in sent:
            self.queue.put_nowait(each)

    async def __aiter__(self) -> AsyncIterator[object]:
        while (found := await self.queue.get()) is not None:
            if isinstance(found, Exception):
                raise found
            yield found


async def test_requests_end_with_the_client() -> None:
    closing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    assert [each async for each in until(closing, aiter(Requests(1, 2, None)))] == [1, 2]


async def test_requests_end_when_the_server_closes() -> None:
    closing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    seen = []
    async for each in until(closing, aiter(Requests(1, 2))):
        seen.append(each)
        if each == 2:
            asyncio.get_running_loop().call_soon(closing.set_result, None)
    assert seen == [1, 2]
    assert [each async for each in until(closing, aiter(Requests(1)))] == []


async def test_error_of_the_requests_is_raised() -> None:
    closing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    with pytest.raises(ValueError, match="bad"):
        [each async for each in until(closing, aiter(Requests(1, ValueError("bad"))))]


async def test_work_beside_a_generator_ends_with_it() -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def answers() -> AsyncIterator[int]:
        async with beside(work()):
            yield 1
            yield 2

    generator = answers()
    assert await anext(generator) == 1
    await asyncio.sleep(0)
    await generator.aclose()  # type: ignore[attr-defined]  # an async generator
    assert ended.is_set()


class Quiet(rpc.HistoryServiceServicer):
    """Servicer whose streams give some answers, then nothing."""

    def __init__(self, answers: int) -> None:
        self._answers = answers

    async def WatchProgress(self, request: Any, context: Any) -> AsyncIterator[pb.WatchProgressResponse]:
        for _ in range(self._answers):
            yield pb.WatchProgressResponse(state=pb.REQUEST_STATE_QUEUED)
        await asyncio.Event().wait()


@asynccontextmanager
async def quiet(answers: int, keep_alive_seconds: float) -> AsyncIterator[Any]:
    """Give an open stream of a real server."""

    def register(server: grpc.aio.Server) -> Sequence[str]:
        rpc.add_HistoryServiceServicer_to_server(Quiet(answers), server)  # type: ignore[abstract]
        return []

    settings = ServiceSettings(listen="127.0.0.1:0", drain_seconds=0, keep_alive_seconds=keep_alive_seconds)
    async with grpc_server(settings, register) as running, grpc.aio.insecure_channel(running.address) as channel:
        call = RelayStubs(channel).history.WatchProgress(pb.WatchProgressRequest(request_id="r"))
        yield call
        call.cancel()


async def test_a_stream_has_headers_before_its_first_answer() -> None:
    async with quiet(0, 20) as call, asyncio.timeout(10):
        await call.initial_metadata()


async def test_a_quiet_stream_gives_keep_alives_after_its_answers() -> None:
    async with quiet(2, 0.02) as call, asyncio.timeout(10):
        answers = [await call.read() for _ in range(5)]
        assert [each.keep_alive for each in answers] == [False, False, True, True, True]
        assert [each.state for each in answers] == [pb.REQUEST_STATE_QUEUED] * 2 + [0] * 3


async def test_a_reader_gets_no_keep_alives_and_gives_up_a_silent_stream() -> None:
    async with quiet(2, 0.02) as call:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                found = [each async for each in streams.unless_silent(call, 5)]
    async with quiet(2, 20) as call, asyncio.timeout(10):
        found = []
        with pytest.raises(streams.StreamSilent, match=r"no answer for 0\.1 s"):
            async for each in streams.unless_silent(call, 0.1):
                found.append(each)
        assert len(found) == 2 and call.cancelled()


def test_keep_alives_are_no_silence_however_long_nothing_else_comes() -> None:
    loop, found = SimulatedLoop(), list[pb.WatchProgressResponse]()  # type: ignore[abstract]

    class Call:
        answers = [pb.WatchProgressResponse(keep_alive=True)] * 500 + [pb.WatchProgressResponse(), grpc.aio.EOF]

        async def read(self) -> object:
            await asyncio.sleep(0.9 * streams.SILENCE_SECONDS)
            return self.answers.pop(0)

    async def read() -> None:
        found.extend([each async for each in streams.unless_silent(Call())])

    task = loop.spawn(Process("reader"), read())
    assert loop.run_until(task.done, limit_ns=10**15)
    assert task.exception() is None and found == [pb.WatchProgressResponse()]
    loop.close()


async def test_every_endless_stream_has_keep_alives() -> None:
    files = (history_service_pb2, realtime_service_pb2, ingestor_service_pb2, trigger_service_pb2, event_service_pb2)
    endless = {
        f"{service.full_name}/{method.name}"
        for file in files
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
        if method.name.startswith("Watch") or method.name == "PublishMany"
    }
    assert len(endless) == 7
    for path in endless:
        assert streams.keep_alive_answer(f"/{path}"), path
    assert streams.keep_alive_answer("/dexorder.relay.v1.HistoryService/GetRequest") is None
    assert streams.keep_alive_answer("/nobody/Nothing") is None
