"""One open session of a user: it gets what is kept for it from its cursor on, then what is new, in order, once.

What is kept is read from the log, a stretch at a time, as fast as the session takes it. Meanwhile it is in the hub,
where kept events that come are only noted: they are on disk before they are shown, so the log has them. When it has
read up to what it noted, the next events come straight from the hub. All of it is for the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from services.common.clock import Clock
from services.common.model.errors import Exhausted, NotAllowed, SuiteError, Unauthenticated
from services.gateway.events.dispatcher.port import Place
from services.gateway.events.sessions.metrics import Kind
from services.gateway.events.sessions.session_frames import EventFrame, OpenedFrame, Render, SessionFrame
from services.gateway.events.sessions.user_tokens import User
from services.gateway.events.store.records import Replay, ReplayBatch

ReadOn = Callable[[int, int], Awaitable[ReplayBatch]]
"""What comes after a place, see `DispatcherPort.replay_on`."""
AT_ONCE = 256
"""Most items given out together, so that one session's backlog does not keep the others waiting."""
MOST_WAITING_BYTES = 16 << 20
"""Of the events that wait for a session; small ones are fewer bytes when there are too many."""
LAST_SECONDS = 5.0
"""How long a session that was ended may take to hear of it; one that does not read its last items is cut."""


class Session:
    """One session, opened by `SessionRegistry.open`; the task that serves it is cancelled if it does not end in time.

    Attributes:
        user_id: Whose it is.
        kind: What the client speaks.
    """

    def __init__(
        self, user: User, kind: Kind, most_waiting: int, clock: Clock, on_end: Callable[[Session], None]
    ) -> None:
        self.user_id = user.user_id
        self.kind = kind
        self._expires_ns = user.expires_ns
        self._clock = clock
        self._most_waiting = most_waiting
        self._on_end = on_end
        self._first: deque[SessionFrame] = deque()
        self._live: deque[SessionFrame] = deque()
        self._live_bytes = 0
        self._newest = self._noted = 0
        self._place: Place = ("", 0)
        self._behind = True
        self._gone = False
        self._read_on: Callable[[], Awaitable[ReplayBatch]] | None = None
        self._failure: SuiteError | None = None
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._timer = self._loop.call_later(self._left_seconds(), self._expire)

    async def next(self) -> list[SessionFrame]:
        """The next items, at least one, none once the client is gone; for one task at a time.

        Raises:
            Unauthenticated: The token has expired.
            Exhausted: The client is too slow.
            Unavailable: The gateway is stopping.
        """
        while not self._gone:
            if self._read_on and (items := self._take()):
                return items
            if self._read_on and self._behind:
                await self._catch_up(self._read_on)
                continue
            self._changed.clear()
            await self._changed.wait()
        if self._failure:
            raise self._failure
        return []

    def extend(self, user: User) -> None:
        """The client proved itself again; it is told so after what is on its way to it.

        Raises:
            NotAllowed: As somebody else.
        """
        if user.user_id != self.user_id:
            raise NotAllowed("the token is another user's")
        self._expires_ns = user.expires_ns
        if not self._gone:
            self._expire()
        if not self._gone:
            epoch, sequence = self._place
            self._live.append(OpenedFrame(epoch, max(sequence, self._newest), user.expires_ns))
            self._changed.set()

    def close(self) -> None:
        """Nobody serves it any more. Again it changes nothing."""
        self._timer.cancel()
        self._leave()

    # ---- for the hub

    def begin(self, replay: Replay, render: Render, read_on: ReadOn) -> None:
        """What comes before what is new."""
        if self._gone:
            return
        opening = OpenedFrame.of(replay, self._expires_ns)
        self._render = render
        self._place = opening.place
        self._newest = replay.sequence
        self._first.append(opening)
        self._add(ReplayBatch(replay.events, replay.more), 0)
        self._read_on = lambda: read_on(self._newest, replay.waiting_to)
        self._changed.set()

    def put(self, items: Sequence[SessionFrame]) -> None:
        """More, in order; each unless it had that one before."""
        if self._gone:
            return
        new = [item for item in items if self._is_new(item)]
        count = len(self._live) + len(new)
        self._live_bytes += sum([item.size for item in new])
        if count > self._most_waiting or (self._live_bytes > MOST_WAITING_BYTES and count > 1):
            self.end(Exhausted("the session is too slow; resume it from its cursor"))
        elif new:
            self._live.extend(new)
            self._changed.set()

    def _is_new(self, item: SessionFrame) -> bool:
        if not item.sequence:
            return True
        if item.sequence <= max(self._noted, self._newest):
            return False
        self._noted = item.sequence
        if not self._behind:
            self._newest = item.sequence
        return not self._behind

    async def _catch_up(self, read_on: Callable[[], Awaitable[ReplayBatch]]) -> None:
        noted = self._noted
        replay_batch = await read_on()
        if not self._gone:
            self._add(replay_batch, noted)

    def _add(self, replay_batch: ReplayBatch, noted: int) -> None:
        """Some of the log, which was read when everything up to ``noted`` was in it."""
        self._first.extend(EventFrame.of(show, self._render) for show in replay_batch.events)
        newest = replay_batch.events[-1].sequence if replay_batch.events else 0
        self._newest = newest if replay_batch.more else max(newest, noted, self._newest)
        self._behind = replay_batch.more or self._noted > self._newest

    def end(self, error: SuiteError | None) -> None:
        """Let ``next`` raise this; None: the client is gone. The first reason stands."""
        if self._gone:
            return
        self._failure = error
        self._timer.cancel()
        self._timer = self._loop.call_later(LAST_SECONDS, self._cut)
        self._leave()

    def _leave(self) -> None:
        if not self._gone:
            self._gone = True
            self._first.clear()
            self._live.clear()
            self._live_bytes = 0
            self._changed.set()
            self._on_end(self)

    @property
    def reason(self) -> str:
        """What ended it, for the metrics: a status, or that the client went away."""
        return self._failure.code.name if self._failure else "CLOSED"

    def _cut(self) -> None:
        if self._task:
            self._task.cancel()

    def _take(self) -> list[SessionFrame]:
        items: list[SessionFrame] = []
        for waiting in (self._first, self._live):
            while waiting and len(items) < AT_ONCE:
                items.append(waiting.popleft())
                if waiting is self._live:
                    self._live_bytes -= items[-1].size
        return items

    def _left_seconds(self) -> float:
        return max(0.0, (self._expires_ns - self._clock.wall_ns()) / 1e9)

    def _expire(self) -> None:
        """End it if its time is over, else look again when it is."""
        self._timer.cancel()
        if (left := self._left_seconds()) > 0:
            self._timer = self._loop.call_later(left, self._expire)
        else:
            self.end(Unauthenticated("the token has expired"))
