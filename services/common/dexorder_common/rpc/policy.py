"""Rules for every call of a server, on any transport: admission, counting, and the status of an error.

    error                 status              text                retry after
    SuiteError            its own code        its own text        ``retry_seconds`` where it is known
    NotImplementedError   UNIMPLEMENTED       its own text        -
    anything else         INTERNAL            a fixed text or `InternalText`'s; the traceback is logged
    cancelled call        CANCELLED           no answer is sent   -

A transport creates one `ServedCall` for each call, passes it the handler's exception, sends the `CallStatus` that it
returns and ends the call. A request that can't be decoded is an InvalidRequest.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import structlog

from dexorder_common.metrics import CallTally
from dexorder_common.model.errors import Code, SuiteError

log = structlog.get_logger(__name__)


class CallContext(Protocol):
    """Facts about a caller that any transport can supply."""

    def peer(self) -> str:
        """Return the remote address; ``unix:...`` for a unix socket."""

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]] | None:
        """Return the metadata (or headers) of the call, keys in lower case."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Return the properties of a verified client certificate, by gRPC's names."""


Admit = Callable[[str, CallContext], None]
"""Takes the service's full name and the context of a call; raises the error that keeps the caller out."""
InternalText = Callable[[str, BaseException], str | None]
"""Takes ``service/method`` and any error but a SuiteError; returns the answer's text, None for the fixed one."""


class CallStatus(NamedTuple):
    """Answer to a failed call; ``retry_ms`` is None where no time is known."""

    code: Code
    text: str
    retry_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Method:
    """Properties that all calls of one method share."""

    service: str
    name: str
    tally: CallTally
    internal_text: InternalText

    @property
    def path(self) -> str:
        """``service/method``, for the log."""
        return f"{self.service}/{self.name}"


class ServedCall:
    """Counts one call and decides its status."""

    __slots__ = ("_start", "code", "method")

    def __init__(self, method: Method) -> None:
        self.method = method
        self.code = Code.OK
        self._start = time.perf_counter()
        method.tally.started += 1

    def fail(self, error: BaseException, *, of_transport: bool = False) -> CallStatus | None:
        """Return the answer to a call after its handler raised this; None for a cancelled call, which gets no answer.

        Args:
            of_transport: The transport raised it, not the handler, so `InternalText` does not apply.
        """
        status = self._status(error, of_transport=of_transport)
        self.code = status.code if status else Code.CANCELLED
        return status

    def _status(self, error: BaseException, *, of_transport: bool) -> CallStatus | None:
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            return None
        if isinstance(error, SuiteError):
            seconds = error.retry_seconds
            return CallStatus(error.code, str(error), None if seconds is None else math.ceil(seconds * 1_000))
        if isinstance(error, NotImplementedError):
            return CallStatus(Code.UNIMPLEMENTED, str(error) or "not implemented")
        log.error("rpc failed", method=self.method.path, exc_info=error)
        text = None if of_transport else self.method.internal_text(self.method.path, error)
        return CallStatus(Code.INTERNAL, text or "internal error; the server's log has the details")

    def finish(self) -> None:
        """Count the end of the call."""
        self.method.tally.end(self.code, time.perf_counter() - self._start)
