"""Records to Kafka through the gateway, page reports to the relay; both retried while there is hope."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict
from typing import TypeVar

import grpc
import structlog
import tenacity

from services.common.model.errors import Unavailable
from services.common.model.page import OHLC_TOPIC, PageHeaders
from services.common.rpc.client_retry import Failure, code_of, error_text, is_failure
from services.gen.dexorder.relay.v1 import ingestor_service_pb2 as relay_pb
from services.gen.dexorder.relay.v1 import ingestor_service_pb2_grpc as relay_rpc
from services.gen.dexorder.relay.v1 import relay_service_pb2
from services.gen.kafkapixy import kafkapixy_pb2 as pixy_pb
from services.gen.kafkapixy import kafkapixy_pb2_grpc as pixy_rpc
from services.ingestor.config import IngestorSettings
from services.ingestor.exchange.instruments import ListedInstrument
from services.ingestor.metrics import IngestorMetrics

log = structlog.get_logger(__name__)
T = TypeVar("T")


class Refused(Unavailable):
    """The other side refuses, and would again."""


class Publisher:
    """Writes one record at a time; its caller waits for each before the next, which keeps them in order."""

    def __init__(
        self,
        gateway: grpc.aio.Channel,
        relay: grpc.aio.Channel,
        settings: IngestorSettings,
        metrics: IngestorMetrics,
    ) -> None:
        self._pixy = pixy_rpc.KafkaPixyStub(gateway)
        self._relay = relay_rpc.IngestorServiceStub(relay)
        self._settings = settings
        self._metrics = metrics

    async def produce(self, control: PageHeaders, value: bytes) -> None:
        """Return when Kafka has acknowledged the record, which may then be there more than once.

        Raises:
            Unavailable: The gateway refuses it, or stays away for ``patience_seconds``.
        """
        request = pixy_pb.ProdRq(
            cluster=self._settings.cluster,
            topic=OHLC_TOPIC,
            key_value=control.dispatch_id.encode(),
            message=value,
            headers=[pixy_pb.RecordHeader(key=k, value=v.encode()) for k, v in control.encode().items()],
        )
        await self._call("Produce", lambda: self._pixy.Produce(request, timeout=self._settings.rpc_timeout_seconds))

    async def report(self, control: PageHeaders, candles: int) -> bool:
        """Tell the relay of an acknowledged page; whether the job is still wanted.

        Raises:
            Unavailable: The relay refuses the report, or stays away for ``patience_seconds``.
        """
        request = relay_pb.ReportPageRequest(
            job_id=control.dispatch_id,
            start_time=control.span.start_ns,
            end_time=control.span.end_ns,
            candles=candles,
            empty=[relay_service_pb2.TimeRange(start_time=r.start_ns, end_time=r.end_ns) for r in control.empty],
        )
        answer = await self._call(
            "ReportPage", lambda: self._relay.ReportPage(request, timeout=self._settings.rpc_timeout_seconds)
        )
        return answer.current

    async def report_markets(self, exchange: str, markets: Iterable[ListedInstrument], fetched_ns: int) -> None:
        """Tell the relay which markets an exchange has; one try.

        Raises:
            Refused: The relay does not know this call, or finds fault with the report.
            Unavailable: The relay is away.
        """
        request = relay_pb.ReportMarketsRequest(
            exchange=exchange,
            markets=[relay_service_pb2.Market(**asdict(market)) for market in markets],
            fetched_at=fetched_ns,
        )
        try:
            await self._relay.ReportMarkets(request, timeout=self._settings.rpc_timeout_seconds)
        except grpc.aio.AioRpcError as error:
            raise _failure("ReportMarkets", error) from error

    async def _call(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        def note(state: tenacity.RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome else None
            code = code_of(error).name if error else "UNKNOWN"
            self._metrics.publish_retries.labels(name, code).inc()
            log.info("trying again", call=name, code=code)

        async def once() -> T:
            with self._metrics.publish_seconds.labels(name).time():
                return await call()

        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(lambda e: isinstance(e, grpc.aio.AioRpcError) and not _is_final(e)),
            stop=tenacity.stop_after_delay(self._settings.publish_timeout_seconds),
            wait=tenacity.wait_random_exponential(0.1, 2),
            before_sleep=note,
            sleep=asyncio.sleep,
            reraise=True,
        )
        try:
            return await retrying(once)
        except grpc.aio.AioRpcError as error:
            raise _failure(name, error) from error


def _failure(name: str, error: grpc.aio.AioRpcError) -> Unavailable:
    kind = Refused if _is_final(error) else Unavailable
    return kind(f"{name} failed: {error_text(error)}")


def _is_final(error: BaseException) -> bool:
    return is_failure(error, Failure.DENIED, Failure.REJECTED)
