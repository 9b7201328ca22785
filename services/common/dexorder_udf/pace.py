"""How much input may be under way to a UDF: some seconds at its pace, so that its silence means something. Pure.

The host sends a keepalive after each piece of input. Agents answer in order, so the answer says that the input before
it was taken. A function of any pace then answers within seconds, however much input waits for it.
"""

from __future__ import annotations

from collections import deque

PIECE_BYTES = 16 * 1024
"""Largest piece between two keepalives, unless one frame is larger."""
_FIRST_BYTES, _MOST_BYTES = 1024, 1024 * 1024
_SHARE = 0.25
"""Part of the longest silence that the input under way may take."""


class Pace:
    """Pieces under way, and the pace at which earlier ones were taken."""

    def __init__(self, silence_seconds: float) -> None:
        self._seconds = silence_seconds * _SHARE
        self._window = _FIRST_BYTES
        self._sent: deque[tuple[int, int, float]] = deque()
        self._under_way = 0
        self._taken_at = 0.0

    @property
    def room(self) -> int:
        """Bytes of the next piece; 0 while none may be sent. Without input under way there is always room."""
        return max(0, self._window - self._under_way) if self._sent else self._window

    @property
    def is_under_way(self) -> bool:
        """Return whether a piece was sent that was not taken."""
        return bool(self._sent)

    def sends(self, mark: int, size: int, now: float) -> None:
        """Note that a piece is sent before the keepalive ``mark``; marks grow."""
        self._sent.append((mark, size, now))
        self._under_way += size

    def takes(self, mark: int, now: float) -> bool:
        """Take the answer to a keepalive; return whether it is news about the input."""
        if not any(mark == each[0] for each in self._sent):
            return False
        size, since = 0, max(self._taken_at, self._sent[0][2])
        while self._sent and self._sent[0][0] <= mark:
            size += self._sent.popleft()[1]
        self._under_way -= size
        self._taken_at = now
        fitting = size / max(now - since, 1e-6) * self._seconds
        self._window = round(min(max(fitting, 1), 2 * self._window, _MOST_BYTES))
        return True


def cut(frames: bytes, size: int) -> tuple[bytes, bytes]:
    """Return the first whole frames that have at most ``size`` bytes, at least one frame, and the rest."""
    if len(frames) <= size:
        return frames, b""
    end = place = _frame_end(frames, 0)
    while place <= size:
        end, place = place, _frame_end(frames, place)
    return frames[:end], frames[end:]


def _frame_end(data: bytes, place: int) -> int:
    size = shift = 0
    while (byte := data[place]) > 0x7F:
        size |= (byte & 0x7F) << shift
        shift, place = shift + 7, place + 1
    return place + 1 + (size | byte << shift)
