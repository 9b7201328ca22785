"""Calls of providers: each within its time, none left after the stop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

import structlog

from dexorder_common.model.user_events import Channel
from dexorder_gateway.events.channels.spec import ChannelAdapter
from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.events.delivery.changes import SendRequest
from dexorder_gateway.events.dispatcher.metrics import SendMetrics
from dexorder_gateway.events.model import NOT_CONFIGURED, TIMEOUT, EventKey, Later, Result, SendRefused

log = structlog.get_logger(__name__)


class ChannelSender:
    """Calls providers while its context is open, in the event loop. The delivery rules limit the calls at a time.

    Args:
        settings: ``send_timeout_seconds`` for one call: then it is cancelled, and its result is `Later`.
        finished: Called with key, number and result of each call, once. Not for calls cancelled by the context's end.
    """

    def __init__(
        self,
        adapters: Mapping[Channel, ChannelAdapter],
        settings: EventsSettings,
        finished: Callable[[EventKey, int, Result], None],
        metrics: SendMetrics,
    ) -> None:
        self._adapters = adapters
        self._finished = finished
        self._metrics = metrics
        self._timeout_seconds = settings.send_timeout_seconds
        self._calls: set[asyncio.Task[None]] = set()
        self._group = asyncio.TaskGroup()

    def send(self, requests: Sequence[SendRequest]) -> None:
        """Start these calls."""
        for request in requests:
            adapter = self._adapters.get(request.channel)
            if adapter is None:
                self._finished(request.key, request.number, SendRefused(NOT_CONFIGURED))
                continue
            call = self._group.create_task(self._call(adapter, request))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def _call(self, adapter: ChannelAdapter, request: SendRequest) -> None:
        started_s = time.perf_counter()
        result = await self._result(adapter, request)
        self._metrics.called(request.channel, result, time.perf_counter() - started_s)
        self._finished(request.key, request.number, result)

    async def _result(self, adapter: ChannelAdapter, request: SendRequest) -> Result:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await adapter.send(request.message, request.contacts)
        except TimeoutError:
            return Later(TIMEOUT)
        except Exception as error:
            # its text and its traceback may contain a token
            log.error("channel adapter failed", channel=request.channel.name, kind=type(error).__name__)
            return Later("internal error")

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for call in self._calls:
            call.cancel()
        await self._group.__aexit__(kind, error, trace)
