"""One open session of a user. It yields the stored events after its cursor, then new ones, in order and once each.

    state         events come from      new stored events are        ends with
    catching up   the log, in batches   noted: the log has them      `end`, `close`, expiry of the token
    live          the registry          queued                       the same, or a full queue
    ended         nowhere               dropped

A session starts in *catching up*. Stored events are on disk before they are shown, so a noted one is in the log. Once
the session has read the log up to the last noted event it is *live*. Transient events, which lack a sequence, are
queued in both states. All methods are for the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

from dexorder_common.clock import Clock
from dexorder_common.model.cursor import Cursor
from dexorder_common.model.errors import Exhausted, NotAllowed, SuiteError, Unauthenticated
from dexorder_gateway.events.sessions.session_frames import EventFrame, OpenedFrame, Render, SessionFrame
from dexorder_gateway.events.sessions.user_tokens import TokenUser
from dexorder_gateway.events.store.event_log import Replay, ReplayBatch

Kind = Literal["grpc", "websocket"]
"""Protocol of a client."""
MAX_BATCH = 256
"""Limit of frames that one `next` returns, so that a backlog does not keep other sessions waiting."""
MAX_WAITING_BYTES = 16 << 20
"""Limit of the live events that wait for a session; small events reach the limit of their number first."""
CLOSE_SECONDS = 5.0
"""Time in which the task of an ended session must finish; a client that does not read is cut off after it."""


class UserSession:
    """Session opened by `SessionRegistry.open`; the task that serves it is cancelled if it does not end in time."""

    def __init__(
        self, user: TokenUser, kind: Kind, max_waiting: int, clock: Clock, on_end: Callable[[UserSession], None]
    ) -> None:
        self.user_id = user.user_id
        self.kind = kind
        self._expires_ns = user.expires_ns
        self._clock = clock
        self._max_waiting = max_waiting
        self._on_end = on_end
        self._stored: deque[SessionFrame] = deque()
        self._live: deque[SessionFrame] = deque()
        self._live_bytes = 0
        self._newest = 0
        self._noted = 0
        self._place = Cursor("", 0)
        self._catching_up = True
        self._ended = False
        self._read_more: Callable[[], Awaitable[ReplayBatch]] | None = None
        self._failure: SuiteError | None = None
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._timer: asyncio.Handle = self._loop.call_soon(self._check_expiry)

    async def next(self) -> list[SessionFrame]:
        """Return the next frames, at least one; none after the client has disconnected. For one task at a time.

        Raises:
            Unauthenticated: The token has expired.
            Exhausted: The client is too slow.
            Unavailable: The gateway is stopping.
        """
        while not self._ended:
            if self._read_more and (frames := self._take()):
                return frames
            if self._read_more and self._catching_up:
                noted = self._noted
                batch = await self._read_more()
                if not self._ended:
                    self._add(batch, noted)
            else:
                self._changed.clear()
                await self._changed.wait()
        if self._failure:
            raise self._failure
        return []

    def extend(self, user: TokenUser) -> None:
        """Accept a new token; the client receives an `OpenedFrame` after the frames that already wait for it.

        Raises:
            NotAllowed: The token belongs to another user.
        """
        if user.user_id != self.user_id:
            raise NotAllowed("the token is another user's")
        self._expires_ns = user.expires_ns
        if not self._ended:
            self._check_expiry()
        if not self._ended:
            epoch, sequence = self._place
            self._live.append(OpenedFrame(epoch, max(sequence, self._newest), user.expires_ns))
            self._changed.set()

    def close(self) -> None:
        """Release the session when its task is done. May be repeated."""
        self._timer.cancel()
        self._leave()

    @property
    def reason(self) -> str:
        """Reason of the end for the metrics: a status, or CLOSED by the client."""
        return self._failure.code.name if self._failure else "CLOSED"

    def begin(self, replay: Replay, render: Render, read_more: Callable[[int, int], Awaitable[ReplayBatch]]) -> None:
        """Start with the first part of the log; ``read_more`` is `DispatcherPort.replay_more` for this user."""
        if self._ended:
            return
        opened = OpenedFrame.of(replay, self._expires_ns)
        self._render = render
        self._place = opened.place
        self._newest = replay.sequence
        self._stored.append(opened)
        self._add(ReplayBatch(replay.events, replay.more), 0)
        self._read_more = lambda: read_more(self._newest, replay.waiting_to)
        self._changed.set()

    def put(self, frames: Sequence[SessionFrame]) -> None:
        """Add new frames in order, without frames that the session already has."""
        if self._ended:
            return
        new = [frame for frame in frames if self._is_new(frame)]
        count = len(self._live) + len(new)
        self._live_bytes += sum([frame.size for frame in new])
        if count > self._max_waiting or (self._live_bytes > MAX_WAITING_BYTES and count > 1):
            self.end(Exhausted("the session is too slow; resume it from its cursor"))
        elif new:
            self._live.extend(new)
            self._changed.set()

    def end(self, error: SuiteError | None) -> None:
        """Make ``next`` raise this error; None if the client has disconnected. Only the first call counts."""
        if self._ended:
            return
        self._failure = error
        self._timer.cancel()
        if self._task:
            self._timer = self._loop.call_later(CLOSE_SECONDS, self._task.cancel)
        self._leave()

    def _is_new(self, frame: SessionFrame) -> bool:
        if not frame.sequence:
            return True
        if frame.sequence <= max(self._noted, self._newest):
            return False
        self._noted = frame.sequence
        if not self._catching_up:
            self._newest = frame.sequence
        return not self._catching_up

    def _add(self, batch: ReplayBatch, noted: int) -> None:
        """Add a batch of the log, which held everything up to ``noted`` when it was read."""
        self._stored.extend(EventFrame.stored(event, self._render) for event in batch.events)
        newest = batch.events[-1].sequence if batch.events else 0
        self._newest = newest if batch.more else max(newest, noted, self._newest)
        self._catching_up = batch.more or self._noted > self._newest

    def _take(self) -> list[SessionFrame]:
        frames: list[SessionFrame] = []
        for waiting in (self._stored, self._live):
            while waiting and len(frames) < MAX_BATCH:
                frames.append(waiting.popleft())
                if waiting is self._live:
                    self._live_bytes -= frames[-1].size
        return frames

    def _leave(self) -> None:
        if not self._ended:
            self._ended = True
            self._stored.clear()
            self._live.clear()
            self._live_bytes = 0
            self._changed.set()
            self._on_end(self)

    def _check_expiry(self) -> None:
        """End the session if its token has expired, else set the timer for the expiry."""
        self._timer.cancel()
        if (left_ns := self._expires_ns - self._clock.wall_ns()) > 0:
            self._timer = self._loop.call_later(left_ns / 1e9, self._check_expiry)
        else:
            self.end(Unauthenticated("the token has expired"))
