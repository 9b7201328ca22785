"""Lines of the UDFs' stderr until the relay has them. A UDF that writes too many loses its oldest ones."""

from __future__ import annotations

import threading
import time
from collections import deque

MAX_WAITING = 500
"""Lines that wait of one UDF."""
MAX_LINE = 4_096
Line = tuple[int, str]
"""Time in nanoseconds and text."""


class LogBook:
    """Lines by UDF; any thread may add, one thread takes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[Line]] = {}

    def add(self, name: str, text: str) -> None:
        """Keep a line."""
        with self._lock:
            self._waiting.setdefault(name, deque(maxlen=MAX_WAITING)).append((time.time_ns(), text[:MAX_LINE]))

    def take(self) -> dict[str, list[Line]]:
        """Return the lines that wait, oldest first, and forget them."""
        with self._lock:
            found, self._waiting = self._waiting, {}
        return {name: list(lines) for name, lines in found.items()}

    def put_back(self, taken: dict[str, list[Line]]) -> None:
        """Keep lines again that were not delivered, before those that came since."""
        with self._lock:
            for name, lines in taken.items():
                newer = self._waiting.get(name, ())
                self._waiting[name] = deque([*lines, *newer], maxlen=MAX_WAITING)
