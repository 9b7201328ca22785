"""Thread of the dispatcher: its cycle, its start and its end."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable

from dexorder_common.clock import Clock
from dexorder_gateway.events.dispatcher.receiver import ReadCopy, read_copies
from dexorder_gateway.events.dispatcher.transaction import TransactionProcessor
from dexorder_gateway.events.dispatcher.unit_of_work import AfterCommit
from dexorder_gateway.events.ingress.sockets import EventSockets, Waker
from dexorder_gateway.events.model import Ack
from dexorder_gateway.events.store.outbox import Committed

MAX_MESSAGES = 512
"""Messages of each socket in one cycle; also how many acks a crash between commit and ack can lose."""
BATCH_MESSAGES = 32
MAX_RECEIVE_S = MAX_CALLS_S = 0.005
FLOOD_MESSAGES = 4
"""A socket serves its peers in turn, so beside one that floods the others wait for two cycles at most. These are short:
they end after this many guaranteed events of containers above their hard quota."""
MAX_AHEAD = 128
"""Events that are read during a commit, and taken in the next cycle all at once, even in a flood."""
MAX_UNTAKEN = 10_000
"""Transient events that the event loop has not taken; above this no more are read."""
MAX_WAIT_MS = 500
FORGET_SECONDS = 60.0
FORGET_MORE_SECONDS = 0.1


class DispatcherThread:
    """Owner of the sockets and the processor from ``start`` to the end of ``join``; other methods are thread-safe.

    Args:
        hand_over: Called in the thread after each commit with effects for the event loop.
        ended: Called in the thread at its end, with the error that ended it, if any.
    """

    def __init__(
        self,
        processor: TransactionProcessor,
        sockets: EventSockets,
        clock: Clock,
        hand_over: Callable[[AfterCommit], object],
        ended: Callable[[Exception | None], object],
    ) -> None:
        self._processor = processor
        self._sockets = sockets
        self._clock = clock
        self._hand_over = hand_over
        self._ended = ended
        self._waker = Waker()
        self._calls: deque[Callable[[TransactionProcessor], object]] = deque()
        self._taking = True
        self._ahead: list[ReadCopy] = []
        self._flooded = False
        self._stopping = False
        self._transient_handed = 0
        self._transient_taken = 0
        self._forget_at_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="dispatcher", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def call(self, call: Callable[[TransactionProcessor], object]) -> None:
        """Make a call in the next transaction, in the order of these calls."""
        self._calls.append(call)
        self._waker.wake()

    def transient_taken(self, count: int) -> None:
        """Count transient events that the event loop has taken."""
        waited = self._transient_handed - self._transient_taken >= MAX_UNTAKEN
        self._transient_taken += count
        if waited:
            self._waker.wake()

    def stop_taking(self) -> None:
        """Take no more messages of containers; calls and due work continue."""
        self._taking = False
        self._waker.wake()

    def stop(self) -> None:
        """End after a transaction with all calls made until now."""
        self._stopping = True
        self._waker.wake()

    def join(self) -> None:
        """Wait for the end."""
        self._thread.join()
        self._waker.close()

    def _run(self) -> None:
        failure: Exception | None = None
        try:
            last = False
            while not last:
                last = self._stopping  # read first: calls made before it was set are in this transaction
                self._cycle(0 if last or self._calls or self._ahead else self._timeout_ms(), all_calls=last)
        except Exception as error:  # after any error, memory may be ahead of the disk
            failure = error
        self._ended(failure)

    def _timeout_ms(self) -> int:
        due_ns = self._processor.next_due_ns()
        if due_ns is None:
            return MAX_WAIT_MS
        return min(MAX_WAIT_MS, max(0, -((self._clock.wall_ns() - due_ns) // 1_000_000)))

    def _cycle(self, timeout_ms: int, *, all_calls: bool) -> None:
        processor, taking = self._processor, self._taking
        if not taking:
            self._sockets.unsubscribe_all()
        reads_sub = taking and self._transient_handed - self._transient_taken < MAX_UNTAKEN
        router, sub = self._sockets.wait(self._waker, timeout_ms, router=taking, sub=reads_sub)
        processor.begin()
        self._make_calls(math.inf if all_calls else MAX_CALLS_S)
        more = self._take_events() if router or self._ahead else False
        if sub:
            processor.receiver.take_published(self._sockets.published(MAX_MESSAGES))
        processor.due()
        self._carry_out(processor.commit(self._read_ahead if more else None))
        self._forget()

    def _make_calls(self, max_s: float) -> None:
        until_s = time.monotonic() + max_s
        for _ in range(len(self._calls)):
            self._calls.popleft()(self._processor)
            if time.monotonic() >= until_s:
                break

    def _take_events(self) -> bool:
        """Take guaranteed events; return whether more may be waiting, not counting a flood."""
        until_s = time.monotonic() + MAX_RECEIVE_S
        batch = FLOOD_MESSAGES if self._flooded else BATCH_MESSAGES
        copies = self._ahead
        self._ahead = []
        above = self._processor.receiver.take(copies)
        for _ in range(MAX_MESSAGES // batch):
            if above >= FLOOD_MESSAGES or time.monotonic() >= until_s:
                break
            copies = self._read(batch)
            above += self._processor.receiver.take(copies)
            if len(copies) < batch:
                break
        self._flooded = above > 0
        return len(copies) >= batch and not self._flooded

    def _read_ahead(self, committed: Committed) -> None:
        """Read the next cycle's first events during a commit."""
        while len(self._ahead) < MAX_AHEAD and not committed():
            copies = self._read(BATCH_MESSAGES)
            self._ahead += copies
            if len(copies) < BATCH_MESSAGES:
                break

    def _read(self, limit: int) -> list[ReadCopy]:
        return read_copies(self._sockets.events(limit)) if self._taking else []

    def _carry_out(self, effects: AfterCommit) -> None:
        to_connections: list[tuple[bytes, Ack]] = []
        to_callbacks = []
        for reply_to, ack in effects.acks:
            if isinstance(reply_to, bytes):
                to_connections.append((reply_to, ack))
            else:
                to_callbacks.append((reply_to, ack))
        self._sockets.send_acks(to_connections)
        self._sockets.subscribe(effects.subscribe, effects.unsubscribe)
        effects.acks = to_callbacks  # type: ignore[assignment]  # fewer kinds of ReplyTo
        self._transient_handed += len(effects.transient)
        if to_callbacks or effects.sends or effects.session_events or effects.transient or effects.resolved:
            self._hand_over(effects)

    def _forget(self) -> None:
        if (now_s := time.monotonic()) >= self._forget_at_s:
            more = self._processor.forget()
            self._forget_at_s = now_s + (FORGET_MORE_SECONDS if more else FORGET_SECONDS)
