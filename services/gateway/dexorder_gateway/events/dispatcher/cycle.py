"""Cycle of the dispatcher: wait, take messages and calls, decide, commit, carry out. One thread runs it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from dexorder_common.clock import Clock
from dexorder_common.model.times import SECOND_NS
from dexorder_gateway.events.dispatcher.receiver import ReadCopy, read_copies
from dexorder_gateway.events.dispatcher.transaction import TransactionProcessor
from dexorder_gateway.events.dispatcher.unit_of_work import AfterCommit
from dexorder_gateway.events.ingress.containers import Container
from dexorder_gateway.events.ingress.floods import fewest_first
from dexorder_gateway.events.model import Ack
from dexorder_gateway.events.store.outbox import Written

MAX_MESSAGES = 1024
"""Messages of each socket in one cycle, and largest number of acks that a crash between commit and ack can lose."""
BATCH_MESSAGES = 64
MAX_CALLS_NS = 5_000_000
MAX_RECEIVE_NS = 20_000_000
"""Time to take what waits. Each commit writes the same pages of the indices, so a few large ones cost less."""
MAX_FLOOD_NS = 5_000_000
"""The same once a quota is exceeded: refused events need no commit, and other containers wait for their acks."""
FLOOD_BATCH = 16
"""Messages that are read at once while a connection floods: another one's event waits for as many at most."""
MAX_HOLD_NS = 10_000_000
"""Time for which a flood's accepted events and the answers to it wait for a commit, or for another one's event."""
MAX_AHEAD = 512
"""Events that are read during a write, and taken in the next cycle all at once."""
MAX_UNTAKEN = 10_000
"""Transient events that the event loop has not taken; above this no more are read."""
MAX_WAIT_MS = 500
UNSENT_WAIT_MS = 5
"""Wait before acks that a connection did not take are tried again; libzmq does not tell when it has room."""
FULL_WAIT_MS = 10
"""Wait for messages while the disk is full."""
FORGET_NS = 60 * SECOND_NS
FORGET_MORE_NS = SECOND_NS // 10


class ContainerSockets(Protocol):
    """The part of `EventSockets` that the cycle needs. ``wake`` is thread-safe."""

    @property
    def sub_address(self) -> str:
        """Return the address of the fast path."""

    @property
    def router_address(self) -> str:
        """Return the address of the guaranteed path."""

    @property
    def has_unsent(self) -> bool:
        """Return whether acks wait until their connections take them."""

    def wake(self) -> None:
        """End the present wait, or the next one."""

    def wait(self, timeout_ms: int, *, router: bool, sub: bool) -> tuple[bool, bool]:
        """Wait for messages on ROUTER and SUB, as far as requested, or for a wake; return which of them has some."""

    def events(self, limit: int) -> Iterator[tuple[Container, bytes | None, bytes]]:
        """Receive from ROUTER: sender, UserEvent or None, routing id."""

    def published(self, limit: int) -> Iterator[tuple[Container, bytes, bytes]]:
        """Receive from SUB: sender, topic, UserEvent."""

    def send_acks(self, acks: Iterable[tuple[bytes, Ack]]) -> None:
        """Send acks to routing ids, and acks that connections did not take before."""

    def unsubscribe_all(self) -> None:
        """Show containers that SUB is without a listener."""

    def subscribe(self, opened: Iterable[bytes], closed: Iterable[bytes]) -> None:
        """Subscribe to topics, and unsubscribe from others."""


