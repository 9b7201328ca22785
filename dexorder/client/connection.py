"""Connection to the relay: retried calls, reopened streams, statuses as our errors."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

import grpc
import tenacity

from dexorder import errors
from dexorder.client.failures import answer_error, cause_of, lacks, missing_capability, proxy_cause, version_error
from dexorder.supervisor.state import RELAY, address_of
from dexorder_common.model.errors import Code
from dexorder_common.model.server_info import ServerInfo
from dexorder_common.rpc.channel import open_channel
from dexorder_common.rpc.client_retry import Failure, answered, code_of, details_of, is_failure
from dexorder_common.rpc.client_tracing import tracing_interceptors
from dexorder_common.rpc.relay_stubs import RelayStubs
from dexorder_common.rpc.server_info import decode_server_info
from dexorder_common.rpc.streams import StreamSilent, unless_silent
from dexorder_protos.dexorder.relay.v1.history_service_pb2 import ListRequestsRequest
from dexorder_protos.dexorder.server.v1.server_info_service_pb2 import GetServerInfoRequest
from dexorder_protos.dexorder.server.v1.server_info_service_pb2_grpc import ServerInfoServiceStub
from dexorder_protos.dexorder.udf.v1.udf_registry_service_pb2_grpc import UdfRegistryServiceStub

PATIENCE_SECONDS = 30.0
"""Longest time without an answer of a relay that has answered before."""
CALL_SECONDS = 10.0
"""Timeout of one attempt of a call."""
REOPEN_SECONDS = 0.2
"""Pause before a broken stream is opened again."""
OVERLOADED_SECONDS = 2.0
"""Pause when the caller has too many open streams."""
T = TypeVar("T")


def relay_address(given: str | None) -> str:
    """Return host:port of the relay: as given, else ``DEXORDER_RELAY``, else the suite's on this machine."""
    return address_of(RELAY, given)


def patience_seconds(given: float | None) -> float | None:
    """Return the patience: as given, else ``DEXORDER_PATIENCE_SECONDS``, else None; DexorderError if invalid."""
    text = os.environ.get("DEXORDER_PATIENCE_SECONDS")
    if given is not None or not text:
        return given
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise errors.DexorderError(f"DEXORDER_PATIENCE_SECONDS: {text!r} is not a number of seconds")
    return seconds


