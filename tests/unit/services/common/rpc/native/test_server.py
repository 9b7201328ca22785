"""gRPC's interop cases and the ends of calls, by grpcio's client; tests/nightly/test_go_interop.py has grpc-go's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from tests.unit.services.common.rpc.native import NEEDS_MODULE
from tests.unit.services.common.rpc.native.rig import SERVICE, Handlers, serving, until

pytestmark = NEEDS_MODULE
PATIENCE_S = 60.0


def insecure(address: str) -> Any:
    """Return a channel; its stubs know messages only of generated code."""
    return grpc.aio.insecure_channel(address)


async def call(channel: Any, name: str, request: bytes = b"", **given: object) -> bytes:
    method = channel.unary_unary(f"/{SERVICE}/{name}")
    answer: bytes = await method(request, **{"timeout": PATIENCE_S, **given})
    return answer


async def failure(channel: Any, name: str, request: bytes = b"", **given: object) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(channel, name, request, **given)
    return caught.value


async def test_unary_calls() -> None:
    handlers = Handlers()
    async with serving(handlers) as address, insecure(address) as channel:
        assert await call(channel, "echo") == b""
        large = b"0123456789" * 30_000
        assert await asyncio.gather(*(call(channel, "echo", large) for _ in range(4))) == [large] * 4
        assert await call(channel, "echo", b"a" * 50_000, compression=grpc.Compression.Gzip) == b"a" * 50_000
        many = await asyncio.gather(*(call(channel, "echo", b"%d" % number) for number in range(300)))
        assert many == [b"%d" % number for number in range(300)]


async def test_metadata_both_ways() -> None:
    metadata = (("x-grpc-test-echo-initial", "test_initial"), ("x-grpc-test-echo-trailing-bin", b"\xab\xab\0"))
    async with serving(Handlers()) as address, insecure(address) as channel:
        started = channel.unary_unary(f"/{SERVICE}/echo")(b"x", metadata=metadata, timeout=PATIENCE_S)
        assert dict(await started.initial_metadata() or ())["x-grpc-test-echo-initial"] == "test_initial"
        assert dict(await started.trailing_metadata() or ())["x-grpc-test-echo-trailing-bin"] == b"\xab\xab\0"
        assert await started == b"x"


async def test_statuses_and_special_messages() -> None:
    text = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n"
    async with serving(Handlers()) as address, insecure(address) as channel:
        for code in grpc.StatusCode:
            if code is not grpc.StatusCode.OK:
                error = await failure(channel, "status", f"{code.value[0]} {text}".encode())
                assert (error.code(), error.details()) == (code, text)
                assert dict(error.trailing_metadata())["k"] == "v"
        for path in ("/test.Service/none", "/none/echo"):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(path)(b"", timeout=PATIENCE_S)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("grouped", [0, 1], ids=["one by one", "in one write"])
async def test_streams_of_answers(grouped: int) -> None:
    async with serving(Handlers()) as address, insecure(address) as channel:
        answers = channel.unary_stream(f"/{SERVICE}/many")(b"500 3000 %d" % grouped, timeout=PATIENCE_S)
        assert [len(each) async for each in answers] == [3_000] * 500


async def test_streams_of_requests() -> None:
    async def requests() -> AsyncIterator[bytes]:
        for number in range(40):
            yield b"x" * (number * 5_000)

    async with serving(Handlers()) as address, insecure(address) as channel:
        collected = await channel.stream_unary(f"/{SERVICE}/collect")(requests(), timeout=PATIENCE_S)
        assert collected == b"%d" % (sum(range(40)) * 5_000)
        chat = channel.stream_stream(f"/{SERVICE}/chat")(timeout=PATIENCE_S)
        for message in (b"", b"one", b"x" * 2_000_000):
            await chat.write(message)
            assert await chat.read() == message
        await chat.done_writing()
        assert await chat.read() is grpc.aio.EOF
        assert await chat.code() is grpc.StatusCode.OK


async def test_a_cancelled_call_leaves_and_its_answer_counts_as_not_sent() -> None:
    handlers = Handlers()
    async with serving(handlers) as address, insecure(address) as channel:
        running = asyncio.create_task(call(channel, "wait"))
        await handlers.entered.wait()
        running.cancel()
        await until(lambda: bool(handlers.outcomes))
        assert handlers.outcomes == [(False, True)] and handlers.running == 0
        handlers.release.set()
        assert await call(channel, "wait") == b""
        assert handlers.outcomes[1:] == [(True, False)]


async def test_the_deadline_ends_the_call_and_its_handler() -> None:
    handlers = Handlers()
    async with serving(handlers) as address, insecure(address) as channel:
        error = await failure(channel, "wait", timeout=0.2)
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: bool(handlers.outcomes) or not handlers.entered.is_set())
        assert handlers.running == 0 and (True, False) not in handlers.outcomes


async def test_messages_over_the_limit_are_refused_both_ways() -> None:
    async with serving(Handlers()) as address, insecure(address) as channel:
        for name, request in (("echo", b"x" * 4_200_000), ("many", b"1 4200000 0"), ("many", b"1 4200000 1")):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                if name == "echo":
                    await call(channel, name, request)
                else:
                    [_ async for _ in channel.unary_stream(f"/{SERVICE}/many")(request, timeout=PATIENCE_S)]
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await call(channel, "echo", b"x") == b"x"


async def test_running_calls_are_answered_at_the_stop() -> None:
    handlers = Handlers()
    async with serving(handlers, stop_seconds=PATIENCE_S) as address:
        channel = insecure(address)
        running = [asyncio.create_task(call(channel, "wait", b"%d" % number)) for number in range(20)]
        await until(lambda: handlers.running == 20)
        asyncio.get_running_loop().call_later(0.1, handlers.release.set)
    assert await asyncio.gather(*running) == [b"%d" % number for number in range(20)]
    await channel.close()


async def test_calls_that_do_not_end_are_cancelled_at_the_stop() -> None:
    handlers = Handlers()
    async with serving(handlers, stop_seconds=0.1) as address:
        channel = insecure(address)
        running = asyncio.create_task(failure(channel, "wait"))
        await handlers.entered.wait()
    assert (await running).code() is grpc.StatusCode.UNAVAILABLE
    assert handlers.outcomes == [(False, True)]
    await channel.close()
