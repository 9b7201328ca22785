"""Mutations of messages by a given source of randomness. Pure."""

from __future__ import annotations

from random import Random


def mutated(data: bytes, random: Random) -> bytes:
    """Return the bytes with one to four random changes."""
    made = bytearray(data)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(made) + 1)
        match random.randrange(6):
            case 0 if made:
                made[at % len(made)] ^= 1 << random.randrange(8)
            case 1:
                del made[at : at + random.randint(1, 8)]
            case 2:
                made[at:at] = random.randbytes(random.randint(1, 16))
            case 3:
                made[at:at] = made[at : at + 32]
            case 4:
                del made[at:]
            case _:
                made[at:at] = b"\xff" * random.randint(1, 11)
    return bytes(made)
