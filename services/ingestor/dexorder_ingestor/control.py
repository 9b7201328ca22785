"""Instructions of the relay: received by `WatchControl`, carried out, and reported once they have had their effect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass

import grpc
import structlog

from dexorder_common.model.datasets import CANDLES, topics
from dexorder_common.model.errors import InvalidRequest, Unavailable
from dexorder_common.rpc.streams import StreamSilent, unless_silent
from dexorder_ingestor.broker.connection import BrokerConnection
from dexorder_ingestor.broker.slots import JobKind, JobSlots
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.dispatch_runner import DispatchRunner
from dexorder_ingestor.metrics import IngestorMetrics
from dexorder_ingestor.publisher import IngestorPublisher
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2 as ingestor_pb
from dexorder_protos.dexorder.relay.v1 import operator_service_pb2 as operator_pb

log = structlog.get_logger(__name__)
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 30.0


@dataclass(eq=False)
class ControlWatcher:
    """Carries out instructions one after the other."""

    settings: IngestorSettings
    publisher: IngestorPublisher
    slots: JobSlots
    broker: BrokerConnection
    runner: DispatchRunner
    metrics: IngestorMetrics
    shut_down: Callable[[], None]

    def __post_init__(self) -> None:
        self._total = self.slots.limit

    async def run(self) -> None:
        """Receive instructions until cancelled. A relay without the call is asked again now and then."""
        request = ingestor_pb.WatchControlRequest(
            ingestor_id=self.settings.name,
            exchanges=dict.fromkeys(slot.venue for slot in self.slots.types),
            topics=topics(),
        )
        pause = _FIRST_PAUSE_SECONDS
        while True:
            with suppress(grpc.aio.AioRpcError, StreamSilent):
                async with aclosing(unless_silent(self.publisher.relay.WatchControl(request))) as answers:
                    async for answer in answers:
                        pause = _FIRST_PAUSE_SECONDS
                        if answer.HasField("control"):
                            await self._obey(answer.control_id, answer.control)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _obey(self, control_id: int, control: pb.IngestorControl) -> None:
        action = pb.IngestorControl.ControlAction.Name(control.action)
        reason, stopped = "", 0
        try:
            stopped = await self._carry_out(control)
        except InvalidRequest as error:
            reason = str(error)
        outcome = operator_pb.CONTROL_OUTCOME_REFUSED if reason else operator_pb.CONTROL_OUTCOME_APPLIED
        self.metrics.instructions.labels(action, "refused" if reason else "applied").inc()
        log.info("instruction of the relay", action=action, reason=reason or None, stopped=stopped)
        result = operator_pb.ControlResult(
            ingestor_id=self.settings.name, outcome=outcome, reason=reason, state=self._state(stopped)
        )
        report = ingestor_pb.ReportControlRequest(control_id=control_id, result=result)
        relay, timeout = self.publisher.relay, self.settings.rpc_timeout_seconds
        try:
            await self.publisher.call("ReportControl", lambda: relay.ReportControl(report, timeout=timeout))
        except Unavailable as error:
            log.warning("result of an instruction not reported", action=action, reason=str(error))
        if control.action == pb.IngestorControl.SHUTDOWN:
            self.shut_down()

    async def _carry_out(self, control: pb.IngestorControl) -> int:
        """Carry out an instruction; return the number of dispatches that it stopped.

        Raises:
            InvalidRequest: It is refused, without any change.
        """
        if control.action == pb.IngestorControl.CANCEL:
            if not control.request_id:
                raise InvalidRequest("CANCEL lacks request_id")
            return await self.broker.cancel(control.request_id)
        if control.action == pb.IngestorControl.SHUTDOWN:
            self.slots.stop()
        elif control.action == pb.IngestorControl.CONFIG_UPDATE:
            check_config(control.config, slots=self._total)
            if control.config.HasField("max_concurrent"):
                self.slots.limit = control.config.max_concurrent
                self.broker.offer()
            if control.config.HasField("timeout_seconds"):
                self.runner.deadline_seconds = control.config.timeout_seconds
        elif control.action != pb.IngestorControl.HEARTBEAT:
            raise InvalidRequest(f"action {control.action} is unknown to this ingestor")
        return 0

    def _state(self, stopped: int) -> operator_pb.IngestorState:
        return operator_pb.IngestorState(
            running_jobs=len(self.slots.running),
            realtime_jobs=self.slots.count(JobKind.REALTIME),
            stopped_jobs=stopped,
            config=pb.IngestorConfig(
                max_concurrent=self.slots.limit,
                timeout_seconds=int(self.runner.deadline_seconds),
                kafka_topic=CANDLES.topic,
            ),
            draining=self.slots.is_stopped,
        )


def check_config(config: pb.IngestorConfig, *, slots: int) -> None:
    """Raise InvalidRequest unless all fields of a CONFIG_UPDATE are valid, and one is set.

    Args:
        slots: Slots that the exchanges file gives this ingestor.
    """
    fields = ("max_concurrent", "timeout_seconds", "kafka_topic")
    if not any(config.HasField(field) for field in fields):  # type: ignore[arg-type]
        raise InvalidRequest(f"config is empty; set at least one of {', '.join(fields)}")
    if config.HasField("max_concurrent") and not 1 <= config.max_concurrent <= slots:
        raise InvalidRequest(f"max_concurrent {config.max_concurrent} is not between 1 and {slots}, the slots it has")
    if config.HasField("timeout_seconds") and not config.timeout_seconds:
        raise InvalidRequest("timeout_seconds 0 is not above 0")
    if config.HasField("kafka_topic") and config.kafka_topic != CANDLES.topic:
        raise InvalidRequest(f"kafka_topic {config.kafka_topic!r} is not read by any part; use {CANDLES.topic!r}")
