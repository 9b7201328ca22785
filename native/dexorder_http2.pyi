"""HTTP/2 server sessions for an ``asyncio.Protocol``: bytes in, events and bytes out."""

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias, final

REQUEST: Final[Literal[0]]
DATA: Final[Literal[1]]
RESET: Final[Literal[2]]
WRITABLE: Final[Literal[3]]
PONG: Final[Literal[4]]
UNARY: Final[Literal[5]]
OUTPUT_LIMIT: Final[int]
"""Bytes that one `Session.step` returns at most, but for the last frame."""
SEND_BUFFER: Final[int]
"""Bytes of an answer that a stream keeps before its data waits, though the client's windows have room for more."""

Request: TypeAlias = tuple[Literal[0], int, Head, bytes, bool]
"""A stream, its head, what of its body has come, and whether that is all."""
Data: TypeAlias = tuple[Literal[1], int, bytes, bool]
"""More of a stream's body, and whether it is the last."""
Reset: TypeAlias = tuple[Literal[2], int, int]
"""A stream that the client has reset, and its error code."""
Writable: TypeAlias = tuple[Literal[3], int]
"""A stream whose data has left, after `Session.data` or `Session.answer` returned False."""
Pong: TypeAlias = tuple[Literal[4], int]
Unary: TypeAlias = tuple[Literal[5], int, Head, bytes, float | None]
"""A gRPC request that is one message, without compression and binary metadata: the message, the timeout in seconds."""
Event: TypeAlias = Request | Data | Reset | Writable | Pong | Unary

@final
class Fields:
    """Header fields of an answer, made once and sent many times; ValueError for one that HTTP does not allow."""

    def __new__(cls, pairs: Sequence[tuple[str, bytes]]) -> Fields: ...

@final
class Head:
    """Method, path and fields of a request; their names are in lower case."""

    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def authority(self) -> str | None: ...
    def get(self, name: str) -> bytes | None:
        """Return the first value of a field."""

    def pairs(self) -> list[tuple[str, bytes]]:
        """Return all fields."""

@final
class Session:
    """One connection. It does no input or output: what `step` returns goes to the socket.

    Args:
        stream_window: Bytes that the client may send on a stream before they are consumed.
        connection_window: The same of all streams.
        max_streams: Streams that may be open at the same time.
        max_header_bytes: Largest list of header fields.
        max_unread_resets: Streams that one ``step`` may see opened and reset.
        max_message_bytes: Largest message of a `Unary`; a larger one is a `Request`.
        answer_head: Fields before the message of `answer`.
        answer_end: Fields after it.
        is_unix: Take an authority that is the path of a unix socket, as gRPC's C core sends it.
    """

    def __new__(
        cls,
        *,
        stream_window: int,
        connection_window: int,
        max_streams: int,
        max_header_bytes: int,
        max_unread_resets: int,
        max_message_bytes: int,
        answer_head: Fields,
        answer_end: Fields,
        is_unix: bool,
    ) -> Session: ...
    def step(self, data: bytes | None) -> tuple[list[Event], bytes]:
        """Take bytes of the client; return what has happened, and bytes for it.

        Call it with None after anything else of this class, and again after an output of `OUTPUT_LIMIT` bytes.
        """

    def answer(self, stream: int, message: bytes) -> bool | None:
        """Answer with one gRPC message.

        False: it has to wait, call `finish` after `WRITABLE`. None: the stream is gone.
        """

    def head(self, stream: int, fields: Fields) -> None:
        """Send the answer's fields, with status 200; nothing if they were sent."""

    def data(self, stream: int, data: bytes) -> bool:
        """Send data after the head; False if it has to wait: then the next may be sent after `WRITABLE`."""

    def finish(self, stream: int, fields: Fields) -> None:
        """End a stream with trailers, or without a head before them with fields that are both."""

    def reset(self, stream: int, code: int) -> None:
        """End a stream without an answer."""

    def consume(self, stream: int) -> None:
        """Let the client send as many more bytes as have come of a body that has not ended."""

    def ping(self) -> bool:
        """Ask the client for a sign of life, a `PONG`; False if one is asked for already."""

    def go_away(self) -> None:
        """Refuse new streams; the session closes once the open ones have ended."""

    def abort(self, code: int) -> None:
        """Close the session with an error code."""

    @property
    def closed(self) -> str | None:
        """None while it is open, else the reason; empty for an orderly end."""

    @property
    def opened(self) -> bool:
        """Whether the client's preface has come."""

    @property
    def streams(self) -> int:
        """Streams that are not finished, as far as this side knows."""
