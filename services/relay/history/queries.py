"""What is known of requests, for those who ask: records, progress and notifications. Changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from services.common.model.history import Notification, Outcome, Progress, Record, RequestState, Submission
from services.relay.access import unknown_request
from services.relay.history.job import LiveRequest
from services.relay.history.progress import progress
from services.relay.history.state import HistoryState
from services.relay.metrics import RelayMetrics
from services.relay.notifications import Signals, check_topic
from services.relay.store.database import Store

WATCH_SECONDS = 0.1
NOTIFICATIONS_IN_A_READ = 500


class RequestQueries:
    """Unfinished requests as the board has them, ended ones and notifications as the store has."""

    def __init__(self, state: HistoryState, store: Store, signals: Signals, metrics: RelayMetrics) -> None:
        self._state = state
        self._store = store
        self._signals = signals
        self._metrics = metrics

    async def record(self, request_id: str) -> Record:
        """One request.

        Raises:
            NotFound: Never accepted, or forgotten.
        """
        live = self._state.requests.get(request_id)
        record = self._live_record(live) if live else await self._store.record(request_id)
        if record is None:
            raise unknown_request(request_id)
        return record

    async def ended(self, submission: Submission) -> Outcome:
        """How a request has ended, once it has.

        Raises:
            NotFound: Never accepted, or forgotten.
            Unavailable: The relay stops.
        """
        with self._signals.listen(f"topic:{submission.topics[0]}") as event:
            while (outcome := (await self.record(submission.request_id)).outcome) is None:
                await self._signals.wait(event)
        return outcome

    async def records(self, client_id: str, state: RequestState | None, before: int | None, size: int) -> list[Record]:
        """Requests newest first; ``before`` is the sequence of the last one of the page before."""
        found = []
        for sequence, request_id, ended in await self._store.page(client_id, state, before, size):
            live = self._state.requests.get(request_id)
            if ended is None and live is None:
                ended = await self._store.record(request_id)  # it ended since the query
            record = ended or (self._live_record(live, sequence) if live else None)
            if record is not None:
                found.append(record)
        return found

    def _live_record(self, live: LiveRequest, sequence: int = 0) -> Record:
        now = progress(self._state, live)
        return Record(live.submission, live.submitted_ns, live.state, now, sequence=sequence)

    async def watch(self, request_id: str) -> AsyncGenerator[tuple[RequestState, Progress], None]:
        """State and progress now and at every change, at most ten a second; ends with FINISHED."""
        last = None
        with self._signals.listen(f"request:{request_id}") as event, self._metrics.progress_streams.track_inprogress():
            while True:
                record = await self.record(request_id)
                now = (record.state, record.progress)
                if now != last:
                    last = now
                    yield now
                if record.state is RequestState.FINISHED:
                    return
                await asyncio.sleep(WATCH_SECONDS)
                await self._signals.wait(event)

    async def notifications(self, topic: str, after: int) -> AsyncGenerator[Notification, None]:
        """A topic's notifications after a cursor, in order, without an end."""
        check_topic(topic)
        with self._signals.listen(f"topic:{topic}") as event, self._metrics.notification_streams.track_inprogress():
            while True:
                found = await self._store.notifications(topic, after, NOTIFICATIONS_IN_A_READ)
                for notification in found:
                    after = notification.cursor
                    yield notification
                if len(found) < NOTIFICATIONS_IN_A_READ:
                    await self._signals.wait(event)
