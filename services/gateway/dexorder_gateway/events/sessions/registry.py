"""Registry of the open sessions of all users. All methods are for the event loop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge

from dexorder_common.clock import Clock, SystemClock
from dexorder_common.model.cursor import Cursor
from dexorder_common.model.errors import Exhausted, Unavailable
from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.events.delivery.changes import SessionEvent
from dexorder_gateway.events.dispatcher.port import DispatcherPort
from dexorder_gateway.events.model import TransientEvent
from dexorder_gateway.events.sessions.session import Kind, UserSession
from dexorder_gateway.events.sessions.session_frames import EventFrame, Render
from dexorder_gateway.events.sessions.user_tokens import TokenUser

PREFIX = "dexorder_gateway_event"


class SessionMetrics:
    """Metrics of sessions by kind of client; register once per registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        sessions = Gauge(f"{PREFIX}_sessions", "Open sessions.", ["kind"], registry=registry)
        shown = Counter(f"{PREFIX}s_shown", "Frames given to sessions.", ["kind"], registry=registry)
        kinds: tuple[Kind, ...] = get_args(Kind)
        self.open = {kind: sessions.labels(kind) for kind in kinds}
        self.shown = {kind: shown.labels(kind) for kind in kinds}
        self.ended = Counter(
            f"{PREFIX}_sessions_ended",
            "Sessions that ended, by reason: CLOSED by the client, or a status.",
            ["kind", "reason"],
            registry=registry,
        )
        self._acks = Counter(f"{PREFIX}_session_acks", "Acks of sessions.", ["kind", "state"], registry=registry)
        self.refused = Counter(
            f"{PREFIX}_sessions_refused", "Sessions refused, by status.", ["kind", "reason"], registry=registry
        )

    def acked(self, kind: Kind, *, seen: bool) -> None:
        """Count an ack: the client received an event, or its user saw it."""
        self._acks.labels(kind, "seen" if seen else "received").inc()


class SessionRegistry:
    """All open sessions; the dispatcher hands its events for sessions to `show` and `show_transient`."""

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
        self._sessions: dict[str, list[UserSession]] = {}
        self._stopping = False

    async def open(self, user: TokenUser, cursor: Cursor | None, kind: Kind) -> UserSession:
        """Open a session, which the caller must close; its first frame is an `OpenedFrame`.

        Args:
            cursor: Newest event that the client received; None for events that still wait and new ones.

        Raises:
            Exhausted: The user has the maximum number of sessions open.
            Unavailable: The gateway is stopping.
        """
        if self._stopping:
            raise Unavailable("the gateway is stopping")
        sessions = self._sessions.setdefault(user.user_id, [])
        if len(sessions) >= self._settings.sessions_per_user:
            raise Exhausted(f"{len(sessions)} sessions of this user are open, the maximum; close one first")
        session = UserSession(user, kind, self._settings.session_queue, self._clock, self._remove)
        sessions.append(session)
        self._metrics.open[kind].inc()
        try:
            if len(sessions) == 1:
                self._dispatcher.session_opened(user.user_id)
            replay = await self._dispatcher.replay(user.user_id, cursor)
            session.begin(replay, self._render, partial(self._dispatcher.replay_more, user.user_id))
        except BaseException:
            session.close()
            raise
        return session

    def show(self, events: Sequence[SessionEvent]) -> None:
        """Show stored events to the sessions of their users."""
        ordered = sorted(events, key=attrgetter("sequence"))
        self._put((event.user_id, EventFrame.stored(event, self._render)) for event in ordered)

    def show_transient(self, events: Sequence[TransientEvent]) -> None:
        """Show events that are not stored."""
        self._put((event.user_id, EventFrame(event.container, event.body, self._render)) for event in events)

    def stop(self) -> None:
        """End all sessions and open no more."""
        self._stopping = True
        for session in [session for sessions in self._sessions.values() for session in sessions]:
            session.end(Unavailable("the gateway is stopping"))

    def _put(self, frames: Iterable[tuple[str, EventFrame]]) -> None:
        by_user: dict[str, list[EventFrame]] = {}
        for user_id, frame in frames:
            if user_id in self._sessions:
                by_user.setdefault(user_id, []).append(frame)
        for user_id, of_user in by_user.items():
            for session in tuple(self._sessions[user_id]):  # a copy: a slow session is removed during the loop
                session.put(of_user)

    def _remove(self, session: UserSession) -> None:
        sessions = self._sessions[session.user_id]
        sessions.remove(session)
        self._metrics.open[session.kind].dec()
        self._metrics.ended.labels(session.kind, session.reason).inc()
        if not sessions:
            del self._sessions[session.user_id]
            self._dispatcher.session_closed(session.user_id)
