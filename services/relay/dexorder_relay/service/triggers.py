"""RPCs of triggers, for clients and for the pipeline; ``services.py`` has the services that they belong to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass

import structlog

from dexorder_cep import InvalidSql
from dexorder_common.model.cursor import Cursor, StreamStart
from dexorder_common.model.errors import InvalidRequest, SuiteError
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import MAX_TIME_NS
from dexorder_common.model.triggers import EventKind, Trigger
from dexorder_common.model.user_events import MAX_ID_CHARACTERS
from dexorder_common.rpc import trigger_messages as messages
from dexorder_common.rpc.common_messages import decode_cursor, encode_cursor, encode_ranges, encode_start
from dexorder_common.rpc.identity import Role, current_caller
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as ppb
from dexorder_protos.dexorder.relay.v1 import trigger_service_pb2 as pb
from dexorder_relay import access
from dexorder_relay.engine import RelayEngine
from dexorder_relay.requests.queries import fitting, page_size, read_token
from dexorder_relay.state import triggers as rules
from dexorder_relay.store import triggers as store

log = structlog.get_logger(__name__)
MAX_EVENTS = 10_000
MAX_REASON = 1_000


@dataclass(frozen=True)
class TriggerRpcs:
    """RPCs for clients."""

    engine: RelayEngine

    async def RegisterTrigger(self, request: pb.RegisterTriggerRequest, _: object) -> pb.RegisterTriggerResponse:
        """Register a trigger; an invalid field is a status in the answer, not a gRPC error."""
        (outcome,) = await self._register([request])
        if isinstance(outcome, SuiteError) and not isinstance(outcome, InvalidRequest):
            raise outcome
        return pb.RegisterTriggerResponse(ack=self._ack(request, outcome))

    async def RegisterTriggers(self, request: pb.RegisterTriggersRequest, _: object) -> pb.RegisterTriggersResponse:
        """Register triggers; an error in one trigger is a status in its ack."""
        if not request.triggers:
            raise InvalidRequest("triggers is empty; name 1 to 1,000 triggers")
        outcomes = await self._register(request.triggers)
        return pb.RegisterTriggersResponse(acks=map(self._ack, request.triggers, outcomes))

    async def _register(self, requests: Sequence[pb.RegisterTriggerRequest]) -> list[bool | SuiteError]:
        caller = current_caller()
        given: list[Trigger | SuiteError] = []
        for each in requests:
            try:
                given.append(access.signed(caller, messages.decode_registration(each)))
            except SuiteError as error:
                given.append(error)
        return await self.engine.triggers.register(given, caller)

    def _ack(self, request: pb.RegisterTriggerRequest, outcome: bool | SuiteError) -> ingest.CEPTriggerAck:
        answer = ingest.CEPTriggerAck(trigger_id=request.trigger.trigger_id)
        if isinstance(outcome, SuiteError):
            is_text = isinstance(outcome, InvalidSql)
            answer.status = ingest.CEPTriggerAck.INVALID_SQL if is_text else ingest.CEPTriggerAck.ERROR
            answer.error_message = str(outcome)
        else:
            answer.status = ingest.CEPTriggerAck.REGISTERED if outcome else ingest.CEPTriggerAck.ALREADY_REGISTERED
        status = ingest.CEPTriggerAck.TriggerStatus.Name(answer.status)
        self.engine.context.metrics.trigger_registrations.labels(status).inc()
        return answer

    async def PauseTrigger(self, request: pb.PauseTriggerRequest, _: object) -> pb.PauseTriggerResponse:
        """Pause a trigger."""
        await self.engine.triggers.pause(request.trigger_id, current_caller(), paused=True)
        return pb.PauseTriggerResponse()

    async def ResumeTrigger(self, request: pb.ResumeTriggerRequest, _: object) -> pb.ResumeTriggerResponse:
        """Resume a paused trigger."""
        await self.engine.triggers.pause(request.trigger_id, current_caller(), paused=False)
        return pb.ResumeTriggerResponse()

    async def EditTrigger(self, request: pb.EditTriggerRequest, _: object) -> pb.EditTriggerResponse:
        """Change the text or the parameters of a trigger."""
        caller, edits = current_caller(), self.engine.edits
        with self.engine.context.quotas.stream(caller) if request.wait_ms else nullcontext():
            edited = await edits.edit(messages.decode_edit(request), caller)
            taken = await edits.taken(edited.registration, request.wait_ms)
        return pb.EditTriggerResponse(revision=edited.revision, taken=taken)

    async def DeleteTrigger(self, request: pb.DeleteTriggerRequest, _: object) -> pb.DeleteTriggerResponse:
        """Delete a trigger."""
        await self.engine.triggers.delete(request.trigger_id, current_caller())
        return pb.DeleteTriggerResponse()

    async def ListTriggers(self, request: pb.ListTriggersRequest, _: object) -> pb.ListTriggersResponse:
        """Return a page of triggers; the token is the registration of its last one."""
        size = page_size(request.page_size)
        client_id = access.listed(current_caller(), request.client_id)
        found = await self.engine.triggers.listed(client_id, request.ticker, read_token(request.page_token) or 0, size)
        page = fitting(map(messages.encode_registered, found))
        has_more = len(found) == size or len(page) < len(found)
        return pb.ListTriggersResponse(
            triggers=page,
            next_page_token=str(found[len(page) - 1].registration) if has_more else "",
        )

    async def WatchTriggerEvents(
        self, request: pb.WatchTriggerEventsRequest, _: object
    ) -> AsyncIterator[pb.WatchTriggerEventsResponse]:
        """Stream events after a cursor, without end."""
        caller = current_caller()
        source = request.WhichOneof("source")
        if source is None or not (name := getattr(request, source)):
            raise InvalidRequest("trigger_id and callback_id are empty; name one of them")
        client_id = None if caller is None or caller.role is Role.ADMIN else caller.client_id
        after = decode_cursor(request.after) if request.HasField("after") else None
        with self.engine.context.quotas.stream(caller):
            async with aclosing(self.engine.triggers.events((source, name), client_id, after)) as found:
                async for item in found:
                    if isinstance(item, StreamStart):
                        field = "reset" if item.is_reset else "opened"
                        yield pb.WatchTriggerEventsResponse(**{field: encode_start(item)})  # type: ignore[arg-type]
                    else:
                        yield pb.WatchTriggerEventsResponse(event=encode_stored(item, self.engine.context.store.epoch))

    async def BacktestTrigger(
        self, request: pb.BacktestTriggerRequest, _: object
    ) -> AsyncIterator[pb.BacktestTriggerResponse]:
        """Stream the firings over stored rows, then the summary."""
        if not 0 <= request.start_ns < request.end_ns <= MAX_TIME_NS:
            raise InvalidRequest(
                f"start_ns {request.start_ns} is not before end_ns {request.end_ns}, both up to {MAX_TIME_NS}"
            )
        trigger, span = messages.decode_request(request.trigger), TimeRange(request.start_ns, request.end_ns)
        rules.check_watched(trigger, self.engine.context.venues)
        caller = current_caller()
        with self.engine.context.quotas.stream(caller):
            (verdict,) = await self.engine.triggers.check([trigger], caller)
            if isinstance(verdict, InvalidSql):
                raise InvalidRequest(f"sql_pattern: {verdict}")
            if isinstance(verdict, SuiteError):
                raise verdict
            yield pb.BacktestTriggerResponse()  # the trigger is accepted; reading the rows takes time
            backtest = self.engine.backtests.run(trigger, span, caller.client_id if caller else "")
            async with aclosing(backtest) as answers:
                async for answer in answers:
                    yield answer


@dataclass(frozen=True)
class TriggerReports:
    """RPCs for the pipeline."""

    engine: RelayEngine

    async def WatchTriggers(
        self, request: ppb.WatchTriggersRequest, _: object
    ) -> AsyncIterator[ppb.WatchTriggersResponse]:
        """Stream the changes of triggers."""
        after, is_first = (decode_cursor(request.after) if request.HasField("after") else None), True
        async with aclosing(self.engine.triggers.follow(after)) as found:
            async for each in found:
                answer = ppb.WatchTriggersResponse(cursor=encode_cursor(each.cursor))
                if each.start.is_reset:
                    answer.reset.CopyFrom(encode_start(each.start))
                elif is_first:
                    answer.opened.CopyFrom(encode_start(each.start))
                is_first = False
                for part in _parts(answer, list(map(_encode_change, each.changes))):
                    yield part

    async def ReportTriggerEvents(
        self, request: ppb.ReportTriggerEventsRequest, _: object
    ) -> ppb.ReportTriggerEventsResponse:
        """Store events. The pipeline repeats a report until it is answered, so invalid events are skipped."""
        if len(request.events) > MAX_EVENTS:
            raise InvalidRequest(f"events has {len(request.events)} entries; at most {MAX_EVENTS} are allowed")
        events = []
        for each in request.events:
            try:
                events.append(decode_reported(each))
            except InvalidRequest as error:
                self.engine.context.metrics.ignored.labels("trigger_event").inc()
                log.error("event of a trigger ignored", event_id=each.event_id[:64], error=str(error))
        await self.engine.triggers.report(
            events, decode_cursor(request.applied) if request.HasField("applied") else None
        )
        return ppb.ReportTriggerEventsResponse()


def _parts(answer: ppb.WatchTriggersResponse, changes: list[ppb.TriggerChange]) -> Iterator[ppb.WatchTriggersResponse]:
    """Yield an answer with its changes, as several if they do not fit into one."""
    while True:
        part = ppb.WatchTriggersResponse(changes=fitting(changes))
        changes = changes[len(part.changes) :]
        part.MergeFrom(answer)
        part.more = bool(changes)
        yield part
        if not changes:
            return


def encode_stored(each: store.StoredEvent, epoch: str) -> pb.TriggerEvent:
    """Return the message of a stored event."""
    event = each.event
    return pb.TriggerEvent(
        cursor=encode_cursor(Cursor(epoch, each.sequence)),
        event_id=event.event_id,
        kind=event.kind,  # type: ignore[arg-type]  # the same numbers
        ticker=event.ticker,
        event=ingest.CEPTriggerEvent.FromString(event.message),
    )


def decode_reported(message: ppb.ReportedTriggerEvent) -> store.ReportedEvent:
    """Return an event that the pipeline reports; InvalidRequest if it cannot be stored."""
    if not 1 <= len(message.event_id) <= MAX_ID_CHARACTERS:
        raise InvalidRequest(f"event_id has {len(message.event_id)} characters; 1 to {MAX_ID_CHARACTERS} are allowed")
    if message.kind not in [*EventKind]:
        raise InvalidRequest(f"kind {message.kind} is not one of 1 to {max(EventKind)}")
    if max(message.registration, message.event.timestamp) > MAX_TIME_NS:
        raise InvalidRequest(f"registration {message.registration} or timestamp {message.event.timestamp} is too large")
    kind = EventKind(message.kind)
    context = message.event.context
    reason = "" if kind is EventKind.FIRED else context.get(store.REASON, "no reason given")[:MAX_REASON]
    return store.ReportedEvent(
        message.event_id,
        message.registration,
        kind,
        message.ticker,
        message.event.timestamp,
        message.event.SerializeToString(),
        reason,
    )


def _encode_change(change: store.TriggerChange) -> ppb.TriggerChange:
    trigger = messages.encode_request(change.trigger) if change.trigger else None
    return ppb.TriggerChange(
        registration=change.registration,
        trigger=trigger,
        registered_ns=change.registered_ns,
        paused=change.is_paused,
        changed_ns=change.changed_ns,
        registered_sequence=change.registered_sequence,
        revision=change.revision,
        pauses=encode_ranges(change.pauses),
    )
