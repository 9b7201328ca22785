"""The dispatcher's thread: what it does in each turn, and how it begins and ends."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable

from services.common.clock import Clock
from services.gateway.events.dispatcher.transaction import TransactionProcessor
from services.gateway.events.dispatcher.unit_of_work import AfterCommit
from services.gateway.events.ingress.acks import Ack
from services.gateway.events.ingress.intake import ReadCopy, read_copies
from services.gateway.events.ingress.sockets import EventSockets, Waker
from services.gateway.events.store.outbox import Done

MOST_IN_A_TURN = 512
"""Messages of each port; also how many acks a crash between commit and ack can keep from containers."""
TAKEN_AT_ONCE = 32
LONGEST_TAKING_S = LONGEST_ASKED_S = 0.005
TAKEN_OF_A_FLOOD = 4
"""For events that are answered. A port serves its peers in turn, so beside one that floods the others wait for two
turns at most; these are short: they end after so many events of containers above their hard quota."""
MOST_AHEAD = 128
"""Events that are read while a turn is written, and taken in the next one all at once, whoever floods."""
MAX_BEHIND = 10_000
"""Events of the fast path that the event loop has not taken up; then no more are read until it has."""
LONGEST_WAIT_MS = 500
FORGET_SECONDS = 60.0
FORGET_MORE_SECONDS = 0.1


class DispatcherThread:
    """Owns the ports and the desk from ``start`` to the end of ``join``; the other methods are for any thread.

    Args:
        effects: Called in the thread after each turn that has any for the event loop.
        ended: Called in the thread at its end, with what ended it, if not ``stop``.
    """

    def __init__(
        self,
        processor: TransactionProcessor,
        ports: EventSockets,
        clock: Clock,
        after_commit: Callable[[AfterCommit], None],
        ended: Callable[[Exception | None], None],
    ) -> None:
        self._processor = processor
        self._ports = ports
        self._clock = clock
        self._after_commit = after_commit
        self._ended = ended
        self._waker = Waker()
        self._asked: deque[Callable[[TransactionProcessor], object]] = deque()
        self._taking = True
        self._ahead: list[ReadCopy] = []
        self._flooded = False
        self._stopping = False
        self._handed = self._taken_up = 0
        self._forget_at_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="dispatcher", daemon=True)

    def start(self) -> None:
        """Take up the work."""
        self._thread.start()

    def ask(self, what: Callable[[TransactionProcessor], object]) -> None:
        """Do this in the next turn; in the order of the calls."""
        self._asked.append(what)
        self._waker.wake()

    def taken_up(self, informed: int) -> None:
        """The event loop has taken up events of the fast path."""
        waited = self._handed - self._taken_up >= MAX_BEHIND
        self._taken_up += informed
        if waited:
            self._waker.wake()

    def stop_taking(self) -> None:
        """Take nothing more of containers; what was asked and what is due is still done."""
        self._taking = False
        self._waker.wake()

    def stop(self) -> None:
        """End after a turn with all that was asked until now."""
        self._stopping = True
        self._waker.wake()

    def join(self) -> None:
        """Wait for the end."""
        self._thread.join()
        self._waker.close()

    # ---- in the thread

    def _run(self) -> None:
        failure: Exception | None = None
        try:
            last = False
            while not last:
                last = self._stopping  # looked at first: what was asked before it is in this turn
                self._work(0 if last or self._asked or self._ahead else self._timeout_ms(), all_asked=last)
        except Exception as error:  # whatever it is, memory may be ahead of the disk now
            failure = error
        self._ended(failure)

    def _timeout_ms(self) -> int:
        due_ns = self._processor.next_due_ns()
        if due_ns is None:
            return LONGEST_WAIT_MS
        return min(LONGEST_WAIT_MS, max(0, -((self._clock.wall_ns() - due_ns) // 1_000_000)))

    def _work(self, timeout_ms: int, *, all_asked: bool) -> None:
        processor, taking = self._processor, self._taking
        if not taking:
            self._ports.let_go()
        hears = taking and self._handed - self._taken_up < MAX_BEHIND
        router, sub = self._ports.wait(self._waker, timeout_ms, router=taking, sub=hears)
        processor.begin()
        self._do_asked(math.inf if all_asked else LONGEST_ASKED_S)
        more = self._take_events() if router or self._ahead else False
        if sub:
            processor.take_published(self._ports.published(MOST_IN_A_TURN))
        processor.due()
        self._do(processor.close(self._read_ahead if more else None))
        self._forget()

    def _do_asked(self, longest_s: float) -> None:
        until_s = time.monotonic() + longest_s
        for _ in range(len(self._asked)):
            self._asked.popleft()(self._processor)
            if time.monotonic() >= until_s:
                break

    def _take_events(self) -> bool:
        """Whether more may be there, which no flood is the reason not to have taken."""
        until_s = time.monotonic() + LONGEST_TAKING_S
        at_once = TAKEN_OF_A_FLOOD if self._flooded else TAKEN_AT_ONCE
        copies = self._ahead
        self._ahead = []
        above = self._processor.take_read(copies)
        for _ in range(MOST_IN_A_TURN // at_once):
            if above >= TAKEN_OF_A_FLOOD or time.monotonic() >= until_s:
                break
            copies = self._read(at_once)
            above += self._processor.take_read(copies)
            if len(copies) < at_once:
                break
        self._flooded = above > 0
        return len(copies) >= at_once and not self._flooded

    def _read_ahead(self, written: Done) -> None:
        """The next turn's first events, while this one's are written."""
        while len(self._ahead) < MOST_AHEAD and not written():
            copies = self._read(TAKEN_AT_ONCE)
            self._ahead += copies
            if len(copies) < TAKEN_AT_ONCE:
                break

    def _read(self, most: int) -> list[ReadCopy]:
        return read_copies(self._ports.events(most)) if self._taking else []

    def _do(self, after_commit: AfterCommit) -> None:
        answers: list[tuple[bytes, Ack]] = []
        others = []
        for reply_to, ack in after_commit.acks:
            if isinstance(reply_to, bytes):
                answers.append((reply_to, ack))
            else:
                others.append((reply_to, ack))
        self._ports.answer(answers)
        self._ports.subscribe(after_commit.opened, after_commit.closed)
        after_commit.acks = others  # type: ignore[assignment]  # fewer kinds of them
        self._handed += len(after_commit.informed)
        if others or after_commit.sends or after_commit.shows or after_commit.informed or after_commit.done:
            self._after_commit(after_commit)

    def _forget(self) -> None:
        if (now_s := time.monotonic()) >= self._forget_at_s:
            more = self._processor.forget()
            self._forget_at_s = now_s + (FORGET_MORE_SECONDS if more else FORGET_SECONDS)
