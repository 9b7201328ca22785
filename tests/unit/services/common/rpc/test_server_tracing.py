"""Spans of calls on a real server: which calls have one, where it is, and the status at its end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import pytest
from opentelemetry.trace import SpanKind, StatusCode

from dexorder_common import tracing
from dexorder_common.model.dispatch_id import TraceContext
from dexorder_common.model.errors import InvalidRequest, NotFound, SuiteError, Unavailable
from dexorder_common.rpc.channel import open_channel
from dexorder_common.rpc.client_tracing import tracing_interceptors
from dexorder_common.rpc.lifecycle import grpc_server
from dexorder_common.rpc.relay_stubs import RelayStubs
from dexorder_common.rpc.settings import ServiceSettings
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as pb
from dexorder_protos.dexorder.relay.v1 import history_service_pb2_grpc as rpc
from tests.fakes.spans import Exported, exporting

SERVICE = "dexorder.relay.v1.HistoryService"
UNARY, STREAM = f"{SERVICE}/GetRequest", f"{SERVICE}/WatchProgress"
CALLER = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
SECRET = "secret-token-of-the-caller"


class Servicer(rpc.HistoryServiceServicer):
    """Has a span of its own in each call, and fails as the test wants it."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    async def GetRequest(self, request: pb.GetRequestRequest, context: Any) -> pb.GetRequestResponse:
        with tracing.span("work"):
            if self.error:
                raise self.error
        return pb.GetRequestResponse()

    async def WatchProgress(self, request: Any, context: Any) -> AsyncIterator[pb.WatchProgressResponse]:
        with tracing.span("work"):
            pass
        yield pb.WatchProgressResponse()
        yield pb.WatchProgressResponse()
        if self.error:
            raise self.error


@asynccontextmanager
async def served(*roots: str) -> AsyncIterator[tuple[Servicer, Any]]:
    servicer = Servicer()  # type: ignore[abstract]

    def register(server: grpc.aio.Server) -> Sequence[str]:
        rpc.add_HistoryServiceServicer_to_server(servicer, server)
        return [SERVICE]

    settings = ServiceSettings(listen="127.0.0.1:0", drain_seconds=1)
    async with (
        grpc_server(settings, register, trace_roots=roots) as running,
        open_channel(running.address, interceptors=tracing_interceptors()) as channel,
    ):
        yield servicer, RelayStubs(channel)


async def called(stub: Any, method: str, **options: Any) -> None:
    """Make a call; its errors are the server's."""
    with suppress(grpc.aio.AioRpcError):
        if method == UNARY:
            await stub.history.GetRequest(pb.GetRequestRequest(request_id="r"), **options)
        else:
            async for _ in stub.history.WatchProgress(pb.WatchProgressRequest(request_id="r"), **options):
                pass


def metadata(flags: str = "01") -> list[tuple[str, str]]:
    return [("traceparent", CALLER.traceparent[:-2] + flags), ("authorization", f"Bearer {SECRET}")]


def status_of(exported: Exported, name: str, kind: SpanKind) -> tuple[Any, StatusCode]:
    (span,) = [each for each in exported.named(name) if each.kind is kind]
    return (span.attributes or {}).get("rpc.response.status_code"), span.status.status_code


@pytest.mark.parametrize("method", [UNARY, STREAM])
async def test_a_call_of_a_traced_caller_has_a_span_below_it(method: str) -> None:
    with exporting() as exported:
        async with served() as (_, stub):
            await called(stub, method, metadata=metadata())
    (span,) = exported.named(method)
    assert span.kind is SpanKind.SERVER and span.parent is not None and span.context is not None
    assert f"{span.context.trace_id:032x}{span.parent.span_id:016x}" == CALLER.text
    assert dict(span.attributes or {}) == {
        "rpc.system.name": "grpc",
        "rpc.method": method,
        "rpc.response.status_code": "OK",
    }
    assert exported.path(exported.one("work")) == ["?", method, "work"]
    assert SECRET not in "".join(each.to_json() for each in exported.spans)


@pytest.mark.parametrize("method", [UNARY, STREAM])
@pytest.mark.parametrize(
    "sent",
    [[], metadata("00"), [("traceparent", "nonsense")], [("traceparent", "00-" + "0" * 32 + "-" + "0" * 16 + "-01")]],
)
async def test_other_calls_have_none(method: str, sent: list[tuple[str, str]]) -> None:
    with exporting() as exported:
        async with served() as (_, stub):
            await called(stub, method, metadata=sent)
        assert not exported.spans


async def test_a_root_begins_a_trace_only_if_the_caller_says_nothing_of_one() -> None:
    with exporting() as exported:
        async with served(UNARY) as (_, stub):
            await called(stub, UNARY, metadata=metadata("00"))
            await called(stub, STREAM)
            assert not exported.spans
            await called(stub, UNARY)
    assert [exported.path(each) for each in exported.spans] == [[UNARY, "work"], [UNARY]]


@pytest.mark.parametrize("method", [UNARY, STREAM])
@pytest.mark.parametrize(
    ("error", "code", "of_server"),
    [
        (None, "OK", StatusCode.UNSET),
        (NotFound("no such request"), "NOT_FOUND", StatusCode.UNSET),
        (InvalidRequest("field x 7"), "INVALID_ARGUMENT", StatusCode.UNSET),
        (Unavailable("later"), "UNAVAILABLE", StatusCode.ERROR),
        (KeyError("secret detail"), "INTERNAL", StatusCode.ERROR),
    ],
)
async def test_both_ends_record_the_status(
    method: str, error: SuiteError | None, code: str, of_server: StatusCode
) -> None:
    with exporting() as exported:
        async with served() as (servicer, stub):
            servicer.error = error
            with tracing.span("caller", root=True):
                await called(stub, method)
    assert status_of(exported, method, SpanKind.SERVER) == (code, of_server)
    of_client = StatusCode.ERROR if error else StatusCode.UNSET
    assert status_of(exported, method, SpanKind.CLIENT) == (code, of_client)
    assert [exported.path(each) for each in exported.named(method) if each.kind is SpanKind.SERVER] == [
        ["caller", method, method]
    ]
    assert "secret detail" not in "".join(each.to_json() for each in exported.spans)


async def test_a_stream_that_its_caller_cancels_has_not_failed() -> None:
    with exporting() as exported:
        async with served() as (_, stub):
            with tracing.span("caller", SpanKind.CLIENT, root=True):
                stream = stub.history.WatchProgress(pb.WatchProgressRequest(request_id="r"))
                await stream.read()
                stream.cancel()
    assert status_of(exported, STREAM, SpanKind.CLIENT) == ("CANCELLED", StatusCode.UNSET)
