"""Instructions to ingestors through a real relay: confirmed by their effect, refused, or unknown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from dexorder_common.model.errors import InvalidRequest
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as rpb
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2 as ingestor_pb
from dexorder_protos.dexorder.relay.v1 import operator_service_pb2 as operator_pb
from dexorder_relay.realtime import control
from tests.unit.services.relay.harness import Suite, refused, suite
from tests.unit.services.relay.realtime.worker import worker

CANCEL, SHUTDOWN, CONFIG_UPDATE, HEARTBEAT = (
    ingest.IngestorControl.ControlAction.Value(name) for name in ("CANCEL", "SHUTDOWN", "CONFIG_UPDATE", "HEARTBEAT")
)
APPLIED, REFUSED, UNKNOWN = (
    operator_pb.ControlOutcome.Value(f"CONTROL_OUTCOME_{n}") for n in ("APPLIED", "REFUSED", "UNKNOWN")
)
Answer = Callable[[ingest.IngestorControl], operator_pb.ControlResult | None]


def applied(instruction: ingest.IngestorControl) -> operator_pb.ControlResult:
    return operator_pb.ControlResult(outcome=APPLIED, state=operator_pb.IngestorState(running_jobs=3))


@asynccontextmanager
async def watching(s: Suite, name: str, answer: Answer = applied) -> AsyncIterator[list[Any]]:
    """An ingestor that answers instructions; yields those that it has received."""
    seen: list[Any] = []
    call = s.ingestors.WatchControl(
        ingestor_pb.WatchControlRequest(ingestor_id=name, exchanges=["SIM"], topics=["dexorder.ohlc", "dexorder.ticks"])
    )
    first = await call.read()
    assert not first.HasField("control")

    async def obey() -> None:
        while (order := await call.read()) is not grpc.aio.EOF:
            seen.append(order.control)
            if (result := answer(order.control)) is not None:
                await s.ingestors.ReportControl(
                    ingestor_pb.ReportControlRequest(control_id=order.control_id, result=result)
                )

    task = asyncio.create_task(obey())
    try:
        yield seen
    finally:
        task.cancel()
        call.cancel()


async def instruct(s: Suite, action: Any, *, ingestor_id: str | None = None, **fields: Any) -> list[Any]:
    answer = await s.relay.operator.ControlIngestors(
        operator_pb.ControlIngestorsRequest(
            control=ingest.IngestorControl(action=action, **fields), ingestor_id=ingestor_id
        )
    )
    return [(each.ingestor_id, each.outcome, each.reason) for each in answer.results]


async def test_each_ingestor_answers_for_itself(tmp_path: Path) -> None:
    def refuse(instruction: ingest.IngestorControl) -> operator_pb.ControlResult:
        return operator_pb.ControlResult(outcome=REFUSED, reason="max_concurrent 9 is not between 1 and 8")

    async with suite(tmp_path, control_timeout_seconds=0.2) as s:
        assert await instruct(s, HEARTBEAT) == []
        async with watching(s, "b", refuse), watching(s, "a") as seen, watching(s, "c", lambda _: None):
            config = ingest.IngestorConfig(max_concurrent=9)
            assert await instruct(s, CONFIG_UPDATE, config=config) == [
                ("a", APPLIED, ""),
                ("b", REFUSED, "max_concurrent 9 is not between 1 and 8"),
                ("c", UNKNOWN, "it did not answer within 0.2 s"),
            ]
            assert await instruct(s, HEARTBEAT, ingestor_id="a") == [("a", APPLIED, "")]
            assert [each.action for each in seen] == [CONFIG_UPDATE, HEARTBEAT]
            with refused(grpc.StatusCode.NOT_FOUND, "ingestor_id 'd' is not connected"):
                await instruct(s, HEARTBEAT, ingestor_id="d")


async def test_a_topic_that_nobody_reads_is_refused_before_it_reaches_an_ingestor(tmp_path: Path) -> None:
    async with suite(tmp_path) as s, watching(s, "a") as seen:
        for topic, outcome in (("dexorder.typo", REFUSED), ("", REFUSED), ("dexorder.ohlc", APPLIED)):
            ((_, got, reason),) = await instruct(s, CONFIG_UPDATE, config=ingest.IngestorConfig(kafka_topic=topic))
            assert got == outcome and ("is not read by any part" in reason) == (outcome == REFUSED)
        assert [each.config.kafka_topic for each in seen] == ["dexorder.ohlc"]


async def test_an_ingestor_that_leaves_leaves_the_outcome_unknown_and_a_new_stream_takes_its_name(
    tmp_path: Path,
) -> None:
    async with suite(tmp_path) as s:
        async with watching(s, "a", lambda _: None) as seen:
            waiting = asyncio.ensure_future(instruct(s, SHUTDOWN))
            async with asyncio.timeout(20):
                while not seen:  # noqa: ASYNC110 - another task appends
                    await asyncio.sleep(0.01)
        assert await waiting == [("a", UNKNOWN, "it disconnected before it answered")]
        old = s.ingestors.WatchControl(ingestor_pb.WatchControlRequest(ingestor_id="a"))
        await old.read()
        async with watching(s, "a"):
            with pytest.raises(grpc.aio.AioRpcError, match="another stream has the ingestor_id 'a'"):
                await old.read()
            assert await instruct(s, HEARTBEAT) == [("a", APPLIED, "")]


async def test_cancel_ends_the_request_fences_its_jobs_and_stops_the_fetch(tmp_path: Path) -> None:
    async with suite(tmp_path) as s, watching(s, "a") as seen:
        one = worker(s)
        await one.ready(ingest.HISTORICAL)
        await s.queued("r", 0, 10)
        sent = await one.job()
        assert await instruct(s, CANCEL, request_id="r") == [("a", APPLIED, "")]
        assert [(each.action, each.request_id) for each in seen] == [(CANCEL, "r")]
        assert (await s.record("r")).error_message == "cancelled"
        assert not await s.ingestor().page(sent.job_id, 0, 1)
        with pytest.raises(grpc.aio.AioRpcError, match="request_id 'never' is not known"):
            await instruct(s, CANCEL, request_id="never")


async def test_a_client_that_cancels_stops_the_fetch_too_unless_others_wait_for_it(tmp_path: Path) -> None:
    async with suite(tmp_path) as s, watching(s, "a") as seen:
        one = worker(s)
        for _ in range(2):
            await one.ready(ingest.HISTORICAL)
        await s.queued("alone", 0, 10)
        await one.job()
        await s.queued("shared", 20, 30)
        await one.job()
        await s.queued("other", 20, 30)
        await s.queued("queued", 40, 50)
        for request_id in ("queued", "shared", "alone"):
            await s.relay.history.CancelRequest(rpb.CancelRequestRequest(request_id=request_id))
        async with asyncio.timeout(20):
            while not seen:  # noqa: ASYNC110 - another task appends
                await asyncio.sleep(0.01)
        assert await instruct(s, HEARTBEAT) == [("a", APPLIED, "")]  # everything before has arrived
        assert [(each.action, each.request_id) for each in seen] == [(CANCEL, "alone"), (HEARTBEAT, "")]


async def test_an_ingestor_that_does_not_read_keeps_few_instructions_and_delays_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control, "MAX_UNREAD", 3)
    channel = control.ControlChannel(timeout_seconds=0.01)
    deaf, good = (control.Connected(name, frozenset({"SIM"}), frozenset()) for name in ("deaf", "good"))
    heartbeat = ingest.IngestorControl(action=HEARTBEAT)
    with channel.connect(deaf), channel.connect(good):
        for _ in range(3):
            await channel.instruct(heartbeat, "deaf")
        (refusal,) = await channel.instruct(heartbeat, "deaf")
        assert (refusal.outcome, refusal.reason) == (UNKNOWN, "it has not read 3 instructions before")
        for number in range(10):  # a client that cancels much fills nothing either
            channel.cancel(f"r{number}", "SIM")
        assert (len(deaf.unread), deaf.pending, len(good.unread)) == (3, {}, 3)
        good.unread.clear()
        both = asyncio.create_task(channel.instruct(heartbeat, None))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        taken = channel.next(good)
        assert taken is not None
        channel.report(taken[0], applied(heartbeat))
        assert [(each.ingestor_id, each.outcome) for each in await both] == [("deaf", UNKNOWN), ("good", APPLIED)]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"action": CANCEL}, "only CANCEL has it, and needs it"),
        ({"action": SHUTDOWN, "request_id": "r"}, "control.request_id 'r' with SHUTDOWN"),
        ({"action": CONFIG_UPDATE}, "control.config has no field with CONFIG_UPDATE"),
        ({"action": HEARTBEAT, "config": ingest.IngestorConfig(max_concurrent=0)}, "max_concurrent with HEARTBEAT"),
        ({"action": 7}, "control.action 7 is not one of 0 to 3"),
    ],
)
def test_instructions_are_checked(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        control.check(ingest.IngestorControl(**fields))


async def test_a_report_is_applied_or_refused(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        with pytest.raises(grpc.aio.AioRpcError, match=r"result\.outcome 3 is neither"):
            await s.ingestors.ReportControl(
                ingestor_pb.ReportControlRequest(result=operator_pb.ControlResult(outcome=UNKNOWN))
            )
        with pytest.raises(grpc.aio.AioRpcError, match="ingestor_id is missing"):
            await s.ingestors.WatchControl(ingestor_pb.WatchControlRequest()).read()
