"""Start of the triggers' process beside the driver: it runs only while triggers are registered.

It is its own process, so that triggers take no memory, processor time or interpreter lock from the tables' queries, and
a failure in it does not stop them. It holds the other end of a pipe, and ends with the driver.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable

import structlog

from dexorder_spark.cep.relay import TriggerRelay

log = structlog.get_logger(__name__)
COMMAND = (sys.executable, "-P", "-m", "dexorder_spark.cep")
_LOOK_SECONDS = 0.25
_MAX_BACKOFF_S = 30.0
_STEADY_SECONDS = 60.0
"""A process that has run for so long is started again at once."""
_STOP_SECONDS = 4.0


class TriggerHost:
    """Runs the process until ``stop`` is set."""

    def __init__(
        self,
        relay: str,
        stop: threading.Event,
        *,
        command: tuple[str, ...] = COMMAND,
        on_running: Callable[[bool], None] = lambda running: None,
        on_restart: Callable[[], None] = lambda: None,
    ) -> None:
        """Keep the relay's address, and the callbacks for the start, end and failure of the process."""
        self._relay = relay
        self._stop = stop
        self._command = command
        self._on_running = on_running
        self._on_restart = on_restart
        self._live: set[int] = set()

    def run(self) -> None:
        """Follow the registered triggers, and keep the process running while there are any."""
        relay = TriggerRelay(self._relay, self._stop)
        threading.Thread(target=self._follow, args=(relay,), name="trigger-list", daemon=True).start()
        backoff_s = 0.0
        try:
            while not self._stop.wait(max(_LOOK_SECONDS, backoff_s)):
                if not self._live:
                    continue
                ran_s = self._run_process()
                if ran_s is None:
                    backoff_s = 0.0
                    continue
                backoff_s = 0.0 if ran_s > _STEADY_SECONDS else min(max(1.0, 2 * backoff_s), _MAX_BACKOFF_S)
                self._on_restart()
                log.error("the triggers' process died; it is started again", again_in_s=backoff_s)
        finally:
            relay.close()

    def _follow(self, relay: TriggerRelay) -> None:
        for changes in relay.follow(None):
            if changes.is_reset:
                self._live.clear()
            for each in changes.changes:
                (self._live.add if each.trigger is not None else self._live.discard)(each.registration)

    def _run_process(self) -> float | None:
        """Run the process to its end; return the seconds that it ran if it failed, None if it ended well."""
        log.info("starting the triggers' process")
        process = subprocess.Popen(self._command, stdin=subprocess.PIPE)
        self._on_running(True)
        ran_s = 0.0
        try:
            while process.poll() is None and not self._stop.wait(_LOOK_SECONDS):
                ran_s += _LOOK_SECONDS
        finally:
            assert process.stdin
            process.stdin.close()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()  # a batch that is cut off is repeated
                process.wait()
            self._on_running(False)
        return None if process.returncode == 0 or self._stop.is_set() else ran_s
