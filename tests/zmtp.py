"""ZMTP 3.1 on plain sockets, without CURVE, for peers that behave as libzmq's never do."""

from __future__ import annotations

import socket
import struct

GREETING = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL" + bytes(48)
PING = b"\x04\x07\x04PING\0\0"
"""PING without a TTL; libzmq answers it at once."""
_MORE, _LONG = 1, 2
_RESET = struct.pack("ii", 1, 0)


def message(*frames: bytes) -> bytes:
    """Return the bytes of one message."""
    out = b""
    for number, frame in enumerate(frames):
        more = _MORE if number < len(frames) - 1 else 0
        if len(frame) < 256:
            out += bytes([more, len(frame)]) + frame
        else:
            out += bytes([more | _LONG]) + len(frame).to_bytes(8, "big") + frame
    return out


def connect(address: str, kind: bytes = b"DEALER") -> socket.socket:
    """Connect a peer of this socket type and complete the handshake."""
    host, port = address.removeprefix("tcp://").split(":")
    made = socket.create_connection((host, int(port)), timeout=20)
    ready = b"\x05READY\x0bSocket-Type" + len(kind).to_bytes(4, "big") + kind
    made.sendall(GREETING + b"\x04" + bytes([len(ready)]) + ready)
    heard = b""
    while b"READY" not in heard:  # libzmq may lose earlier bytes
        part = made.recv(4096)
        assert part, "the handshake was refused"
        heard += part
    return made


def is_closed_in_an_endless_message(address: str, kind: bytes = b"DEALER") -> bool:
    """Send frames of one message; return whether the other side closes the connection instead of reading 60 MB."""
    more = message(bytes(10_000), b"")[: -len(message(b""))]
    with connect(address, kind) as peer:
        try:
            for _ in range(6_000):  # more than the buffers between the peer and libzmq
                peer.sendall(more)
        except TimeoutError:
            return False
        except OSError:
            return True
    return False


def reset(peer: socket.socket) -> None:
    """Reset the connection, as a host does whose process has died while bytes are in flight."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    peer.close()
