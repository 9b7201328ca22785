"""Commands of other threads to the publisher's thread, and the wake-up that goes with them."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import Future
from dataclasses import dataclass

from dexorder.events.errors import PublisherClosed
from dexorder.events.outcome import Outcome
from dexorder.events.outcomes import fail
from services.common.model.user_events import Priority

MOST_INFORMATIONAL = 10_000
"""Commands in the mailbox from which on INFORMATIONAL events are dropped."""


@dataclass(frozen=True, slots=True)
class PublishCommand:
    """Send an event; ``kept`` is done when it is on the disk, None for one that is not kept.

    Attributes:
        frame: The event with its type byte.
    """

    event_id: str
    user_id: str
    priority: Priority
    frame: bytes
    kept: Future[str] | None


@dataclass(frozen=True, slots=True)
class OutcomeQuery:
    """Tell how an event ends."""

    event_id: str
    outcome: Future[Outcome]


@dataclass(frozen=True, slots=True)
class FlushCommand:
    """Tell when no event waits any more."""

    drained: Future[None]


Command = PublishCommand | OutcomeQuery | FlushCommand


class CommandQueue:
    """``give`` and ``close`` are for any thread, the rest for the publisher's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._commands: list[Command] = []
        self._open = True
        self._bell, self.bell = socket.socketpair()

    def give(self, command: Command) -> None:
        """Have a command done, in order.

        Raises:
            PublisherClosed: No command is done any more.
        """
        with self._lock:
            if not self._open:
                raise PublisherClosed("the publisher is closed")
            waiting = len(self._commands)
            if isinstance(command, PublishCommand) and command.kept is None and waiting >= MOST_INFORMATIONAL:
                return  # dropped, as what nobody looks at is
            self._commands.append(command)
            if not waiting:
                self._bell.send(b"\x00")

    def close(self) -> None:
        """Take no more."""
        with self._lock:
            if self._open:
                self._open = False
                self._bell.send(b"\x00")

    def take(self) -> tuple[list[Command], bool]:
        """What was given since the last time, and whether more may come."""
        with self._lock:
            commands = self._commands
            self._commands = []
            return commands, self._open

    def hush(self) -> None:
        """The bell was heard."""
        self.bell.recv(4096)

    def end(self) -> None:
        """Take no more, and refuse what was not taken."""
        self.close()
        for command in self.take()[0]:
            match command:
                case PublishCommand(kept=future) | OutcomeQuery(outcome=future) | FlushCommand(drained=future):
                    if future is not None:
                        fail(future, PublisherClosed("the publisher is closed"))
        with self._lock:
            self._bell.close()
            self.bell.close()
