"""Queue of commands to the publisher's thread, with the wake-up that goes with it."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import Future
from dataclasses import dataclass

from dexorder.errors import PublisherClosed
from dexorder.events.outcomes import Outcome, fail
from dexorder_common.model.user_events import Priority

MAX_INFORMATIONAL = 10_000
"""Number of queued commands at which INFORMATIONAL events are dropped."""


@dataclass(frozen=True, slots=True)
class PublishCommand:
    """Command to send an event."""

    event_id: str
    user_id: str
    priority: Priority
    frame: bytes
    """Event with its type byte."""
    written: Future[str] | None
    """Completed when the event is in the outbox; None for an event that is not written there."""


@dataclass(frozen=True, slots=True)
class OutcomeQuery:
    """Command to complete ``outcome`` with the outcome of an event."""

    event_id: str
    outcome: Future[Outcome]


@dataclass(frozen=True, slots=True)
class FlushCommand:
    """Command to complete ``flushed`` when the outbox is empty."""

    flushed: Future[None]


Command = PublishCommand | OutcomeQuery | FlushCommand


class CommandQueue:
    """Queue of commands. ``put`` and ``close`` are for any thread, the rest for the publisher's.

    Attributes:
        wakeup: Socket for a poller, readable when commands wait. Read its bytes before taking the commands.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._commands: list[Command] = []
        self._open = True
        self._waker, self.wakeup = socket.socketpair()

    def put(self, command: Command) -> None:
        """Add a command; commands are executed in order.

        Raises:
            PublisherClosed: The queue is closed.
        """
        with self._lock:
            if not self._open:
                raise PublisherClosed("the publisher is closed")
            waiting = len(self._commands)
            if isinstance(command, PublishCommand) and command.written is None and waiting >= MAX_INFORMATIONAL:
                return  # dropped, as any INFORMATIONAL event may be
            self._commands.append(command)
            if not waiting:
                self._waker.send(b"\x00")

    def close(self) -> None:
        """Accept no more commands."""
        with self._lock:
            if self._open:
                self._open = False
                self._waker.send(b"\x00")

    def take(self) -> tuple[list[Command], bool]:
        """Return the commands since the last call, and whether the queue is still open."""
        with self._lock:
            commands, self._commands = self._commands, []
            return commands, self._open

    def shut_down(self) -> None:
        """Close the queue, fail the commands that were not taken, and close the sockets."""
        self.close()
        for command in self.take()[0]:
            match command:
                case PublishCommand(written=future) | OutcomeQuery(outcome=future) | FlushCommand(flushed=future):
                    if future is not None:
                        fail(future, PublisherClosed("the publisher is closed"))
        with self._lock:
            self._waker.close()
            self.wakeup.close()