class RelayConnection:
    """Channel to a relay; belongs to the event loop that created it. ``on_note`` receives notes that are not errors.

    Without a ``patience``, a first call that can't connect fails at once if the cause is known; after an answer of the
    relay, calls wait for it for PATIENCE_SECONDS. With a ``patience`` in seconds, the first call waits as well.
    """

    def __init__(self, address: str, patience: float | None, on_note: Callable[[str], None]) -> None:
        """Open a channel, which connects at the first call; DexorderError if its settings are invalid."""
        self.address = address
        self.on_note = on_note
        self._waits_to_connect = patience is not None
        self._has_answered = False
        self._timeout_seconds = PATIENCE_SECONDS if patience is None else patience
        try:
            self._channel = open_channel(address, interceptors=tracing_interceptors())
        except (ValueError, OSError) as error:
            raise errors.DexorderError(f"can't connect to {address}: {error}") from None
        self.stub: Any = RelayStubs(self._channel)
        self.udfs: Any = UdfRegistryServiceStub(self._channel)
        self._server: Any = ServerInfoServiceStub(self._channel)

    async def close(self) -> None:
        """Close the channel; running calls fail."""
        await self._channel.close()

    async def call(self, method: Callable[..., Awaitable[T]], request: Any) -> T:
        """Make a unary call and repeat it while the relay does not answer.

        Raises:
            RelayUnreachable: The relay can't be reached, or did not answer within the connection's patience.
            DexorderError: The relay answered with an error.
        """
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(self._is_passing),
            wait=tenacity.wait_random_exponential(multiplier=0.2, max=2),
            stop=tenacity.stop_after_delay(self._timeout_seconds),
            before_sleep=self._note,
            reraise=True,
        )
        try:
            result: T = await retrying(_once, method, request, min(self._timeout_seconds, CALL_SECONDS))
        except grpc.aio.AioRpcError as error:
            if cause := self._cause(error):
                raise errors.RelayUnreachable(cause) from None
            if is_failure(error, Failure.UNANSWERED) and not answered(error):
                if cause := proxy_cause(code_of(error), details_of(error)):
                    raise errors.RelayUnreachable(f"the relay at {self.address} does not answer: {cause}") from None
                raise errors.RelayUnreachable(
                    f"the relay at {self.address} does not answer; is the suite running (`dexorder up`), "
                    "or elsewhere (--relay or DEXORDER_RELAY)?"
                ) from None
            self._has_answered = True
            raise await self.answer_error(code_of(error), details_of(error)) from None
        self._has_answered = True
        return result

    def _cause(self, error: BaseException) -> str | None:
        if answered(error):
            return None
        is_connected = self._channel.get_state() is grpc.ChannelConnectivity.READY
        return cause_of(code_of(error), details_of(error), self.address, is_connected=is_connected)

    def _is_passing(self, error: BaseException) -> bool:
        """Return whether to repeat a call: a relay that has answered is expected to come back."""
        if not is_failure(error, Failure.UNANSWERED):
            return False
        return self._waits_to_connect or self._has_answered or self._cause(error) is None

    def _note(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        cause = details_of(error) if error and answered(error) else f"the relay at {self.address} does not answer"
        self.on_note(f"{cause}; trying again")

    async def server_info(self) -> ServerInfo:
        """Return the facts that the relay gives about itself; NotSupported if it is older than the call."""
        return decode_server_info(await self.call(self._server.GetServerInfo, GetServerInfoRequest()))

    async def require(self, capability: str) -> None:
        """Raise NotSupported if the relay does not have a capability."""
        info = await self.server_info()
        if capability not in info.capabilities:
            raise missing_capability(capability, info, self.address)

    async def answer_error(self, code: Code, details: str) -> errors.DexorderError:
        """Return the error for an answer that is a failure. A relay that may be of another version is asked for it."""
        if lacks(code, details) is None:
            return answer_error(code, details)
        try:
            info = decode_server_info(await self._server.GetServerInfo(GetServerInfoRequest(), timeout=CALL_SECONDS))
        except grpc.aio.AioRpcError as error:
            if code_of(error) is not Code.UNIMPLEMENTED:
                return answer_error(code, details)
            info = None
        return version_error(code, details, info, self.address)

    async def answers(self, method: Callable[..., Any], request: Any) -> AsyncGenerator[Any, None]:
        """Yield the messages of a finite stream. Opening it is repeated as in `call`, but not after the first message.

        Raises:
            RelayUnreachable: The relay does not answer, or the connection broke during the stream.
            DexorderError: The relay answered with an error.
        """
        stream, message = await self.call(_opened, partial(method, request))
        try:
            while message is not grpc.aio.EOF:
                yield message
                message = await stream.read()
        except grpc.aio.AioRpcError as error:
            if is_failure(error, Failure.UNANSWERED) and not answered(error):
                raise errors.RelayUnreachable(
                    f"the connection to the relay at {self.address} broke; try again"
                ) from None
            raise await self.answer_error(code_of(error), details_of(error)) from None
        finally:
            stream.cancel()

    async def pages(self, method: Callable[..., Awaitable[Any]], request: Any) -> AsyncGenerator[Any, None]:
        """Yield the pages of a list, each as `call`; ``request`` gets their tokens."""
        while True:
            answer = await self.call(method, request)
            yield answer
            request.page_token = answer.next_page_token
            if not request.page_token:
                return

    async def resumed(
        self,
        method: Callable[..., Any],
        request: Any,
        item: str,
        answers: Callable[[], Awaitable[object]] | None = None,
    ) -> AsyncGenerator[Any, None]:
        """Yield the field ``item`` of the messages of a stream that can be resumed, as `stream` does; note a reset.

        ``request.after`` follows the cursors, so the stream continues there when it is opened again.
        """
        async with aclosing(self.stream(method, request, answers)) as messages:
            async for message in messages:
                kind = message.WhichOneof("message")
                if kind == item:
                    found = getattr(message, item)
                    request.after.CopyFrom(found.cursor)
                    yield found
                    continue
                if kind == "reset":
                    self.on_note(
                        f"the relay at {self.address} can't continue after the cursor: its database was replaced or "
                        "restored, or what followed was deleted; all that is stored follows"
                    )
                request.after.CopyFrom(getattr(message, kind).cursor)

    async def stream(
        self, method: Callable[..., Any], request: Any, answers: Callable[[], Awaitable[object]] | None = None
    ) -> AsyncGenerator[Any, None]:
        """Yield the messages of an endless stream, which is opened again whenever it breaks or is silent for too long.

        ``answers`` is awaited before each reopening: it returns when the relay answers, or raises what ends the stream.
        """
        while True:
            call, pause = method(request), REOPEN_SECONDS
            try:
                async with aclosing(unless_silent(call)) as messages:
                    async for message in messages:
                        self._has_answered = True
                        yield message
            except StreamSilent as silent:
                self.on_note(f"the stream of the relay at {self.address} is silent ({silent}); opening it again")
            except grpc.aio.AioRpcError as error:
                if is_failure(error, Failure.OVERLOADED):
                    pause = OVERLOADED_SECONDS
                elif not is_failure(error, Failure.UNANSWERED):
                    raise await self.answer_error(code_of(error), details_of(error)) from None
            except asyncio.CancelledError:
                # grpcio raises this too if a stopping server cancels the call.
                if (task := asyncio.current_task()) is None or task.cancelling():
                    raise
            finally:
                call.cancel()
            await asyncio.sleep(pause)
            await (answers or self._answers)()

    async def _answers(self) -> None:
        """Return when the relay answers."""
        await self.call(self.stub.history.ListRequests, ListRequestsRequest(page_size=1))


async def _opened(open_stream: Callable[[], Any], timeout: float) -> tuple[Any, Any]:
    """Return an open stream and its first message."""
    stream = open_stream()
    try:
        async with asyncio.timeout(timeout):
            return stream, await stream.read()
    except TimeoutError:
        raise errors.RelayUnreachable(f"the relay did not answer within {timeout:g} s") from None
    except BaseException:
        stream.cancel()
        raise


async def _once(method: Callable[..., Awaitable[T]], request: Any, timeout: float) -> T:
    # tenacity awaits only coroutine functions, and a method of a stub is not one.
    return await method(request, timeout=timeout)