class DispatcherCycle:
    """Owner of the sockets and the processor. ``run`` and ``timeout_ms`` are for one thread, the rest for any.

    Args:
        hand_over: Called after each commit with effects for the event loop.
    """

    def __init__(
        self,
        processor: TransactionProcessor,
        sockets: ContainerSockets,
        clock: Clock,
        hand_over: Callable[[AfterCommit], object],
    ) -> None:
        self._processor = processor
        self._sockets = sockets
        self._clock = clock
        self._hand_over = hand_over
        self._calls: deque[Callable[[TransactionProcessor], object]] = deque()
        self._taking = True
        self._ahead: list[ReadCopy] = []
        self._transient_handed = 0
        self._transient_taken = 0
        self._forget_at_ns = clock.monotonic_ns()

    def call(self, call: Callable[[TransactionProcessor], object]) -> None:
        """Make a call in the next transaction, in the order of these calls."""
        self._calls.append(call)
        self.wake()

    def wake(self) -> None:
        """End the present wait, or the next one."""
        self._sockets.wake()

    def transient_taken(self, count: int) -> None:
        """Count transient events that the event loop has taken."""
        waited = self._transient_handed - self._transient_taken >= MAX_UNTAKEN
        self._transient_taken += count
        if waited:
            self.wake()

    def stop_taking(self) -> None:
        """Take no more messages of containers; calls and due work continue."""
        self._taking = False
        self.wake()

    def timeout_ms(self, longest: int = MAX_WAIT_MS) -> int:
        """Return how long the next cycle may wait for messages."""
        if self._calls or self._ahead:
            return 0
        due_ns = self._processor.next_due_ns()
        if self._sockets.has_unsent:
            longest = min(longest, UNSENT_WAIT_MS)
        if due_ns is None:
            return longest
        return min(longest, max(0, -((self._clock.wall_ns() - due_ns) // 1_000_000)))

    def run(self, timeout_ms: int, *, all_calls: bool = False) -> None:
        """Run one cycle: one transaction and its effects."""
        processor, taking = self._processor, self._taking
        if not taking:
            self._sockets.unsubscribe_all()
        router, sub = self._sockets.wait(timeout_ms, router=taking, sub=taking and self._has_room)
        processor.begin()
        self._make_calls(math.inf if all_calls else MAX_CALLS_NS)
        more = self._take() if router or self._ahead else False
        if sub:
            processor.receiver.take_published(self._sockets.published(MAX_MESSAGES))
        processor.due()
        self._carry_out(processor.commit(self._read_ahead if more else None, self._while_full))
        self._forget()

    @property
    def _has_room(self) -> bool:
        return self._transient_handed - self._transient_taken < MAX_UNTAKEN

    def _while_full(self) -> None:
        """Go on, while a commit waits for space, with the fast path and with answers that need no disk."""
        taking, ahead = self._taking, len(self._ahead)
        router, sub = self._sockets.wait(
            FULL_WAIT_MS, router=taking and ahead < MAX_AHEAD, sub=taking and self._has_room
        )
        copies = self._ahead + (self._read(BATCH_MESSAGES) if router else [])
        published = self._sockets.published(MAX_MESSAGES) if sub else ()
        effects, self._ahead = self._processor.without_disk(copies, published)
        self._carry_out(effects)

    def _make_calls(self, max_ns: float) -> None:
        until_ns = self._clock.monotonic_ns() + max_ns
        for _ in range(len(self._calls)):
            self._calls.popleft()(self._processor)
            if self._clock.monotonic_ns() >= until_ns:
                break

    def _take(self) -> bool:
        """Take guaranteed events; return whether to read ahead during their commit."""
        floods = self._processor.receiver.floods
        if not floods:
            return self._take_events()
        self._take_flood()
        floods.forget(self._clock.monotonic_ns())
        return False

    def _take_flood(self) -> None:
        """Take events while a connection floods: until another one has sent some, or else for some milliseconds."""
        receiver, clock, sockets = self._processor.receiver, self._clock, self._sockets
        until_ns, count = clock.monotonic_ns() + MAX_HOLD_NS, 0
        copies, self._ahead = self._ahead, []
        while True:
            receiver.take(copies)
            count += len(copies)
            others = not receiver.floods.has_only([sender for _, _, sender in copies])
            if others or self._calls or not self._taking or count >= MAX_MESSAGES:
                return
            left_ms = (until_ns - clock.monotonic_ns()) // 1_000_000
            if left_ms <= 0:
                return
            if len(copies) < FLOOD_BATCH and sockets.wait(left_ms, router=True, sub=self._has_room) != (True, False):
                return
            copies = self._read(FLOOD_BATCH)

    def _take_events(self) -> bool:
        """Take guaranteed events; return whether more may be waiting.

        A socket serves its peers in turn, and events above a quota cost little, so a peer that floods is read at full
        speed: events count against its quota when they arrive, and others wait for this cycle and the next at most.
        """
        receiver, started_ns = self._processor.receiver, self._clock.monotonic_ns()
        over_quota = receiver.over_quota
        copies, self._ahead = self._ahead, []
        receiver.take(copies)
        for _ in range(MAX_MESSAGES // BATCH_MESSAGES):
            max_ns = MAX_RECEIVE_NS if receiver.over_quota == over_quota else MAX_FLOOD_NS
            if self._clock.monotonic_ns() >= started_ns + max_ns:
                break
            copies = self._read(BATCH_MESSAGES)
            receiver.take(copies)
            if len(copies) < BATCH_MESSAGES:
                break
        return len(copies) >= BATCH_MESSAGES

    def _read_ahead(self, written: Written) -> None:
        """Read the next cycle's first events during a write."""
        while len(self._ahead) < MAX_AHEAD and not written():
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
        self._sockets.send_acks(fewest_first(to_connections))
        self._sockets.subscribe(effects.subscribe, effects.unsubscribe)
        effects.acks = to_callbacks  # type: ignore[assignment]  # fewer kinds of ReplyTo
        self._transient_handed += len(effects.transient)
        if to_callbacks or effects.sends or effects.session_events or effects.transient or effects.resolved:
            self._hand_over(effects)

    def _forget(self) -> None:
        if (now_ns := self._clock.monotonic_ns()) >= self._forget_at_ns:
            more = self._processor.forget()
            self._forget_at_ns = now_ns + (FORGET_MORE_NS if more else FORGET_NS)
