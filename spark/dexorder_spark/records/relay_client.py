"""Client of the relay's PipelineService that repeats each call until the relay answers. Blocking."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from typing import Any, TypeVar

import grpc
import structlog
import tenacity
from google.protobuf.message import Message

from dexorder_common.model.errors import SuiteError
from dexorder_common.model.history import IssuedDispatch
from dexorder_common.rpc.channel import open_sync_channel
from dexorder_common.rpc.client_retry import Failure, code_of, details_of, error_text, is_failure, is_too_large
from dexorder_common.rpc.history_messages import decode_issued_dispatch
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as pb
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2_grpc as rpc

log = structlog.get_logger(__name__)
CALL_TIMEOUT_S = 30.0
MAX_WAIT_S = 2.0
_DISPATCHES_IN_A_CALL = 1_000
_KNOWN_DISPATCHES = 10_000
M = TypeVar("M", bound=Message)


class Stopped(SuiteError):
    """The process is stopping; the batch is unfinished and will be replayed."""


class RelayClient:
    """A channel to the relay, for as long as ``stop`` is not set."""

    def __init__(
        self,
        address: str,
        stop: threading.Event,
        what: str,
        on_failure: Callable[[int, str], None] = lambda failed, code: None,
    ) -> None:
        """Open a channel.

        Args:
            what: Work that waits for the relay, for the log: "the batch".
            on_failure: Called after each failed attempt with the number of failures so far and the status' name.
        """
        self._stop = stop
        self._what = what
        self._on_failure = on_failure
        self._random = Random()  # noqa: S311 - no secret
        self._channel = open_sync_channel(address)
        self.stub: Any = rpc.PipelineServiceStub(self._channel)

    def close(self) -> None:
        """Close the channel; running calls end."""
        self._channel.close()

    def describe(self, dispatch_ids: Collection[str]) -> dict[str, IssuedDispatch]:
        """Return the issued ones of these dispatches, by id; Stopped if ``stop`` is set first."""
        found = {}
        for first in range(0, len(wanted := sorted(dispatch_ids)), _DISPATCHES_IN_A_CALL):
            request = pb.DescribeDispatchesRequest(job_ids=wanted[first : first + _DISPATCHES_IN_A_CALL])
            answer: pb.DescribeDispatchesResponse = self.call(self.stub.DescribeDispatches, request)
            found.update({each.job_id: decode_issued_dispatch(each) for each in answer.dispatches})
        return found

    def send(
        self,
        method: Callable[..., Any],
        parts: Sequence[M],
        halve: Callable[[M], Sequence[M]],
        on_part: Callable[[], None] = lambda: None,
    ) -> list[grpc.RpcError]:
        """Send messages, each until it is answered OK; Stopped if ``stop`` is set first.

        A message that the relay refuses for good is halved, so that only the item at fault is lost, with an error in
        the log.

        Args:
            halve: Returns the halves of a message; none if it has one item.
            on_part: Called when the relay has a message.

        Returns:
            The errors of the items that are lost.
        """
        waiting, refused = [*reversed(parts)], list[grpc.RpcError]()
        while waiting:
            part = waiting.pop()
            try:
                self.call(method, part, may_succeed)
                on_part()
            except grpc.RpcError as error:
                halves = halve(part)
                waiting += reversed(halves)
                if not halves:
                    log.error("part of a report refused", part=str(part)[:500], error=error_text(error))
                    refused.append(error)
        return refused

    def call(
        self, method: Callable[..., Any], request: Message, again: Callable[[BaseException], bool] = lambda error: True
    ) -> Any:
        """Repeat a call until it is answered OK; Stopped if ``stop`` is set first.

        Args:
            again: Returns whether an RpcError may be gone later; others are raised.
        """
        attempts = tenacity.Retrying(
            retry=tenacity.retry_if_exception(lambda error: isinstance(error, grpc.RpcError) and again(error)),
            wait=self._wait_s,
            stop=tenacity.stop_when_event_set(self._stop),
            sleep=tenacity.sleep_using_event(self._stop),
            before_sleep=self._note_failure,
        )
        try:
            return attempts(method, request, timeout=CALL_TIMEOUT_S)
        except tenacity.RetryError as error:
            raise Stopped("stopping before the relay has answered") from error

    def _wait_s(self, state: tenacity.RetryCallState) -> float:
        doubled_s: float = 0.1 * 2 ** min(state.attempt_number - 1, 8)
        return min(MAX_WAIT_S, doubled_s + self._random.uniform(0.0, 0.2))

    def _note_failure(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        code = code_of(error).name if error else "UNKNOWN"
        details = details_of(error) if error else ""
        log.warning(
            f"the relay does not answer; {self._what} waits", attempt=state.attempt_number, code=code, details=details
        )
        self._on_failure(state.attempt_number, code)


def may_succeed(error: BaseException) -> bool:
    """Return whether the relay may accept the same message later."""
    return not (is_too_large(error) or is_failure(error, Failure.REJECTED))


class KnownDispatches:
    """Issued dispatches by the relay's description; bounded."""

    def __init__(self, describe: Callable[[Collection[str]], Mapping[str, IssuedDispatch]]) -> None:
        """Take what asks the relay for dispatches."""
        self._describe = describe
        self._known: dict[str, IssuedDispatch] = {}

    def of(self, dispatch_ids: Collection[str]) -> dict[str, IssuedDispatch]:
        """Return the issued ones of these dispatches, by id; errors of ``describe``."""
        if unknown := {*dispatch_ids} - self._known.keys():
            self._known |= self._describe(unknown)
        found = {each: self._known[each] for each in dispatch_ids if each in self._known}
        while len(self._known) > _KNOWN_DISPATCHES:
            del self._known[next(iter(self._known))]
        return found
