"""A group's commit in one partition: its offset, its metadata, and where reading starts from it. Pure.

The metadata holds the acked ranges above the committed offset as pairs (gap, length). A gap starts at the end of the
range before it. A number has 5 bits per character, lowest bits first, in base64's alphabet; 0x20 is set on all but its
last character. Offsets 1, 3, 4 acked at offset 0 are ``BBBC``, as Kafka-Pixy writes them.

Ours end with a full stop and a checksum of offset and text. confluent-kafka reads metadata that others
committed with bytes of foreign memory after it. These can look like more pairs, and one in 256 is a full stop: without
the checksum such a commit would make us skip records that were never delivered (docs/decisions/0006).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

Range = tuple[int, int]
"""Half open range of offsets."""
Commit = tuple[int, str]
"""Offset and metadata."""

MAX_METADATA_CHARACTERS = 4_000
"""Longest metadata written; a broker refuses more than 4,096 bytes by default."""
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_VALUES = {character: value for value, character in enumerate(_ALPHABET)}
_STOP = "."
_CHECKSUM_CHARACTERS = 4
_MAX_OFFSET = 1 << 63
_CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffd]")


def encode_ranges(offset: int, ranges: Iterable[Range], *, limit: int = MAX_METADATA_CHARACTERS) -> str:
    """Return the acked ranges above ``offset`` as text, without the checksum.

    Args:
        ranges: In order, disjoint and not adjacent, none below ``offset``.
        limit: In characters; ranges that do not fit are left out, and their records are delivered again.
    """
    text = ""
    for start, end in ranges:
        pair = _encode_number(start - offset) + _encode_number(end - start)
        if len(text) + len(pair) > limit:
            break
        text, offset = text + pair, end
    return text


def decode_ranges(offset: int, text: str) -> list[Range]:
    """Return the ranges of a text made by ``encode_ranges``; raise ValueError if it is not whole, positive pairs."""
    numbers, ranges = list(_decode_numbers(text)), []
    if len(numbers) % 2:
        raise ValueError(f"{text!r} ends within a pair")
    for gap, length in zip(numbers[::2], numbers[1::2], strict=True):
        if length == 0:
            raise ValueError(f"{text!r} has an empty range")
        ranges.append((offset + gap, offset + gap + length))
        offset += gap + length
    return ranges


def _encode_number(value: int) -> str:
    text = ""
    while value > 31:
        text += _ALPHABET[value & 31 | 32]
        value >>= 5
    return text + _ALPHABET[value]


def _decode_numbers(text: str) -> Iterator[int]:
    value = shift = 0
    for character in text:
        if character not in _VALUES:
            raise ValueError(f"{text!r} has {character!r}")
        digit = _VALUES[character]
        value |= (digit & 31) << shift
        shift += 5
        if shift > 65:
            raise ValueError(f"{text!r} has a number of more than 64 bits")
        if digit < 32:
            yield value
            value = shift = 0
    if shift:
        raise ValueError(f"{text!r} ends within a number")


def commit_metadata(offset: int, ranges: Sequence[Range]) -> str:
    """Return the metadata of a commit of ``offset``: the ranges and a checksum; empty without ranges."""
    return _with_checksum(offset, encode_ranges(offset, ranges)) if ranges else ""


def _with_checksum(offset: int, text: str) -> str:
    number = zlib.crc32(f"{offset} {text}".encode(errors="surrogatepass"))
    checksum = "".join(_ALPHABET[number >> 6 * n & 63] for n in range(_CHECKSUM_CHARACTERS))
    return f"{text}{_STOP}{checksum}"


def _before_checksum(offset: int, metadata: str) -> str | None:
    """Return the text before the checksum; None without a checksum of this offset and text."""
    text = metadata.partition(_STOP)[0]
    return text if metadata.startswith(_with_checksum(offset, text)) else None


def committed_ranges(offset: int, metadata: str, *, end: int) -> list[Range]:
    """Return the acked ranges of a commit that was read back.

    Args:
        metadata: As confluent-kafka returns it; anything after the checksum is not ours.
        end: End of the partition's log; acks of records that do not exist yet are left out.
    Raises:
        ValueError: The metadata was not written by us, or is broken.
    """
    if not metadata:
        return []
    text = _before_checksum(offset, metadata)
    if text is None:
        raise ValueError("our checksum is missing, so its end is unknown")
    return [(start, min(stop_offset, end)) for start, stop_offset in decode_ranges(offset, text) if start < end]


@dataclass(frozen=True, slots=True)
class StartPosition:
    """First offset to read of a partition.

    Attributes:
        acked: Ranges above ``offset`` that are acked already.
        committed: Whether this is exactly the commit.
        warning: Why the commit was not used as it is; empty if it was.
    """

    offset: int
    acked: tuple[Range, ...] = ()
    committed: bool = False
    warning: str = ""


def start_position(offset: int, metadata: str) -> StartPosition:
    """Return the start for a partition's commit; the records that are acked above it may not exist yet."""
    try:
        return StartPosition(offset, tuple(committed_ranges(offset, metadata, end=_MAX_OFFSET)), committed=True)
    except ValueError as error:
        return StartPosition(offset, warning=f"metadata {metadata!r} is not used: {error}")


def shown_metadata(offset: int, metadata: str) -> tuple[str, list[Range]]:
    """Return a commit's metadata as Kafka-Pixy would show it, and the acked ranges in it.

    Ours loses its checksum. Metadata of others may have foreign bytes after it: it is cut at the first control
    character, and its ranges do not count, neither here nor for a reader.
    """
    text = _before_checksum(offset, metadata)
    if text is not None and (ranges := _plausible_ranges(offset, text)):
        return text, ranges
    return _CONTROL_CHARACTERS.split(metadata, maxsplit=1)[0], []


def metadata_to_commit(offset: int, text: str, *, end: int) -> str:
    """Return what to commit for a caller's metadata, so that ``shown_metadata`` returns it unchanged.

    Kafka-Pixy takes any text that decodes as acked ranges. So do we if the ranges can be true: above ``offset``, not
    adjacent, and of records that exist (before ``end``). Any other text is a note of the caller's.

    Raises:
        ValueError: The text is not such ranges, but would be read as some.
    """
    start = text.partition(_STOP)[0]
    given = start if text == _with_checksum(offset, start) else text
    ranges = _plausible_ranges(offset, given)
    if ranges and ranges[-1][1] <= end:
        return _with_checksum(offset, given)
    try:
        misread = committed_ranges(offset, text, end=_MAX_OFFSET)  # the log may grow
    except ValueError:
        misread = []
    if misread:
        raise ValueError("its start, up to the checksum, would be read as acks")
    return text


def sparse_text(offset: int, ranges: Iterable[Range]) -> str:
    """Return ranges relative to the offset: ``1-2,3-5``."""
    return ",".join(f"{start - offset}-{end - offset}" for start, end in ranges)


def _plausible_ranges(offset: int, text: str) -> list[Range]:
    """Return the ranges of a text; none if it is something else. Adjacent ranges are not ours: they would be one."""
    try:
        ranges = decode_ranges(offset, text)
    except ValueError:
        return []
    edges = [offset, *(end for _, end in ranges)]
    return ranges if all(start > edge for (start, _), edge in zip(ranges, edges, strict=False)) else []
