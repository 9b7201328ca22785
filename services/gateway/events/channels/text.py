"""Making a text fit."""

from __future__ import annotations

from collections.abc import Callable

ELLIPSIS = "…"


def utf16_units(character: str) -> int:
    """How Telegram and Discord count: two for what is beyond the basic plane."""
    return 2 if character > "\uffff" else 1


def utf8_bytes(character: str) -> int:
    """How push services count."""
    return len(character.encode())


def cut(text: str, most: int, size: Callable[[str], int] = utf16_units) -> str:
    """Shorten a text until its characters' sizes add up to ``most`` or less; an ellipsis shows where it was cut."""
    room, fits = most - size(ELLIPSIS), 0
    taken = 0
    for end, character in enumerate(text, 1):
        taken += size(character)
        if taken <= room:
            fits = end
        if taken > most:
            return text[:fits].rstrip() + ELLIPSIS
    return text
