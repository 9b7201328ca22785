"""The suite's generated stubs and servicers over the simulated network."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import grpc
from google.protobuf.message import Message

from dexorder_common.model.errors import SuiteError
from tests.simulation.loop import Process
from tests.simulation.network import CallFailed, Handler, Network


class Channel:
    """What a generated stub needs of a channel to one process."""

    def __init__(self, network: Network, target: str) -> None:
        self._network = network
        self._target = target

    def unary_unary(self, path: str, *_: object, **__: object) -> Callable[..., Awaitable[Any]]:
        """Return a call of one method."""

        async def call(request: Message, *, timeout: float | None = None, metadata: object = None) -> Any:
            return await self._network.call(self._target, path, request, timeout=timeout)

        return call

    def _stream(self, path: str, *_: object, **__: object) -> Callable[..., Any]:
        def call(*_: object, **__: object) -> Any:
            raise NotImplementedError(f"{path} streams")

        return call

    unary_stream = stream_unary = stream_stream = _stream


def channel(network: Network, target: str) -> grpc.aio.Channel:
    """Return a channel to a process."""
    return cast(grpc.aio.Channel, Channel(network, target))


def serve(network: Network, process: Process, service: str, servicer: object, *methods: str) -> None:
    """Serve methods of a servicer; an error of the suite becomes the status that its server gives it."""
    for name in methods:
        network.serve(process, f"/{service}/{name}", handler_of(getattr(servicer, name)))


def handler_of(rpc: Callable[[Any, Any], Awaitable[Message]]) -> Handler:
    """Return what serves a method of a servicer; errors of the suite become the status that its server gives them."""

    async def handle(request: Any) -> Message:
        try:
            return await rpc(request, None)
        except SuiteError as error:
            raise CallFailed(grpc.StatusCode[error.code.name], str(error)) from None

    return handle
