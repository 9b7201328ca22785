"""The publisher's thread: it opens the outbox and the sockets, waits for them, and runs the rules of `Sender`."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import structlog
import zmq

from dexorder.events.commands import CommandQueue
from dexorder.events.config import PublisherSettings
from dexorder.events.connection import Connection
from dexorder.events.outbox import open_outbox
from dexorder.events.outcomes import Outcome, OutcomeTracker
from dexorder.events.sender import Sender

log = structlog.get_logger(__name__)


class SenderThread(threading.Thread):
    """Runs from ``start()`` until the command queue is closed. It alone uses the sockets, the outbox and the rules."""

    def __init__(
        self, settings: PublisherSettings, on_outcome: Callable[[Outcome], None], on_queued: Callable[[str], None]
    ) -> None:
        """Open the outbox and the sockets; see `Publisher`."""
        super().__init__(name="dexorder-publisher", daemon=True)
        jitter = random.Random()  # noqa: S311 - no secret; separate: the thread must not change an application's seed
        self.commands = CommandQueue()
        outcomes = OutcomeTracker(on_outcome, on_queued)
        with ExitStack() as closing:
            closing.callback(self.commands.shut_down)
            closing.callback(outcomes.close)
            outbox = open_outbox(settings.outbox)
            closing.callback(outbox.close)
            context = closing.enter_context(zmq.Context())
            self.fast = Connection(context, zmq.XPUB, settings.fast, settings)
            closing.callback(self.fast.close)
            self.guaranteed = Connection(context, zmq.DEALER, settings.guaranteed, settings)
            closing.callback(self.guaranteed.close)
            self.sender = Sender(
                settings, outbox, self.fast, self.guaranteed, outcomes, lambda: jitter.uniform(0.9, 1.1)
            )
            self._closing = closing.pop_all()

    def run(self) -> None:
        """Run the thread."""
        sender = self.sender
        with self._closing:
            try:
                more = True
                while more:
                    self._wait()
                    now_ns = time.monotonic_ns()
                    commands, more = self.commands.take()
                    sender.iterate(commands, now_ns)
                sender.end(time.monotonic_ns())
            except Exception:
                log.exception("the publisher has failed; the events in its outbox are sent after the next start")
            sender.fail_flushes()

    def _wait(self) -> None:
        now_ns = time.monotonic_ns()
        due_ns = self.sender.due_ns(now_ns)
        poller = zmq.Poller()
        for each in (self.commands.wakeup, self.fast.socket, self.fast.monitor, self.guaranteed.monitor):
            poller.register(each, zmq.POLLIN)
        poller.register(self.guaranteed.socket, zmq.POLLIN | zmq.POLLOUT if self.sender.is_blocked else zmq.POLLIN)
        timeout_ms = None if due_ns is None else max(0, -(-(due_ns - now_ns) // 1_000_000))
        ready: dict[Any, int] = dict(poller.poll(timeout_ms))
        if self.commands.wakeup.fileno() in ready:
            self.commands.wakeup.recv(4096)
        if ready.get(self.guaranteed.socket, 0) & zmq.POLLOUT:
            self.sender.is_blocked = False
