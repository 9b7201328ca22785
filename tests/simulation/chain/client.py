"""A client: submits until it is answered, follows notifications by cursor, asks for what it has not heard of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
from google.protobuf.message import Message

from dexorder_common.model.history import HistoryRequest, Notification
from dexorder_common.rpc.history_messages import decode_notification, encode_request
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as history_pb
from dexorder_protos.dexorder.relay.v1 import operator_service_pb2 as operator_pb
from dexorder_relay.verification.rechecker import PREFIX
from tests.simulation.chain.parts import Parts
from tests.simulation.chain.relay import POLL, POLL_SECONDS
from tests.simulation.network import CallFailed

_HISTORY, _OPERATOR = "/dexorder.relay.v1.HistoryService/", "/dexorder.relay.v1.OperatorService/"
_AGAIN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED)
ASK_SECONDS = 300.0


@dataclass
class Asked:
    """One request of the client.

    Attributes:
        submitted_ns: Time before it was submitted first.
        accepted_ns: Time at which the relay said that it has it.
        is_cancelled: The client has cancelled it.
        ended_ns: Time at which the client heard of its end.
    """

    request: HistoryRequest
    submitted_ns: int
    accepted_ns: int | None = None
    is_cancelled: bool = False
    ended_ns: int = 0
    notification: Notification | None = None


@dataclass
class Client:
    """One client of the relay.

    Attributes:
        restored_ns: Times at which the relay's file was replaced by an older one; requests from before may be gone.
        on_end: Called with each notification.
    """

    parts: Parts
    name: str
    on_end: Callable[[Asked], None]
    asked: dict[str, Asked] = field(default_factory=dict)
    restored_ns: list[int] = field(default_factory=list)
    last_sequence: int = 0

    async def live(self) -> None:
        """Follow notifications for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            tasks.create_task(self._ask_again())

    async def submit(self, request: HistoryRequest) -> Asked:
        """Submit a request until the relay has it."""
        run, asked = self.parts.run, Asked(request, self.parts.run.loop.now_ns)
        self.asked[request.request_id] = asked
        run.note(f"{self.name} submits {request.request_id} {self._told(request)}")
        await self._submit(asked)
        return asked

    async def _submit(self, asked: Asked) -> None:
        request = asked.request
        message = encode_request(replace(request, refresh=False))
        if request.refresh:
            refresh = operator_pb.RefreshHistoricalRequest(request=message)
            answer: ingest.SubmitResponse = (await self._repeat(f"{_OPERATOR}RefreshHistorical", refresh)).answer
        else:
            answer = (await self._repeat(f"{_HISTORY}SubmitHistorical", message)).answer
        if answer.status == ingest.SubmitResponse.INVALID:
            self.parts.run.fail(f"{request.request_id} is refused: {answer.error_message}")
        asked.accepted_ns = self.parts.run.loop.now_ns

    async def cancel(self, asked: Asked) -> None:
        """Cancel a request."""
        self.parts.run.note(f"{self.name} cancels {asked.request.request_id}")
        asked.is_cancelled = True
        try:
            await self._repeat(
                f"{_HISTORY}CancelRequest", history_pb.CancelRequestRequest(request_id=asked.request.request_id)
            )
        except CallFailed as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND or not self._may_be_gone(asked):
                raise

    async def _repeat(self, method: str, message: Message) -> Any:
        while True:
            try:
                return await self.parts.run.network.call("relay", method, message, timeout=30.0)
            except CallFailed as error:
                if error.code() not in _AGAIN:
                    raise
            await asyncio.sleep(2.0)

    async def _follow(self) -> None:
        request = history_pb.WatchNotificationsRequest(topic=f"RESPONSE:{self.name}")
        while True:
            try:
                found = await self.parts.run.network.call("relay", POLL, request, timeout=POLL_SECONDS + 30)
            except CallFailed as error:
                if error.code() is grpc.StatusCode.INTERNAL:
                    self.parts.run.fail(f"{self.name} cannot read its notifications: {error.details()}")
                await asyncio.sleep(2.0)
                continue
            kind = found.WhichOneof("message")
            if kind == "reset":
                self.parts.run.note(f"{self.name} starts its notifications again")
                request.ClearField("after")
                self.last_sequence = 0
            elif kind == "notification":
                request.after.CopyFrom(found.notification.cursor)
                self._hear(decode_notification(request.topic, found.notification))

    def _hear(self, heard: Notification) -> None:
        run, cursor = self.parts.run, heard.cursor
        assert cursor is not None
        if cursor.sequence <= self.last_sequence:
            run.fail(f"{self.name} is told of {heard.request_id} again, behind its cursor")
        self.last_sequence = cursor.sequence
        asked = self.asked.get(heard.request_id)
        if asked is None and heard.request_id.startswith(PREFIX):
            run.note(f"{self.name} hears of candles that turned up")
            return
        if asked is None:
            run.fail(f"{self.name} is told of {heard.request_id}, which it did not submit")
            return
        if asked.notification is not None:
            if not self.restored_ns:
                run.fail(f"{heard.request_id} ended twice")
            return
        asked.notification, asked.ended_ns = heard, run.loop.now_ns
        outcome = heard.outcome
        provisional = f", {len(outcome.provisional)} provisional ranges" if outcome.provisional else ""
        error = f" {outcome.error}" if outcome.error else ""
        run.note(f"{self.name} hears {heard.request_id} {outcome.status.name}{provisional}{error}")
        self.on_end(asked)

    async def _ask_again(self) -> None:
        """Ask for requests without an end now and then: one that was accepted is known."""
        while True:
            await asyncio.sleep(ASK_SECONDS)
            for asked in list(self.asked.values()):
                if asked.accepted_ns is None or asked.notification is not None:
                    continue
                request = history_pb.GetRequestRequest(request_id=asked.request.request_id)
                try:
                    await self._repeat(f"{_HISTORY}GetRequest", request)
                except CallFailed as error:
                    if error.code() is not grpc.StatusCode.NOT_FOUND:
                        raise
                    if not self._may_be_gone(asked):
                        self.parts.run.fail(f"{asked.request.request_id} was accepted, and nobody knows it")
                    await self._submit(asked)

    def _may_be_gone(self, asked: Asked) -> bool:
        return any(each >= asked.submitted_ns for each in self.restored_ns)

    def _told(self, request: HistoryRequest) -> str:
        step_ns, first_ns = request.period_seconds * 1_000_000_000, self.parts.world.span.start_ns
        span = f"[{(request.start_ns - first_ns) // step_ns}, {(request.end_ns - first_ns) // step_ns})"
        return f"{span}, again from the exchange" if request.refresh else span
