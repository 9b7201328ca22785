"""Unary and streaming calls on a real server, by one table of cases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import pytest
from google.rpc import status_pb2
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from dexorder_common.config import load_settings
from dexorder_common.model import errors
from dexorder_common.rpc.lifecycle import RunningServer, grpc_server
from dexorder_common.rpc.relay_stubs import RelayStubs
from dexorder_common.rpc.settings import ServiceSettings
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as pb
from dexorder_protos.dexorder.relay.v1 import history_service_pb2_grpc as rpc
from tests.error_kinds import KINDS

NAME = "dexorder.relay.v1.HistoryService"
CASES: list[tuple[BaseException, grpc.StatusCode, str]] = [
    *((e("field x 7"), grpc.StatusCode[e.code.name], "field x 7") for e in KINDS),
    (NotImplementedError("later"), grpc.StatusCode.UNIMPLEMENTED, "later"),
    (KeyError("secret detail"), grpc.StatusCode.INTERNAL, "internal error; the server's log has the details"),
]


class Raising(rpc.HistoryServiceServicer):
    """Servicer that raises a given error, in a unary call and, after one answer, in a streaming call."""

    error: BaseException | None = None

    async def GetRequest(self, request: pb.GetRequestRequest, context: Any) -> pb.GetRequestResponse:
        if self.error:
            raise self.error
        return pb.GetRequestResponse()

    async def WatchProgress(self, request: Any, context: Any) -> AsyncIterator[pb.WatchProgressResponse]:
        yield pb.WatchProgressResponse()
        if self.error:
            raise self.error


def raising(error: BaseException | None = None) -> Raising:
    servicer = Raising()  # type: ignore[abstract]  # the other methods stay UNIMPLEMENTED
    servicer.error = error
    return servicer


async def serve(servicer: Raising, registry: CollectorRegistry | None = None) -> Any:
    def register(server: grpc.aio.Server) -> Sequence[str]:
        rpc.add_HistoryServiceServicer_to_server(servicer, server)
        return [NAME]

    return grpc_server(ServiceSettings(listen="127.0.0.1:0", drain_seconds=1), register, registry=registry)


@pytest.mark.parametrize(("error", "code", "text"), CASES, ids=lambda v: type(v).__name__)
async def test_error_becomes_its_status_in_unary_and_streaming_calls(
    error: BaseException, code: grpc.StatusCode, text: str
) -> None:
    servicer = raising(error)
    async with await serve(servicer) as running, grpc.aio.insecure_channel(running.address) as channel:
        stub = RelayStubs(channel)
        with pytest.raises(grpc.aio.AioRpcError) as unary:
            await stub.history.GetRequest(pb.GetRequestRequest(request_id="r"))
        answers = []
        with pytest.raises(grpc.aio.AioRpcError) as stream:
            async for answer in stub.history.WatchProgress(pb.WatchProgressRequest(request_id="r")):
                answers.append(answer)
    assert len(answers) == 1
    for caught in (unary.value, stream.value):
        assert (caught.code(), caught.details()) == (code, text)


@pytest.mark.parametrize("junk", [b"\xff" * 20, b"\x0a\xff\xff\xff\xff\x0f"])
async def test_undecodable_request_is_invalid_argument(junk: bytes) -> None:
    async with await serve(raising()) as running, grpc.aio.insecure_channel(running.address) as channel:
        calls: list[Any] = [channel.unary_unary(f"/{NAME}/GetRequest"), channel.unary_stream(f"/{NAME}/WatchProgress")]
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                answer: Any = call(junk)
                if isinstance(answer, grpc.aio.UnaryStreamCall):
                    await answer.read()
                else:
                    await answer
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "does not parse" in str(caught.value.details())


async def test_too_large_request_is_refused_and_the_server_continues() -> None:
    async with await serve(raising()) as running, grpc.aio.insecure_channel(running.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            call: Any = channel.unary_unary(f"/{NAME}/GetRequest")
            await call(b"\0" * (4 * 1024 * 1024 + 1))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await RelayStubs(channel).history.GetRequest(pb.GetRequestRequest(request_id="r"))


async def test_retry_after_is_metadata_if_it_is_known() -> None:
    servicer = raising()
    async with await serve(servicer) as running, grpc.aio.insecure_channel(running.address) as channel:
        stub = RelayStubs(channel)
        for seconds, told in ((0.0104, ["11"]), (None, [])):
            servicer.error = errors.Exhausted("quota x", retry_seconds=seconds)
            with pytest.raises(grpc.aio.AioRpcError) as unary:
                await stub.history.GetRequest(pb.GetRequestRequest(request_id="r"))
            with pytest.raises(grpc.aio.AioRpcError) as stream:
                async for _ in stub.history.WatchProgress(pb.WatchProgressRequest(request_id="r")):
                    pass
            for error in (unary.value, stream.value):
                for name in ("retry-after-ms", "grpc-retry-pushback-ms"):
                    assert [v for k, v in error.trailing_metadata() if k == name] == told


async def test_details_name_the_error_the_field_and_the_time_of_the_next_attempt() -> None:
    servicer = raising(errors.InvalidRequest("request_id '' is empty"))
    async with await serve(servicer) as running, grpc.aio.insecure_channel(running.address) as channel:
        stub = RelayStubs(channel)
        details = await failure_details(stub)
        assert [type(each).__name__ for each in details] == ["ErrorInfo", "BadRequest"]
        info, bad = details
        assert (info.reason, info.domain) == ("INVALID_REQUEST", "dexorder")
        assert dict(info.metadata) == {"method": f"{NAME}/GetRequest"}
        (violation,) = bad.field_violations
        assert (violation.field, violation.description) == ("request_id", "request_id '' is empty")
        servicer.error = errors.Exhausted("quota x", retry_seconds=2.5)
        info, retry = await failure_details(stub)
        assert info.reason == "EXHAUSTED"
        assert retry.retry_delay.ToMilliseconds() == 2_500
        servicer.error = KeyError("secret")
        (info,) = await failure_details(stub)
        assert info.reason == "INTERNAL"


async def failure_details(stub: Any) -> list[Any]:
    """Return the details of a call that fails, as grpcio-status reads them."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.history.GetRequest(pb.GetRequestRequest(request_id="r"))
    (value,) = (value for key, value in caught.value.trailing_metadata() if key == "grpc-status-details-bin")
    status = status_pb2.Status.FromString(value)
    number: Any = caught.value.code().value[0]
    assert (status.code, status.message) == (number, caught.value.details())
    kinds = {f"google.rpc.{kind.__name__}": kind for kind in (ErrorInfo, BadRequest, RetryInfo)}
    found = []
    for each in status.details:
        message: Any = kinds[each.TypeName()]()
        assert each.Unpack(message)
        found.append(message)
    return found


