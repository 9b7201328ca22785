"""Connection of the host to a UDF over gRPC. Two threads carry bytes between the call and a socket pair.

The buffers of the socket pair and gRPC's flow control bound the bytes under way. Frames are not parsed here.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import grpc

from dexorder_common.config import read_settings
from dexorder_common.rpc.channel import UdfChannelSettings, open_sync_channel
from dexorder_udf.connections import UdfConnection
from dexorder_udf.errors import ProtocolError, UdfError, UdfStopped, UdfUnreachable
from dexorder_udf.framing import FrameSplitter, unwrap, wrap
from dexorder_udf.spec import UdfSpec

METHOD = "/dexorder.udf.v1.UdfService/Run"
_READ_BYTES = 256 * 1024
_BUFFER_BYTES = 1024 * 1024
_LOOK_SECONDS = 0.2


class GrpcConnection(UdfConnection):
    """A call of ``UdfService.Run``; ``DEXORDER_UDF_CHANNEL_<NAME>`` has its TLS and token, none by default."""

    def __init__(self, spec: UdfSpec, stop: threading.Event) -> None:
        assert spec.grpc_target
        limit = ("grpc.max_receive_message_length", spec.frame_limit_bytes + 64)
        try:
            settings = read_settings(UdfChannelSettings)
            options = [limit, ("grpc.max_send_message_length", -1)]
            self._channel = open_sync_channel(spec.grpc_target, settings, options=options)
        except (ValueError, OSError) as error:
            raise UdfError(spec.name, f"grpc {spec.grpc_target}: {error}") from None
        try:
            self._wait(spec, stop)
        except UdfError:
            self._channel.close()
            raise
        self._end = ""
        self._is_away = False
        ours, self._theirs = socket.socketpair()
        self._ours = ours
        ours.setblocking(False)
        for each in (ours, self._theirs):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        self.read_fd = self.write_fd = ours.fileno()
        run: Any = self._channel.stream_stream(METHOD, request_serializer=None, response_deserializer=None)
        self._call: Any = run(self._requests())
        self._reader = threading.Thread(target=self._responses, name=f"gRPC of UDF {spec.name}", daemon=True)
        self._reader.start()

    def _wait(self, spec: UdfSpec, stop: threading.Event) -> None:
        ready, deadline = grpc.channel_ready_future(self._channel), time.monotonic() + spec.connect_seconds
        while time.monotonic() < deadline:
            with suppress(grpc.FutureTimeoutError):
                ready.result(min(_LOOK_SECONDS, max(0.0, deadline - time.monotonic())))
                return
            if stop.is_set():
                raise UdfStopped(spec.name, "it was stopped")
        raise UdfUnreachable(
            spec.name, f"no gRPC server at {spec.grpc_target} answers within {spec.connect_seconds:g} s"
        )

    def half_close(self) -> None:
        """End our direction of the call."""
        with suppress(OSError):
            self._ours.shutdown(socket.SHUT_WR)

    def ending(self) -> str:
        """Return the status of the call."""
        self._reader.join(1)
        return self._end or "it closed the connection"

    def is_away(self) -> bool:
        """Return whether the call has ended because no server answers any more."""
        return self._is_away

    def close(self, grace_seconds: float) -> None:
        """Cancel the call and close the channel."""
        self._call.cancel()
        for each in (self._ours, self._theirs):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._reader.join(1)
        self._channel.close()
        self._ours.close()
        self._theirs.close()

    def _requests(self) -> Iterator[bytes]:
        """Yield the host's bytes, as RunRequest; run by a thread of gRPC."""
        splitter = FrameSplitter(2**63)  # our own frames
        while True:
            try:
                data = self._theirs.recv(_READ_BYTES)
            except OSError:
                return
            if not data:
                return
            if bodies := splitter.feed(data):
                yield wrap(bodies)

    def _responses(self) -> None:
        try:
            for message in self._call:
                self._theirs.sendall(unwrap(message))
        except grpc.RpcError as error:
            self._end = f"its gRPC stream ended with {error.code().name}: {error.details()}"
            self._is_away = error.code() is grpc.StatusCode.UNAVAILABLE
        except ProtocolError as error:
            self._end = f"it broke the protocol: {error}"
            self._call.cancel()
        except OSError:
            pass  # closed by us
        with suppress(OSError):
            self._theirs.shutdown(socket.SHUT_WR)
