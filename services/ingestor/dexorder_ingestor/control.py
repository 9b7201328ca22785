"""Instructions of the relay: received by `WatchControl`, carried out, and reported once they have had their effect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import grpc
import structlog

from dexorder_common.model.datasets import CANDLES, topics
from dexorder_common.model.errors import InvalidRequest, Unavailable
from dexorder_ingestor.broker.connection import BrokerConnection
from dexorder_ingestor.broker.slots import JobKind, JobSlots
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.dispatch_runner import DispatchRunner
from dexorder_ingestor.metrics import IngestorMetrics
from dexorder_ingestor.publisher import IngestorPublisher
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb
from dexorder_protos.dexorder.relay.v1 import control_pb2

log = structlog.get_logger(__name__)
TOPICS = tuple(topics())
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 30.0


class ControlWatcher:
    """Carries out instructions one after the other."""

    def __init__(
        self,
        settings: IngestorSettings,
        publisher: IngestorPublisher,
        slots: JobSlots,
        broker: BrokerConnection,
        runner: DispatchRunner,
        metrics: IngestorMetrics,
        shut_down: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._publisher = publisher
        self._slots = slots
        self._total = slots.limit
        self._broker = broker
        self._runner = runner
        self._metrics = metrics
        self._shut_down = shut_down

    async def run(self) -> None:
        """Receive instructions until cancelled. A relay without the call is asked again now and then."""
        request = control_pb2.WatchControlRequest(
            ingestor_id=self._settings.name,
            exchanges=dict.fromkeys(slot.venue for slot in self._slots.types),
            topics=TOPICS,
        )
        pause = _FIRST_PAUSE_SECONDS
        while True:
            with suppress(grpc.aio.AioRpcError):
                async for answer in self._publisher.relay.WatchControl(request):
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
        outcome = control_pb2.CONTROL_OUTCOME_REFUSED if reason else control_pb2.CONTROL_OUTCOME_APPLIED
        self._metrics.instructions.labels(action, "refused" if reason else "applied").inc()
        log.info("instruction of the relay", action=action, reason=reason or None, stopped=stopped)
        result = control_pb2.ControlResult(
            ingestor_id=self._settings.name, outcome=outcome, reason=reason, state=self._state(stopped)
        )
        report = control_pb2.ReportControlRequest(control_id=control_id, result=result)
        relay, timeout = self._publisher.relay, self._settings.rpc_timeout_seconds
        try:
            await self._publisher.call("ReportControl", lambda: relay.ReportControl(report, timeout=timeout))
        except Unavailable as error:
            log.warning("result of an instruction not reported", action=action, reason=str(error))
        if control.action == pb.IngestorControl.SHUTDOWN:
            self._shut_down()

    async def _carry_out(self, control: pb.IngestorControl) -> int:
        """Carry out an instruction; return the number of dispatches that it stopped.

        Raises:
            InvalidRequest: It is refused, without any change.
        """
        if control.action == pb.IngestorControl.CANCEL:
            if not control.request_id:
                raise InvalidRequest("CANCEL lacks request_id")
            return await self._broker.cancel(control.request_id)
        if control.action == pb.IngestorControl.SHUTDOWN:
            self._slots.stop()
        elif control.action == pb.IngestorControl.CONFIG_UPDATE:
            change = read_change(control.config, slots=self._total, topics=TOPICS)
            if change.max_concurrent is not None:
                self._slots.limit = change.max_concurrent
                self._broker.offer()
            if change.timeout_seconds is not None:
                self._runner.deadline_seconds = change.timeout_seconds
        elif control.action != pb.IngestorControl.HEARTBEAT:
            raise InvalidRequest(f"action {control.action} is unknown to this ingestor")
        return 0

    def _state(self, stopped: int) -> control_pb2.IngestorState:
        return control_pb2.IngestorState(
            running_jobs=len(self._slots.running),
            realtime_jobs=self._slots.count(JobKind.REALTIME),
            stopped_jobs=stopped,
            config=pb.IngestorConfig(
                max_concurrent=self._slots.limit,
                timeout_seconds=int(self._runner.deadline_seconds),
                kafka_topic=CANDLES.topic,
            ),
            draining=self._slots.is_stopped,
        )


@dataclass(frozen=True, slots=True)
class SettingsChange:
    """New settings; None leaves one as it is."""

    max_concurrent: int | None
    timeout_seconds: int | None


def read_change(config: pb.IngestorConfig, *, slots: int, topics: Sequence[str]) -> SettingsChange:
    """Return the change in a CONFIG_UPDATE.

    Args:
        slots: Slots that the exchanges file gives this ingestor.
        topics: Topics that it writes, the first of which has candles.
    Raises:
        InvalidRequest: No field is set, or one is out of range; the caller must not change anything then.
    """
    fields = ("max_concurrent", "timeout_seconds", "kafka_topic")
    if not any(config.HasField(field) for field in fields):  # type: ignore[arg-type]
        raise InvalidRequest(f"config has none of {', '.join(fields)}")
    if config.HasField("max_concurrent") and not 1 <= config.max_concurrent <= slots:
        raise InvalidRequest(f"max_concurrent {config.max_concurrent} is not between 1 and {slots}, the slots it has")
    if config.HasField("timeout_seconds") and not config.timeout_seconds:
        raise InvalidRequest("timeout_seconds 0 is not above 0")
    if config.HasField("kafka_topic") and config.kafka_topic != topics[0]:
        raise InvalidRequest(f"kafka_topic {config.kafka_topic!r} is read by nobody; candles go to {topics[0]!r}")
    return SettingsChange(
        config.max_concurrent if config.HasField("max_concurrent") else None,
        config.timeout_seconds if config.HasField("timeout_seconds") else None,
    )
