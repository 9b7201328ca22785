"""Acked ranges above a committed offset, as text in the commit's metadata. Pure.

The text is pairs (gap, length), each relative to the end of the range before it, in numbers of 5 bits a character,
lowest bits first, 0x20 set on all but a number's last character, in base64's alphabet: offsets 1, 3, 4 acked at
offset 0 are ``BBBC``, as Kafka-Pixy writes it. Ours ends with a full stop. confluent-kafka reads text that others
committed with bytes of foreign memory behind it, and those can look like further pairs: without the stop such a commit
would make us skip records nobody has seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

Range = tuple[int, int]
"""Half open range of offsets."""

_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_VALUES = {character: value for value, character in enumerate(_ALPHABET)}
_SEAL = "."
MAX_METADATA_CHARACTERS = 4_000
"""Longest metadata written, in characters; a broker refuses more than 4,096 bytes by default."""


def encode_ranges(offset: int, ranges: Iterable[Range], *, most: int = MAX_METADATA_CHARACTERS) -> str:
    """The acked ranges above ``offset`` as text, without the full stop.

    Args:
        ranges: In order, apart from each other, none below ``offset``.
        most: Characters; ranges that do not fit are left out, their records will be delivered again.
    """
    text = ""
    for start, end in ranges:
        pair = _number(start - offset) + _number(end - start)
        if len(text) + len(pair) > most:
            break
        text, offset = text + pair, end
    return text


def decode_ranges(offset: int, text: str) -> list[Range]:
    """The ranges that ``encode_ranges`` was given.

    Raises:
        ValueError: The text is not whole pairs of positive length.
    """
    numbers, ranges = list(_numbers(text)), []
    if len(numbers) % 2:
        raise ValueError(f"{text!r} ends within a pair")
    for gap, length in zip(numbers[::2], numbers[1::2], strict=True):
        if length == 0:
            raise ValueError(f"{text!r} has an empty range")
        ranges.append((offset + gap, offset + gap + length))
        offset += gap + length
    return ranges


def commit_metadata(offset: int, ranges: Sequence[Range]) -> str:
    """What a commit of ``offset`` carries: the ranges and a full stop; empty without ranges."""
    return encode_ranges(offset, ranges) + _SEAL if ranges else ""


def committed_ranges(offset: int, metadata: str, *, end: int) -> list[Range]:
    """The acked ranges of a commit that was read back.

    Args:
        metadata: As confluent-kafka gives it; anything behind the full stop is not ours.
        end: End of the partition's log; acks of records that are not there yet are left out.
    Raises:
        ValueError: Not written by us, or broken.
    """
    if not metadata:
        return []
    text, seal, _ = metadata.partition(_SEAL)
    if not seal:
        raise ValueError("it has no full stop, so where it ends is unknown")
    return [(start, min(stop, end)) for start, stop in decode_ranges(offset, text) if start < end]


def _number(value: int) -> str:
    text = ""
    while value > 31:
        text += _ALPHABET[value & 31 | 32]
        value >>= 5
    return text + _ALPHABET[value]


def _numbers(text: str) -> Iterator[int]:
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
