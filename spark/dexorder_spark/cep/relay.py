"""Calls of the relay that the triggers' process makes. They block, and are repeated until the relay answers."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

import grpc
import structlog

from dexorder_common.model.cursor import Cursor
from dexorder_common.rpc.client_retry import error_text
from dexorder_common.rpc.common_messages import decode_cursor, encode_cursor
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as pb
from dexorder_spark.cep.evaluator import RegistrationChange, RegistrationChanges
from dexorder_spark.cep.inputs import Register
from dexorder_spark.records.relay_client import MAX_WAIT_S, RelayClient

log = structlog.get_logger(__name__)
_STREAM_SILENCE_S = 30.0
_EVENTS_IN_A_CALL = 1_000
_BYTES_IN_A_CALL = 1024 * 1024


class TriggerRelay(RelayClient):
    """The relay's PipelineService for the triggers' process."""

    def __init__(self, address: str, stop: threading.Event) -> None:
        super().__init__(address, stop, "the triggers' batch")

    def report(
        self, events: Sequence[bytes], applied: Cursor | None, *, on_part: Callable[[], None] = lambda: None
    ) -> None:
        """Report serialized events in parts, each until it is answered; Stopped at the stop.

        Args:
            on_part: Called when the relay has a part, for crash tests.
        """
        parts = [
            pb.ReportTriggerEventsRequest(
                events=map(pb.ReportedTriggerEvent.FromString, part), applied=encode_cursor(applied)
            )
            for part in split(events) or [[]]
        ]
        self.send(self.stub.ReportTriggerEvents, parts, _halve, on_part)

    def follow(self, after: Cursor | None) -> Iterator[RegistrationChanges]:
        """Yield the changes of triggers after a cursor, without end; a broken stream is resumed at its last one.

        The iterator ends at the stop. An answer without changes says only that the relay is there.
        """
        wait_s = 0.1
        while not self._stop.is_set():
            try:
                for answer in whole(self._answers(after)):
                    changes = decode_changes(answer)
                    wait_s, after = 0.1 if answer.changes else wait_s, changes.cursor
                    yield changes
            except grpc.RpcError as error:
                log.warning("the stream of triggers ended", error=error_text(error), again_in_s=wait_s)
            self._stop.wait(wait_s)
            wait_s = min(2 * wait_s, MAX_WAIT_S)

    def _answers(self, after: Cursor | None) -> Iterator[pb.WatchTriggersResponse]:
        """Yield the answers of one stream; it ends at the stop, and after a silence that the relay does not make."""
        call = self.stub.WatchTriggers(pb.WatchTriggersRequest(after=encode_cursor(after)))
        answers: queue.SimpleQueue[pb.WatchTriggersResponse | grpc.RpcError | None] = queue.SimpleQueue()

        def receive() -> None:
            try:
                for each in call:
                    answers.put(each)
            except grpc.RpcError as error:
                answers.put(error)
            else:
                answers.put(None)

        threading.Thread(target=receive, name="triggers", daemon=True).start()
        silent_s = 0.0
        try:
            while not self._stop.is_set() and silent_s < _STREAM_SILENCE_S:
                silent_s += 0.25
                with suppress(queue.Empty):
                    answer = answers.get(timeout=0.25)
                    silent_s = 0.0
                    if answer is None:
                        return
                    if isinstance(answer, grpc.RpcError):
                        raise answer
                    yield answer
        finally:
            call.cancel()


def whole(answers: Iterable[pb.WatchTriggersResponse]) -> Iterator[pb.WatchTriggersResponse]:
    """Yield answers as they were before the relay has sent their changes in parts."""
    made = pb.WatchTriggersResponse()
    for answer in answers:
        made.MergeFrom(answer)
        if not answer.more:
            yield made
            made = pb.WatchTriggersResponse()


def split(events: Sequence[bytes]) -> list[list[bytes]]:
    """Return the events in parts that fit into a call, in order."""
    parts: list[list[bytes]] = []
    size = 0
    for each in events:
        if not parts or len(parts[-1]) == _EVENTS_IN_A_CALL or size + len(each) > _BYTES_IN_A_CALL:
            parts.append([])
            size = 0
        parts[-1].append(each)
        size += len(each)
    return parts


def _halve(request: pb.ReportTriggerEventsRequest) -> list[pb.ReportTriggerEventsRequest]:
    middle = len(request.events) // 2
    halves = [request.events[:middle], request.events[middle:]] if middle else []
    applied = request.applied if request.HasField("applied") else None
    return [pb.ReportTriggerEventsRequest(events=each, applied=applied) for each in halves]


def decode_changes(answer: pb.WatchTriggersResponse) -> RegistrationChanges:
    """Return the changes of one answer."""
    changes = [*map(decode_change, answer.changes)]
    return RegistrationChanges(changes, decode_cursor(answer.cursor), is_reset=answer.HasField("reset"))


def decode_change(change: pb.TriggerChange) -> RegistrationChange:
    """Return a change of triggers."""
    if not change.HasField("trigger"):
        return RegistrationChange(change.registration)
    given = change.trigger
    return RegistrationChange(
        change.registration,
        Register(
            change.registration,
            given.trigger_id,
            given.sql_pattern,
            dict(given.parameters),
            list(given.tickers),
            change.registered_ns,
            change.revision or 1,  # an older relay sends none
        ),
        change.paused,
        change.changed_ns,
        change.registered_sequence,
        [[each.start_ns, each.end_ns] for each in change.pauses],
    )
