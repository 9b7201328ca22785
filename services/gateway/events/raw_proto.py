"""Parts of a protobuf message that are serialized already, put together without parsing them again. Pure.

A message is its fields one after the other, in any order; one that holds a message holds its bytes with a head that
says which field it is and how long. So an event reaches a session as the very bytes that its container sent.
"""

from __future__ import annotations

from functools import lru_cache

_WITH_LENGTH = 2
"""Kind of a field with a message, a text or bytes."""


def field(number: int, content: bytes) -> bytes:
    """A field with a message, a text or bytes, serialized."""
    return field_head(number, len(content)) + content


@lru_cache(maxsize=4096)  # there are few fields and sizes
def field_head(number: int, size: int) -> bytes:
    """What comes before so many bytes of its content."""
    return _varint(number << 3 | _WITH_LENGTH) + _varint(size)


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; all but the last with the eighth bit set."""
    groups = []
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*groups, number))
