"""``kill -9`` of the ingestor and of Spark while a request runs."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

from dexorder.client.blocking import Client
from dexorder.demo.suite import say
from dexorder.errors import DexorderError, SuiteFailed
from dexorder.supervisor.plan import SuiteOptions
from dexorder.supervisor.state import read_state
from dexorder_common.model.history import Progress

KILLS = (("spark", 0.05), ("ingestor", 0.3))
"""Parts to kill, each as soon as this share of the request is settled; the request cannot end before Spark is back."""
_ATTEMPT_SECONDS = 0.1


class Killer:
    """Follows a request in its own thread and kills parts of the suite on the way."""

    def __init__(self, options: SuiteOptions, request_id: str, send: Callable[[int, int], None] = os.kill) -> None:
        self._options = options
        self._request_id = request_id
        self._send = send
        self._left = list(KILLS)
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start to follow the request, which may not have been submitted yet."""
        self._thread = threading.Thread(target=self._follow, name="demo-killer", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Stop; SuiteFailed if the request ended before everything was killed."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
        if self._left:
            raise SuiteFailed(f"the request ended before {' and '.join(part for part, _ in self._left)} was killed")

    def note(self, now: Progress) -> None:
        """Kill the parts that are due at this progress."""
        while self._left and now.expected_periods and now.settled_periods >= self._left[0][1] * now.expected_periods:
            part, _ = self._left.pop(0)
            self._kill(part)

    def _follow(self) -> None:
        with Client(self._options.address("relay")) as client:
            while self._left and not self._is_over.is_set():
                try:
                    client.wait(self._request_id, on_progress=self.note, timeout=1.0)
                except DexorderError:  # not submitted yet, or still running
                    time.sleep(_ATTEMPT_SECONDS)

    def _kill(self, part: str) -> None:
        state = read_state(self._options.directory)
        pid = state.parts[part].pid if state is not None and part in state.parts else None
        if pid is not None:
            say(f"$ kill -9 {pid}  # {part}")
            self._send(pid, signal.SIGKILL)
