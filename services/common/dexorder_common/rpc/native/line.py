"""The connection's interface for a call."""

from __future__ import annotations

from contextvars import Context
from typing import Protocol

from grpc.aio import BaseError

from dexorder_common.rpc.native.context import Caller
from dexorder_common.rpc.native.limits import Limits
from dexorder_common.rpc.native.metadata import Metadata


class CallerLeft(BaseError):
    """An answer for a caller that is not there any more."""


class Line(Caller, Protocol):
    """The connection of a call."""

    limits: Limits

    def context(self) -> Context:
        """Return a new context for a handler, without the values of other calls."""

    def respond(self, stream: int, message: bytes) -> bool | None:
        """Send the only answer of a call and status OK; False if the status has to wait, None if the client is gone."""

    def head(self, stream: int, metadata: Metadata) -> None:
        """Send initial metadata."""

    def data(self, stream: int, data: bytes) -> bool:
        """Send framed answers; False if they have to wait."""

    def finish(self, stream: int, code: int, text: str, metadata: Metadata, *, has_head: bool) -> None:
        """Send the status of a call."""

    def reset(self, stream: int) -> None:
        """End a call without a status: its client does not read."""

    def consume(self, stream: int) -> None:
        """Let the client send more of the call's request."""

    def hold(self, size: int) -> bool:
        """Count bytes of requests that are not whole; False if they are too many."""

    def has_room(self, size: int) -> bool:
        """Return whether so many more bytes of answers may wait for the client."""

    def note_unread(self, size: int) -> None:
        """Count bytes of answers that wait; they have left or were dropped if it is negative."""

    def ended(self, stream: int) -> None:
        """Note the end of a call's handler."""
