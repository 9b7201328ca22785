"""Turns of clients at calls that only read, which no quota counts.

A client that reads as fast as it can has what others leave of the relay: another client's call waits for a few reads of
it, and its own calls wait for each other. With identity off, all callers are one, and do not wait.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pb2 import MethodOptions

from dexorder_common.rpc.identity import current_caller
from dexorder_relay.fair_semaphore import FairSemaphore

PARALLEL_READS = 2
"""Reads at the same time: the second one is computed while the first one waits for the database."""
MAX_WAITING_READS = 1_000
"""Reads of a client that wait for their turn."""
Handler: TypeAlias = Callable[[Any, Any], Awaitable[Any]]


class ReadTurns:
    """Turns at the reads of a relay."""

    def __init__(self) -> None:
        self._reads = FairSemaphore(PARALLEL_READS, MAX_WAITING_READS)

    def around(self, handler: Handler) -> Handler:
        """Return a handler that waits for its caller's turn; Exhausted if too many calls of the caller wait."""

        async def read(request: Any, context: Any) -> Any:
            caller = current_caller()
            if caller is None:
                return await handler(request, context)
            async with self._reads.place(caller.client_id):
                return await handler(request, context)

        return read


def only_reads(method: MethodDescriptor) -> bool:
    """Return whether a method is unary and changes nothing."""
    is_unary = not method.server_streaming and not method.client_streaming
    return is_unary and method.GetOptions().idempotency_level == MethodOptions.NO_SIDE_EFFECTS
