"""The RPC that submits many requests for history and follows them to their ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from dexorder_common.model.errors import Exhausted, InvalidRequest
from dexorder_common.model.history import HistoryRequest
from dexorder_common.rpc import history_messages as messages
from dexorder_common.rpc.identity import Caller, current_caller
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as pb
from dexorder_relay import access
from dexorder_relay.engine import RelayEngine
from dexorder_relay.requests.queries import fitting

COMMITTED_AT_ONCE = 50
"""Requests of a batch in one commit. Others are served between two commits, so planning them delays nobody for long."""
FOLLOWED_BY_A_STREAM = 100
"""Requests of a batch that count as one open stream of the caller, as each takes memory until it has ended."""


@dataclass(frozen=True)
class BatchRpcs:
    """The RPC for batches of requests."""

    engine: RelayEngine

    async def SubmitHistoricalBatch(
        self, request: pb.SubmitHistoricalBatchRequest, _: object
    ) -> AsyncIterator[pb.SubmitHistoricalBatchResponse]:
        """Answer each submission when it is on disk, then stream what becomes of the accepted ones."""
        caller, accepted = current_caller(), dict[str, None]()
        streams = -(-len(request.requests) // FOLLOWED_BY_A_STREAM)
        with self.engine.context.quotas.stream(caller, streams):
            for start in range(0, len(request.requests), COMMITTED_AT_ONCE):
                answers = await self._submit(request.requests[start : start + COMMITTED_AT_ONCE], caller)
                accepted |= dict.fromkeys(each.answer.request_id for each in answers if each.answer.notification_topic)
                yield pb.SubmitHistoricalBatchResponse(answers=answers)
            ends = self.engine.queries.ends(accepted, with_progress=request.with_progress)
            async with aclosing(ends) as news:
                async for found in news:
                    if isinstance(found, dict):
                        yield pb.SubmitHistoricalBatchResponse(
                            progress=(
                                pb.RequestProgress(
                                    request_id=request_id,
                                    state=messages.encode_state(progress.state),
                                    progress=messages.encode_progress(progress),
                                )
                                for request_id, progress in found.items()
                            )
                        )
                        continue
                    records = list(map(messages.encode_record, found))
                    while records:
                        part = fitting(records)
                        yield pb.SubmitHistoricalBatchResponse(ended=part)
                        del records[: len(part)]

    async def _submit(
        self, given: Sequence[ingest.SubmitHistoricalRequest], caller: Caller | None
    ) -> list[pb.BatchAnswer]:
        requests = [_decoded(each, caller) for each in given]
        valid = [each for each in requests if isinstance(each, HistoryRequest)]
        found = iter(await self.engine.submitter.submit_many(valid, caller) if valid else ())
        results = [next(found) if isinstance(each, HistoryRequest) else each for each in requests]
        answers = list(map(_answer, given, requests, results))
        for each in answers:
            name = ingest.SubmitResponse.SubmitStatus.Name(each.answer.status)
            self.engine.context.metrics.submitted.labels(name).inc()
        return answers


def _decoded(message: ingest.SubmitHistoricalRequest, caller: Caller | None) -> HistoryRequest | InvalidRequest:
    try:
        return access.signed(caller, messages.decode_request(message))
    except InvalidRequest as error:
        return error


def _answer(
    message: ingest.SubmitHistoricalRequest,
    request: HistoryRequest | InvalidRequest,
    result: bool | InvalidRequest | Exhausted,
) -> pb.BatchAnswer:
    answer = ingest.SubmitResponse(request_id=message.request_id)
    if isinstance(result, bool):
        assert isinstance(request, HistoryRequest)
        answer.status = ingest.SubmitResponse.QUEUED if result else ingest.SubmitResponse.DUPLICATE
        answer.notification_topic = request.topics[-1]
        return pb.BatchAnswer(answer=answer)
    answer.error_message = str(result)
    if isinstance(result, InvalidRequest):
        answer.status = ingest.SubmitResponse.INVALID
        return pb.BatchAnswer(answer=answer)
    answer.status = ingest.SubmitResponse.ERROR
    retry = None if result.retry_seconds is None else round(result.retry_seconds * 1_000)
    return pb.BatchAnswer(answer=answer, over_quota=True, retry_after_ms=retry)
