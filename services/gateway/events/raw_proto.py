"""Serialized parts of a protobuf message, put together without parsing them again. Pure.

A message is its fields one after the other, in any order; a field with a message is that message's bytes after a head
with the field's number and their length. So an event reaches a session as the bytes that its container sent.
"""

from __future__ import annotations

from functools import lru_cache

_WITH_LENGTH = 2
"""Wire type of a field with a message, a string or bytes."""


def field(number: int, content: bytes) -> bytes:
    """Return a serialized field with a message, a string or bytes."""
    return field_head(number, len(content)) + content


@lru_cache(maxsize=4096)  # there are few fields and sizes
def field_head(number: int, size: int) -> bytes:
    """Return the head of a field whose content has this size."""
    return _varint(number << 3 | _WITH_LENGTH) + _varint(size)


def _varint(number: int) -> bytes:
    """Return a varint: seven bits a byte, lowest first; all but the last with the eighth bit set."""
    groups = []
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*groups, number))
