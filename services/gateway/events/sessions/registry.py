"""Open sessions of users: who is there, and who gets what. All of it is for the event loop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from services.common.clock import Clock, SystemClock
from services.common.model.errors import Exhausted, Unavailable
from services.gateway.events.config import EventsSettings
from services.gateway.events.delivery.changes import SessionEvent
from services.gateway.events.dispatcher.port import DispatcherPort, Place
from services.gateway.events.sessions.metrics import Kind, SessionMetrics
from services.gateway.events.sessions.session import Session
from services.gateway.events.sessions.session_frames import EventFrame, Render
from services.gateway.events.sessions.user_tokens import User
from services.gateway.events.store.records import TransientEvent


class SessionRegistry:
    """All open sessions; the dispatcher's `show` and `inform` come here."""

    def __init__(
        self,
        dispatcher: DispatcherPort,
        render: Render,
        settings: EventsSettings,
        metrics: SessionMetrics,
        clock: Clock | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self._render = render
        self._settings = settings
        self._metrics = metrics
        self._clock = clock or SystemClock()
        self._sessions: dict[str, list[Session]] = {}
        self._stopping = False

    async def open(self, user: User, cursor: Place | None, kind: Kind) -> Session:
        """A session of this user, which must be closed in the end; its first item is an `OpenedFrame`.

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
                self._dispatcher.session_opened(user.user_id)
            replay = await self._dispatcher.replay(user.user_id, cursor)
            session.begin(replay, self._render, partial(self._dispatcher.replay_more, user.user_id))
        except BaseException:
            session.close()
            raise
        return session

    def show(self, shows: Sequence[SessionEvent]) -> None:
        """Put events before the sessions of their users."""
        self._give((show.user_id, EventFrame.of(show, self._render)) for show in sorted(shows, key=_sequence))

    def inform(self, informed: Sequence[TransientEvent]) -> None:
        """Likewise, for those that are not kept."""
        self._give((each.user_id, EventFrame.informed(each, self._render)) for each in informed)

    def stop(self) -> None:
        """End all sessions and open no more."""
        self._stopping = True
        for session in [session for sessions in self._sessions.values() for session in sessions]:
            session.end(Unavailable("the gateway is stopping"))

    def _give(self, events: Iterable[tuple[str, EventFrame]]) -> None:
        """To the sessions of each user, all of a user's together."""
        of_users: dict[str, list[EventFrame]] = {}
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
            self._dispatcher.session_closed(session.user_id)


def _sequence(each: SessionEvent) -> int:
    return each.sequence