class Counting(Raising):
    """Servicer that signals the cleanup of a cancelled stream."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()

    async def WatchProgress(self, request: Any, context: Any) -> AsyncIterator[pb.WatchProgressResponse]:
        try:
            while True:
                yield pb.WatchProgressResponse()
                await asyncio.sleep(0)
        finally:
            self.closed.set()


async def test_handler_of_a_cancelled_stream_is_closed_at_once() -> None:
    servicer = Counting()  # type: ignore[abstract]
    async with await serve(servicer) as running, grpc.aio.insecure_channel(running.address) as channel:
        call = RelayStubs(channel).history.WatchProgress(pb.WatchProgressRequest(request_id="r"))
        await call.read()
        call.cancel()
        await asyncio.wait_for(servicer.closed.wait(), 30)


class Ready(Raising):
    """Servicer that yields some answers serialized, in lists; without end if ``endless``."""

    def __init__(self, *, endless: bool = False) -> None:
        self.endless = endless
        self.closed = asyncio.Event()

    async def WatchProgress(self, request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            yield [numbered(0), numbered(1)]
            yield pb.WatchProgressResponse.FromString(numbered(2))
            yield []
            yield [numbered(3)]
            while self.endless:
                yield [numbered(4)] * 1_000
            if self.error:
                raise self.error
        finally:
            self.closed.set()


def numbered(number: int) -> bytes:
    return pb.WatchProgressResponse(progress=pb.Progress(candles=number)).SerializeToString()


async def test_serialized_answers_are_sent_in_order_and_counted() -> None:
    registry, servicer = CollectorRegistry(), Ready()  # type: ignore[abstract]
    servicer.error = errors.NotFound("field x 7")
    async with await serve(servicer, registry) as running, grpc.aio.insecure_channel(running.address) as channel:
        answers = []
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            async for answer in RelayStubs(channel).history.WatchProgress(pb.WatchProgressRequest(request_id="r")):
                answers.append(answer.SerializeToString())
    assert answers == [numbered(n) for n in range(4)]
    assert (ended.value.code(), ended.value.details()) == (grpc.StatusCode.NOT_FOUND, "field x 7")
    labels = {"grpc_type": "server_stream", "grpc_service": NAME, "grpc_method": "WatchProgress"}
    assert registry.get_sample_value("grpc_server_msg_sent_total", labels) == 4


async def test_client_that_disconnects_during_serialized_answers_is_not_an_error() -> None:
    registry, servicer = CollectorRegistry(), Ready(endless=True)  # type: ignore[abstract]
    labels = {"grpc_type": "server_stream", "grpc_service": NAME, "grpc_method": "WatchProgress"}
    with capture_logs() as logs:
        async with await serve(servicer, registry) as running, grpc.aio.insecure_channel(running.address) as channel:
            call = RelayStubs(channel).history.WatchProgress(pb.WatchProgressRequest(request_id="r"))
            for _ in range(100):
                await call.read()
            await channel.close()
            await asyncio.wait_for(servicer.closed.wait(), 60)
    assert registry.get_sample_value("grpc_server_handled_total", labels | {"grpc_code": "CANCELLED"}) == 1
    assert [line for line in logs if line["event"] == "rpc failed"] == []


async def test_calls_are_counted() -> None:
    registry, servicer = CollectorRegistry(), raising()
    async with await serve(servicer, registry) as running, grpc.aio.insecure_channel(running.address) as channel:
        stub = RelayStubs(channel)
        await stub.history.GetRequest(pb.GetRequestRequest(request_id="r"))
        assert (
            await stub.history.WatchProgress(pb.WatchProgressRequest(request_id="r")).read()
            == pb.WatchProgressResponse()
        )
        servicer.error = errors.NotFound("x")
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.history.GetRequest(pb.GetRequestRequest(request_id="r"))
    labels = {"grpc_type": "unary", "grpc_service": NAME, "grpc_method": "GetRequest"}
    assert registry.get_sample_value("grpc_server_msg_received_total", labels) == 2
    assert registry.get_sample_value("grpc_server_msg_sent_total", labels) == 1
    assert registry.get_sample_value("grpc_server_handling_seconds_count", labels) == 2
    assert registry.get_sample_value("grpc_server_handling_seconds_bucket", labels | {"le": "+Inf"}) == 2
    stream = {"grpc_type": "server_stream", "grpc_service": NAME, "grpc_method": "WatchProgress"}
    assert registry.get_sample_value("grpc_server_msg_sent_total", stream) == 1
    assert registry.get_sample_value("grpc_server_started_total", labels) == 2
    assert registry.get_sample_value("grpc_server_handled_total", labels | {"grpc_code": "OK"}) == 1
    assert registry.get_sample_value("grpc_server_handled_total", labels | {"grpc_code": "NOT_FOUND"}) == 1


async def health_of(running: RunningServer, service: str = "") -> int:
    async with grpc.aio.insecure_channel(running.address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
        return int(answer.status)


async def test_health_follows_set_serving_and_is_watched() -> None:
    async with await serve(raising()) as running, grpc.aio.insecure_channel(running.address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=NAME))
        seen = [(await watch.read()).status]
        await running.set_serving(True)
        seen.append((await watch.read()).status)
        assert seen == [health_pb2.HealthCheckResponse.NOT_SERVING, health_pb2.HealthCheckResponse.SERVING]
        assert await health_of(running) == await health_of(running, NAME) == health_pb2.HealthCheckResponse.SERVING


async def test_reflection_and_channelz_are_served() -> None:
    async with await serve(raising()) as running:

        def services() -> set[str]:
            with grpc.insecure_channel(running.address) as channel:
                return set(ProtoReflectionDescriptorDatabase(channel).get_services())

        assert {NAME, "grpc.health.v1.Health", "grpc.channelz.v1.Channelz"} <= await asyncio.to_thread(services)


def test_error_of_a_setting_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEXORDER_LOG_LEVEL", "loud")
    with pytest.raises(SystemExit, match=r"DEXORDER_LOG_LEVEL.*loud"):
        load_settings(ServiceSettings)


async def test_a_leaving_server_says_so_and_serves_until_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    settings = ServiceSettings(listen="127.0.0.1:0", drain_seconds=1, lame_duck_seconds=5)
    server = grpc_server(settings, lambda grpc_server: _register(grpc_server))
    async with server as running, grpc.aio.insecure_channel(running.address) as channel:
        await running.set_serving(True)
        check: Any = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        assert (await check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING

        async def sleep(seconds: float) -> None:
            slept.append(seconds)
            await running.set_serving(True)  # a monitor that finds everything well meanwhile
            found = await check(health_pb2.HealthCheckRequest(service=NAME))
            assert found.status == health_pb2.HealthCheckResponse.NOT_SERVING
            await RelayStubs(channel).history.GetRequest(pb.GetRequestRequest(request_id="r"))

        monkeypatch.setattr("dexorder_common.rpc.lifecycle.asyncio.sleep", sleep)
        await running.leave()
        monkeypatch.undo()
    assert slept == [5]


def _register(server: grpc.aio.Server) -> Sequence[str]:
    rpc.add_HistoryServiceServicer_to_server(raising(), server)
    return [NAME]
