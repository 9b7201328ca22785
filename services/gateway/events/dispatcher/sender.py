"""Calls of providers: so many at once and no more, each within its time, none left when we stop."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import structlog

from services.common.model.user_events import Channel
from services.gateway.events.channels.adapter import NOT_CONFIGURED, TIMEOUT, ChannelAdapter
from services.gateway.events.config import EventsSettings
from services.gateway.events.delivery.changes import SendRequest
from services.gateway.events.dispatcher.sending_metrics import SendingMetrics
from services.gateway.events.model import EventKey, Later, Refused, Result

log = structlog.get_logger(__name__)

Finished = Callable[[EventKey, int, Result], None]


@dataclass(slots=True)
class _Line:
    waiting: deque[SendRequest] = field(default_factory=deque)
    under_way: int = 0


class Sender:
    """Sends while its context is open. Everything happens in the event loop, in the order of a channel's line.

    Args:
        settings: ``max_concurrent_sends`` on one channel: the others wait in line, and their time does not run.
            ``send_timeout_seconds`` for one: then it is cancelled, and its result is `Later`.
        finished: Given each result once: key, number, result. Not for what was cut off when the context ended.
    """

    def __init__(
        self,
        ways: Mapping[Channel, ChannelAdapter],
        settings: EventsSettings,
        finished: Finished,
        metrics: SendingMetrics,
    ) -> None:
        self._ways = ways
        self._finished = finished
        self._metrics = metrics
        self._at_once = settings.max_concurrent_sends
        self._timeout_seconds = settings.send_timeout_seconds
        self._lines: dict[Channel, _Line] = {channel: _Line() for channel in ways}
        self._calls: set[asyncio.Task[None]] = set()
        self._group = asyncio.TaskGroup()

    def send(self, sends: Sequence[SendRequest]) -> None:
        """Put these in line, and begin those that may."""
        for call in sends:
            if call.channel in self._lines:
                self._lines[call.channel].waiting.append(call)
            else:
                self._finished(call.key, call.number, Refused(NOT_CONFIGURED))
        for channel in {call.channel for call in sends} & self._lines.keys():
            self._begin(self._lines[channel])

    def waiting(self, channel: Channel) -> int:
        """How many wait in the channel's line."""
        return len(self._lines[channel].waiting)

    def _begin(self, line: _Line) -> None:
        while line.waiting and line.under_way < self._at_once:
            line.under_way += 1
            call = self._group.create_task(self._run(line, line.waiting.popleft()))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def _run(self, line: _Line, call: SendRequest) -> None:
        started_s = time.perf_counter()
        result = await self._result(call)
        self._metrics.called(call.channel, result, time.perf_counter() - started_s)
        line.under_way -= 1
        self._begin(line)
        self._finished(call.key, call.number, result)

    async def _result(self, call: SendRequest) -> Result:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await self._ways[call.channel].send(call.message, call.contacts)
        except TimeoutError:
            return Later(TIMEOUT)
        except Exception as error:
            # its words and its traceback may have a token in them
            log.error("a channel has failed", channel=call.channel.name, kind=type(error).__name__)
            return Later("internal error")

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for line in self._lines.values():
            line.waiting.clear()
        for call in self._calls:
            call.cancel()
        await self._group.__aexit__(kind, error, trace)
