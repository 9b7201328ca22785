"""Thread of the dispatcher: its start and its end."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dexorder_gateway.events.dispatcher.cycle import DispatcherCycle


class DispatcherThread:
    """Runs the cycle from ``start`` to the end of ``join``. Methods are thread-safe.

    Args:
        ended: Called in the thread at its end, with the error that ended it, if any.
    """

    def __init__(self, cycle: DispatcherCycle, ended: Callable[[Exception | None], object]) -> None:
        self._cycle = cycle
        self._ended = ended
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="dispatcher", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End after a transaction with all calls made until now."""
        self._stopping = True
        self._cycle.wake()

    def join(self) -> None:
        """Wait for the end."""
        self._thread.join()

    def _run(self) -> None:
        failure: Exception | None = None
        try:
            last = False
            while not last:
                last = self._stopping  # read first: calls made before it was set are in this transaction
                self._cycle.run(0 if last else self._cycle.timeout_ms(), all_calls=last)
        except Exception as error:  # after any error, memory may be ahead of the disk
            failure = error
        self._ended(failure)
