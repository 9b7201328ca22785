"""Open sessions of users: each gets what is kept for it from its cursor on, then what is new, in order, once.

Nothing is missed between the two: a session is in the hub, and what comes for it waits, before its replay is read;
then both are put together in order, each event once. All of it is for the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import structlog

from services.common.clock import Clock, SystemClock
from services.common.errors import Exhausted, NotAllowed, SuiteError, Unauthenticated, Unavailable
from services.gateway.events.changes import Show
from services.gateway.events.config import EventsSettings
from services.gateway.events.port import CourierPort, Place
from services.gateway.events.records import Informed, Replay
from services.gateway.events.session_metrics import Kind, SessionMetrics
from services.gateway.events.shown import Item, Opening, Render, Shown
from services.gateway.events.tokens import User

log = structlog.get_logger(__name__)
AT_ONCE = 256
"""Most items given out together, so that one session's backlog does not keep the others waiting."""
LAST_SECONDS = 5.0
"""How long a session that was ended may take to hear of it; one that does not read its last items is cut."""


class Session:
    """One session; made by `Hub.open` in the task that serves it, which is cancelled if it does not end in time.

    Attributes:
        user_id: Whose it is.
        kind: What the client speaks.
    """

    def __init__(
        self, user: User, kind: Kind, most_waiting: int, clock: Clock, on_end: Callable[[Session], None]
    ) -> None:
        self.user_id, self.kind = user.user_id, kind
        self._expires_ns, self._clock = user.expires_ns, clock
        self._most_waiting, self._on_end = most_waiting, on_end
        self._first: deque[Item] = deque()
        self._live: deque[Item] = deque()
        self._newest = 0
        self._place: Place = ("", 0)
        self._begun = self._gone = False
        self._failure: SuiteError | None = None
        self._changed = asyncio.Event()
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._timer = self._loop.call_later(self._left_seconds(), self._expire)

    async def next(self) -> list[Item]:
        """The next items, at least one, none once the client is gone; for one task at a time.

        Raises:
            Unauthenticated: The token has expired.
            Exhausted: The client is too slow.
            Unavailable: The gateway is stopping.
        """
        while not self._gone:
            if self._begun and (items := self._take()):
                return items
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
            self._live.append(Opening(epoch, max(sequence, self._newest), user.expires_ns))
            self._changed.set()

    def close(self) -> None:
        """Nobody serves it any more. Again it changes nothing."""
        self._timer.cancel()
        self._leave()

    # ---- for the hub

    def begin(self, replay: Replay, render: Render) -> None:
        """What comes before what is new.

        The replay may have been read a little later than its own place: it may have what waits here, and lack what
        another session received meanwhile, which comes in its place all the same.
        """
        if self._gone:
            return
        opening = Opening.of(replay, self._expires_ns)
        known = {show.sequence for show in replay.events}
        late = [item for item in self._live if item.sequence > replay.sequence and item.sequence not in known]
        replayed = [Shown.of(show, render) for show in replay.events]
        self._first = deque([opening, *sorted((*replayed, *late), key=_sequence)])
        self._live = deque(item for item in self._live if not item.sequence)
        self._newest = max(self._newest, replay.sequence, self._first[-1].sequence)
        self._place = opening.place
        self._begun = True
        self._changed.set()

    def put(self, items: Sequence[Item]) -> None:
        """More, in order; each unless it had that one before."""
        if self._gone:
            return
        new: list[Item] = []
        for item in items:
            if not item.sequence:
                new.append(item)
            elif item.sequence > self._newest:
                self._newest = item.sequence
                new.append(item)
        # Until it has begun: the courier shows a user's first session all that waits, which is none of its fault.
        if self._begun and len(self._live) + len(new) > self._most_waiting:
            self.end(Exhausted("the session is too slow; resume it from its cursor"))
        elif new:
            self._live.extend(new)
            self._changed.set()

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
            self._changed.set()
            self._on_end(self)

    @property
    def reason(self) -> str:
        """What ended it, for the metrics: a status, or that the client went away."""
        return self._failure.code.name if self._failure else "CLOSED"

    def _cut(self) -> None:
        if self._task:
            self._task.cancel()

    def _take(self) -> list[Item]:
        items: list[Item] = []
        for waiting in (self._first, self._live):
            while waiting and len(items) < AT_ONCE:
                items.append(waiting.popleft())
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


class Hub:
    """All open sessions; the courier's `show` and `inform` come here."""

    def __init__(
        self,
        courier: CourierPort,
        render: Render,
        settings: EventsSettings,
        metrics: SessionMetrics,
        clock: Clock | None = None,
    ) -> None:
        self._courier, self._render, self._settings, self._metrics = courier, render, settings, metrics
        self._clock = clock or SystemClock()
        self._sessions: dict[str, list[Session]] = {}
        self._stopping = False

    async def open(self, user: User, cursor: Place | None, kind: Kind) -> Session:
        """A session of this user, which must be closed in the end; its first item is an `Opening`.

        Args:
            cursor: The newest that the client received; None for what still waits and what is new.

        Raises:
            Exhausted: The user has as many as may be.
            Unavailable: The gateway is stopping.
        """
        if self._stopping:
            raise Unavailable("the gateway is stopping")
        sessions = self._sessions.setdefault(user.user_id, [])
        if len(sessions) >= self._settings.sessions_per_user:
            raise Exhausted(f"{len(sessions)} sessions of this user are open; no more may be")
        session = Session(user, kind, self._settings.session_queue, self._clock, self._left)
        sessions.append(session)
        self._metrics.opened(kind)
        try:
            if len(sessions) == 1:
                self._courier.session_opened(user.user_id)
            session.begin(await self._courier.replay(user.user_id, cursor), self._render)
        except BaseException:
            session.close()
            raise
        return session

    def show(self, shows: Sequence[Show]) -> None:
        """Put events before the sessions of their users."""
        self._give((show.user_id, Shown.of(show, self._render)) for show in sorted(shows, key=_sequence))

    def inform(self, informed: Sequence[Informed]) -> None:
        """Likewise, for those that are not kept."""
        self._give((each.user_id, Shown.informed(each, self._render)) for each in informed)

    def stop(self) -> None:
        """End all sessions and open no more."""
        self._stopping = True
        for session in [session for sessions in self._sessions.values() for session in sessions]:
            session.end(Unavailable("the gateway is stopping"))

    def _give(self, events: Iterable[tuple[str, Shown]]) -> None:
        """To the sessions of each user, all of a user's together."""
        of_users: dict[str, list[Shown]] = {}
        for user_id, shown in events:
            if user_id in self._sessions:
                of_users.setdefault(user_id, []).append(shown)
        for user_id, items in of_users.items():
            for session in tuple(self._sessions[user_id]):  # a slow one leaves
                session.put(items)

    def _left(self, session: Session) -> None:
        sessions = self._sessions[session.user_id]
        sessions.remove(session)
        self._metrics.ended(session.kind, session.reason)
        if not sessions:
            del self._sessions[session.user_id]
            self._courier.session_closed(session.user_id)


def _sequence(each: Show | Item) -> int:
    return each.sequence
