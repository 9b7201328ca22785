"""Instructions to ingestors: each is sent on the ingestor's own stream, and confirmed once it has had its effect."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from dexorder_common.model.errors import Conflict, InvalidRequest, NotFound
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import operator_service_pb2 as pb

MAX_UNREAD = 1_000
CONFIG_FIELDS = ("max_concurrent", "timeout_seconds", "kafka_topic")
CANCEL, CONFIG_UPDATE = ingest.IngestorControl.CANCEL, ingest.IngestorControl.CONFIG_UPDATE


def check(control: ingest.IngestorControl) -> None:
    """Raise InvalidRequest for an instruction that lacks a field, or has a field of another instruction."""
    action = control.action
    if action not in ingest.IngestorControl.ControlAction.values():
        raise InvalidRequest(f"control.action {action} is not one of 0 to 3")
    name = ingest.IngestorControl.ControlAction.Name(action)
    if bool(control.request_id) != (action == CANCEL):
        raise InvalidRequest(
            f"control.request_id {control.request_id[:64]!r} with {name}; only CANCEL has it, and needs it"
        )
    given = [each for each in CONFIG_FIELDS if control.config.HasField(each)]  # type: ignore[arg-type]
    if bool(given) != (action == CONFIG_UPDATE):
        raise InvalidRequest(
            f"control.config has {', '.join(given) or 'no field'} with {name}; "
            f"only CONFIG_UPDATE has it, and needs one of {', '.join(CONFIG_FIELDS)}"
        )


@dataclass(eq=False, slots=True)
class Connected:
    """An ingestor that takes instructions.

    Attributes:
        unread: Instructions that its stream has not sent.
        pending: By control_id, results that it has not reported.
        event: Set when there is something for its stream.
        replaced: Another stream has its name.
    """

    ingestor_id: str
    exchanges: frozenset[str]
    topics: frozenset[str]
    unread: deque[tuple[int, ingest.IngestorControl]] = field(default_factory=deque)
    pending: dict[int, asyncio.Future[pb.ControlResult]] = field(default_factory=dict)
    event: asyncio.Event = field(default_factory=asyncio.Event)
    replaced: bool = False

    def refusal(self, control: ingest.IngestorControl) -> str:
        """Return why the ingestor must not receive an instruction; empty if it may."""
        topic, written = control.config.kafka_topic, ", ".join(sorted(self.topics))
        if control.config.HasField("kafka_topic") and topic not in self.topics:
            return f"kafka_topic {topic[:64]!r} is not read by any part; use one of {written}"
        return ""


class ControlChannel:
    """The ingestors that take instructions, by name; belongs to one event loop."""

    def __init__(self, timeout_seconds: float) -> None:
        """Wait so long for the result of an instruction."""
        self._timeout_seconds = timeout_seconds
        self._connected: dict[str, Connected] = {}
        self._numbers = itertools.count(1)

    @contextmanager
    def connect(self, ingestor: Connected) -> Iterator[None]:
        """Know an ingestor while the block runs; the stream that had its name before ends."""
        if (before := self._connected.get(ingestor.ingestor_id)) is not None:
            before.replaced = True
            before.event.set()
        self._connected[ingestor.ingestor_id] = ingestor
        try:
            yield
        finally:
            if self._connected.get(ingestor.ingestor_id) is ingestor:
                del self._connected[ingestor.ingestor_id]
            for result in ingestor.pending.values():
                if not result.done():
                    result.set_result(_unknown("it disconnected before it answered"))

    def next(self, ingestor: Connected) -> tuple[int, ingest.IngestorControl] | None:
        """Return the next instruction for an ingestor, or None; Conflict if another stream has its name."""
        if ingestor.replaced:
            raise Conflict(f"another stream has the ingestor_id {ingestor.ingestor_id[:64]!r}")
        return ingestor.unread.popleft() if ingestor.unread else None

    async def instruct(self, control: ingest.IngestorControl, ingestor_id: str | None) -> list[pb.ControlResult]:
        """Give a checked instruction to one ingestor, or to all; return their results by name.

        Raises:
            NotFound: No ingestor of that name is connected.
        """
        if ingestor_id is not None and ingestor_id not in self._connected:
            raise NotFound(f"ingestor_id {ingestor_id[:64]!r} is not connected")
        names = sorted(self._connected) if ingestor_id is None else [ingestor_id]
        return await asyncio.gather(*(self._instruct(self._connected[name], control) for name in names))

    async def _instruct(self, ingestor: Connected, control: ingest.IngestorControl) -> pb.ControlResult:
        if reason := ingestor.refusal(control):
            result = pb.ControlResult(outcome=pb.CONTROL_OUTCOME_REFUSED, reason=reason)
        else:
            number = self._send(ingestor, control)
            if number is None:
                result = _unknown(f"it has not read {MAX_UNREAD} instructions before")
            else:
                pending = ingestor.pending[number] = asyncio.get_running_loop().create_future()
                try:
                    result = await asyncio.wait_for(pending, self._timeout_seconds)
                except TimeoutError:
                    result = _unknown(f"it did not answer within {self._timeout_seconds:g} s")
                finally:
                    del ingestor.pending[number]
        result.ingestor_id = ingestor.ingestor_id
        return result

    def _send(self, ingestor: Connected, control: ingest.IngestorControl) -> int | None:
        if len(ingestor.unread) >= MAX_UNREAD:
            return None
        number = next(self._numbers)
        ingestor.unread.append((number, control))
        ingestor.event.set()
        return number

    def cancel(self, request_id: str, exchange: str) -> None:
        """Have the work of a request that has ended stopped, without waiting for it."""
        control = ingest.IngestorControl(action=CANCEL, request_id=request_id)
        for ingestor in self._connected.values():
            if exchange in ingestor.exchanges:
                self._send(ingestor, control)

    def report(self, control_id: int, result: pb.ControlResult) -> None:
        """Take the result of an instruction; the result of an abandoned instruction is ignored."""
        for ingestor in self._connected.values():
            pending = ingestor.pending.get(control_id)
            if pending is not None and not pending.done():
                pending.set_result(result)


def _unknown(reason: str) -> pb.ControlResult:
    return pb.ControlResult(outcome=pb.CONTROL_OUTCOME_UNKNOWN, reason=reason)
