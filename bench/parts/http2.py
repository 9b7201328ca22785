"""Minimal client of gRPC streams over a unix socket, cheap enough that a measurement shows the server's cost.

Plain HTTP/2 (RFC 9113) with gRPC's messages in its DATA frames, for servers that we start ourselves: headers are sent
uncompressed, received ones are not read, and a call that the server ends before we do is a failure. grpcio's own
client costs 17 us a message, the package h2 some 30 us a frame, this one about 3 us.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from pathlib import Path

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM = _ACK = 1
_END_HEADERS = 4
_ENABLE_PUSH, _INITIAL_WINDOW_SIZE, _MAX_FRAME_SIZE = 2, 4, 5
_FIRST_WINDOW = 65_535
_MAX_WINDOW = 2**31 - 1
_WINDOW_STEP = 1 << 26
"""Bytes received before the window is updated."""
_FRAME_BYTES = 16_384
_CHUNK_BYTES = 1 << 18
_TIMEOUT_SECONDS = 60.0


class Connection:
    """One connection. Not thread-safe; waiting on one stream serves all of them."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(_TIMEOUT_SECONDS)
        self._socket.connect(str(path))
        self._streams: dict[int, Stream] = {}
        self._left = b""
        self._stream_window = _FIRST_WINDOW
        self.window = _FIRST_WINDOW
        """Bytes that may be sent on all streams together."""
        values = {_ENABLE_PUSH: 0, _INITIAL_WINDOW_SIZE: _MAX_WINDOW, _MAX_FRAME_SIZE: 2**24 - 1}
        settings = b"".join(struct.pack(">HI", *each) for each in values.items())
        self._socket.sendall(_PREFACE)
        self.send_frame(_SETTINGS, 0, 0, settings)
        self.send_frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", _MAX_WINDOW - _FIRST_WINDOW))

    def open(self, method: str) -> Stream:
        """Begin a call of ``/service/method``."""
        number = 2 * len(self._streams) + 1
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": method,
            ":authority": "localhost",
            "te": "trailers",
            "content-type": "application/grpc",
        }
        self.send_frame(_HEADERS, _END_HEADERS, number, b"".join(_literal(*each) for each in headers.items()))
        stream = self._streams[number] = Stream(self, number, self._stream_window)
        return stream

    def send_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        """Send one frame."""
        self._socket.sendall(struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload)

    def pump(self) -> None:
        """Wait for bytes and process the complete frames.

        Raises:
            TimeoutError: No bytes were received.
            AssertionError: The server ended the connection or a call.
        """
        chunk = self._socket.recv(_CHUNK_BYTES)
        if not chunk:
            raise AssertionError("the server closed the connection")
        data = self._left + chunk
        position, end = 0, len(data)
        while end - position >= 9:
            head = int.from_bytes(data[position : position + 4], "big")
            after = position + 9 + (head >> 8)
            if after > end:
                break
            number = int.from_bytes(data[position + 5 : position + 9], "big")
            payload = data[position + 9 : after]
            if head & 0xFF == _DATA:
                self._streams[number].feed(payload)
            else:
                self._control(head & 0xFF, data[position + 4], number, payload)
            position = after
        self._left = data[position:]

    def _control(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            self._adopt(dict(struct.iter_unpack(">HI", payload)))
            self.send_frame(_SETTINGS, _ACK, 0, b"")
        elif kind == _PING and not flags & _ACK:
            self.send_frame(_PING, _ACK, 0, payload)
        elif kind == _WINDOW_UPDATE:
            (more,) = struct.unpack(">I", payload)
            if number:
                self._streams[number].window += more
            else:
                self.window += more
        elif kind in (_RST_STREAM, _GOAWAY) or (kind == _HEADERS and flags & _END_STREAM):
            if number not in self._streams or not self._streams[number].ends:
                raise AssertionError(f"the server ended stream {number} by frame {kind}: {payload!r}")
            self._streams[number].ended = True

    def _adopt(self, settings: dict[int, int]) -> None:
        grown = settings.get(_INITIAL_WINDOW_SIZE, self._stream_window) - self._stream_window
        self._stream_window += grown
        for stream in self._streams.values():
            stream.window += grown

    def close(self) -> None:
        """Close the connection; the server's calls end as cancelled."""
        self._socket.close()


class Stream:
    """One call with a stream of messages each way.

    Attributes:
        window: Bytes that may be sent on it.
        ends: Whether we have ended it.
        ended: Whether the server has ended it as well.
    """

    def __init__(self, connection: Connection, number: int, window: int) -> None:
        self._connection = connection
        self._number = number
        self.window = window
        self.ends = self.ended = False
        self._inbox: deque[bytes] = deque()
        self._partial = b""
        self._taken = 0

    def send(self, message: bytes) -> None:
        """Send one message; wait while the window is full."""
        data = b"\0" + len(message).to_bytes(4, "big") + message
        connection = self._connection
        while data:
            size = min(len(data), self.window, connection.window, _FRAME_BYTES)
            if size <= 0:
                connection.pump()
                continue
            connection.send_frame(_DATA, 0, self._number, data[:size])
            self.window -= size
            connection.window -= size
            data = data[size:]

    def receive(self) -> bytes:
        """Return the next message; wait for it."""
        while not self._inbox:
            self._connection.pump()
        return self._inbox.popleft()

    def finish(self) -> None:
        """End the call and wait until the server has: pynumaflow's exits if a client only closes the connection."""
        self.ends = True
        self._connection.send_frame(_DATA, _END_STREAM, self._number, b"")
        while not self.ended:
            self._connection.pump()

    def feed(self, data: bytes) -> None:
        """Process the bytes of a DATA frame; for the connection."""
        self._taken += len(data)
        if self._taken >= _WINDOW_STEP:
            for number in (0, self._number):
                self._connection.send_frame(_WINDOW_UPDATE, 0, number, struct.pack(">I", self._taken))
            self._taken = 0
        if self._partial:
            data = self._partial + data
        position, end = 0, len(data)
        while end - position >= 5:
            after = position + 5 + int.from_bytes(data[position + 1 : position + 5], "big")
            if after > end:
                break
            self._inbox.append(data[position + 5 : after])
            position = after
        self._partial = data[position:]


def _literal(name: str, value: str) -> bytes:
    """Return a literal header that is not indexed (RFC 7541, 6.2.2)."""
    return b"".join((b"\0", *(bytes((len(text),)) + text.encode() for text in (name, value))))
