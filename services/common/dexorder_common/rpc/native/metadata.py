"""Header fields of gRPC over HTTP/2: timeouts, metadata, status."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Sequence

from dexorder_common.model.errors import InvalidRequest

Metadata = Sequence[tuple[str, str | bytes]]
CONTENT_TYPE = "application/grpc"
BINARY = "-bin"
TRANSPORTS_OWN = frozenset({"te", "content-type", "grpc-timeout", "grpc-encoding", "grpc-accept-encoding"})
"""Fields of a request that are no metadata."""
_CONTENT_TYPE = re.compile(rb"application/grpc($|[+;])")
_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_SECONDS = {b"H": 3_600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_KEY = re.compile(r"[0-9a-z_.-]+")
_TEXT = re.compile(r"[\x20-\x7e]*")
_TO_ESCAPE = re.compile(rb"[^\x20-\x24\x26-\x7e]")


def is_grpc(content_type: bytes | None) -> bool:
    """Return whether a content type is one of gRPC's, such as ``application/grpc+proto``."""
    return content_type is not None and _CONTENT_TYPE.match(content_type) is not None


def parse_timeout(value: bytes) -> float:
    """Return the seconds of a ``grpc-timeout``.

    Raises:
        InvalidRequest: It is none.
    """
    found = _TIMEOUT.fullmatch(value)
    if found is None:
        raise InvalidRequest(f"grpc-timeout {value[:64]!r} is not up to 8 digits and one of HMSmun")
    return int(found[1]) * _SECONDS[found[2]]


def decode_metadata(pairs: Iterable[tuple[str, bytes]]) -> tuple[tuple[str, str | bytes], ...]:
    """Return the metadata in the fields of a request, in their order.

    Raises:
        InvalidRequest: A binary value is not base64.
    """
    found: list[tuple[str, str | bytes]] = []
    for name, value in pairs:
        if name in TRANSPORTS_OWN:
            continue
        if name.endswith(BINARY):
            found += [(name, _decode_binary(name, each)) for each in value.split(b",")]
        else:
            found.append((name, value.decode("latin-1")))
    return tuple(found)


def _decode_binary(name: str, value: bytes) -> bytes:
    text = value.strip().rstrip(b"=")
    try:
        return base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
    except binascii.Error:
        raise InvalidRequest(f"metadata {name[:64]!r} is not base64") from None


def encode_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> list[tuple[str, bytes]]:
    """Return the fields of metadata that a handler gives.

    Raises:
        ValueError: A key or a value can't be sent.
    """
    return [(key, _encode(key, value)) for key, value in metadata]


def _encode(key: str, value: str | bytes) -> bytes:
    if not _KEY.fullmatch(key):
        raise ValueError(f"metadata key {key!r} may have only 0-9, a-z, '_', '.' and '-'")
    if key.endswith(BINARY):
        return base64.b64encode(value.encode() if isinstance(value, str) else value).rstrip(b"=")
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    if not _TEXT.fullmatch(text):
        raise ValueError(f"metadata {key!r} has a character beyond ASCII; name it {key + BINARY!r}")
    return text.encode()


def encode_text(text: str) -> bytes:
    """Return a status message as ``grpc-message`` has it: UTF-8, all but printable ASCII as ``%XX``."""
    return _TO_ESCAPE.sub(lambda found: b"%%%02X" % found[0][0], text.encode(errors="replace"))


def trailers(code: int, text: str, metadata: Iterable[tuple[str, str | bytes]] = ()) -> list[tuple[str, bytes]]:
    """Return the fields that end a call."""
    fields = [("grpc-status", b"%d" % code)]
    if text:
        fields.append(("grpc-message", encode_text(text)))
    return fields + encode_metadata(metadata)
