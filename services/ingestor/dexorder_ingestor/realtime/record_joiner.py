"""Records of trades of many jobs as joined Kafka records, one after the other in each lane."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from dexorder_common.kafka.joined_record import (
    JOINED_HEADERS,
    MAX_JOINED_BYTES,
    MAX_JOINED_RECORDS,
    TradesRecord,
    join_records,
    lane_of,
)
from dexorder_common.model.datasets import TRADES
from dexorder_common.model.errors import Unavailable
from dexorder_common.model.page import PageHeaders
from dexorder_ingestor.publisher import CallRefused, IngestorPublisher

_LINGER_SECONDS = 0.01
"""Time in which jobs with records due at the same moment (``trade_batches``) give them."""
_RECORD_BYTES = 200
"""More than the headers of a record take."""


@dataclass(eq=False)
class _Waiting:
    record: TradesRecord
    done: asyncio.Future[None]


class RecordJoiner:
    """Produces records of trades. A caller waits for each of its records before the next, so these keep their order."""

    def __init__(self, publisher: IngestorPublisher) -> None:
        self._publisher = publisher
        self._waiting: dict[str, list[_Waiting]] = {}
        self._lanes: dict[str, asyncio.Task[None]] = {}
        self.markets = 0
        """Number of markets with records that it joins."""

    async def produce(self, headers: PageHeaders, value: bytes) -> None:
        """Produce a record joined with others; return when Kafka has acknowledged it, maybe more than once.

        Raises:
            Unavailable: As ``IngestorPublisher.produce``.
        """
        lane, loop = lane_of(headers.ticker), asyncio.get_running_loop()
        waiting = _Waiting(TradesRecord(headers, value), loop.create_future())
        self._waiting.setdefault(lane, []).append(waiting)
        if lane not in self._lanes:
            self._lanes[lane] = loop.create_task(self._send(lane))
        await waiting.done

    async def close(self) -> None:
        """End; records that are still waiting are not sent."""
        for task in list(self._lanes.values()):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _send(self, lane: str) -> None:
        taken: list[_Waiting] = []
        try:
            while self._waiting.get(lane):
                await asyncio.sleep(_LINGER_SECONDS)
                taken = self._waiting.pop(lane)
                for part in parts_of(taken):
                    await self._produce(lane, [each for each in part if not each.done.done()])
        finally:
            del self._lanes[lane]
            for each in [*taken, *self._waiting.pop(lane, [])]:
                each.done.cancel()  # without effect if it is settled

    async def _produce(self, lane: str, part: list[_Waiting]) -> None:
        """Produce one joined record. If it is refused, its halves are tried: only the job at fault is to end."""
        if not part:
            return
        value = join_records(each.record for each in part)
        try:
            await self._publisher.produce_record(TRADES.topic, lane, JOINED_HEADERS, value)
        except CallRefused as error:
            if len(part) == 1:
                _settle(part, error)
                return
            middle = len(part) // 2
            await self._produce(lane, part[:middle])
            await self._produce(lane, part[middle:])
        except Exception as error:  # for the jobs that own these records
            _settle(part, error)
        else:
            _settle(part, None)


def _settle(part: list[_Waiting], error: Exception | None) -> None:
    for each in part:
        if each.done.done():  # its job was cancelled
            continue
        if error is None:
            each.done.set_result(None)
        else:
            each.done.set_exception(Unavailable(str(error)) if isinstance(error, Unavailable) else error)


def parts_of(waiting: list[_Waiting]) -> list[list[_Waiting]]:
    """Return records, in order, in parts that fit into joined ones; a large record is a part alone."""
    parts: list[list[_Waiting]] = []
    size = 0
    for each in waiting:
        own = len(each.record.value) + _RECORD_BYTES
        if not parts or size + own > MAX_JOINED_BYTES or len(parts[-1]) == MAX_JOINED_RECORDS:
            parts.append([])
            size = 0
        parts[-1].append(each)
        size += own
    return parts
