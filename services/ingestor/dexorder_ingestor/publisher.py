"""Records to Kafka through the gateway and reports to the relay, repeated while another attempt may succeed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from random import Random
from typing import TypeVar

import grpc
import structlog
import tenacity

from dexorder_common import tracing
from dexorder_common.clock import random_wait
from dexorder_common.model.datasets import CANDLES, Dataset
from dexorder_common.model.errors import Unavailable
from dexorder_common.model.history import Delay
from dexorder_common.model.instrument import InstrumentList
from dexorder_common.model.page import PageHeaders
from dexorder_common.rpc.client_retry import code_of, error_text, is_refused
from dexorder_common.rpc.common_messages import encode_ranges
from dexorder_common.rpc.history_messages import encode_candle_offer, encode_delay, encode_instrument
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.metrics import IngestorMetrics
from dexorder_ingestor.traces import send_span
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2 as relay_pb
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2_grpc as relay_rpc
from dexorder_protos.kafkapixy import kafkapixy_pb2 as pixy_pb
from dexorder_protos.kafkapixy import kafkapixy_pb2_grpc as pixy_rpc

log = structlog.get_logger(__name__)
T = TypeVar("T")


class CallRefused(Unavailable):
    """The server refuses the call and would refuse it again."""


class IngestorPublisher:
    """Writes records and reports. Its caller waits for each before the next, which keeps them in order."""

    def __init__(
        self,
        gateway: grpc.aio.Channel,
        relay: grpc.aio.Channel,
        settings: IngestorSettings,
        metrics: IngestorMetrics,
        *,
        random: Random | None = None,
    ) -> None:
        """Take the source of random waits between attempts; by default an own one."""
        self._random = random or Random()  # noqa: S311 - jitter
        self._pixy = pixy_rpc.KafkaPixyStub(gateway)
        self.relay = relay_rpc.IngestorServiceStub(relay)
        self.rpc_timeout_seconds = settings.rpc_timeout_seconds
        self._settings = settings
        self._metrics = metrics

    async def produce(
        self, headers: PageHeaders, value: bytes, *, dataset: Dataset = CANDLES, key: str | None = None
    ) -> None:
        """Produce a record; return when Kafka has acknowledged it. The topic may then hold it more than once.

        Args:
            key: Key of the record; the dispatch by default.
        Raises:
            Unavailable: The gateway refuses it, or is unavailable for ``publish_timeout_seconds``.
        """
        await self.produce_record(dataset.topic, key or headers.dispatch_id, headers.encode(), value)

    async def produce_record(self, topic: str, key: str, headers: Mapping[str, str], value: bytes) -> None:
        """Produce a record with any headers, as `produce` does."""
        request = pixy_pb.ProdRq(
            cluster=self._settings.cluster,
            topic=topic,
            key_value=key.encode(),
            message=value,
            headers=[pixy_pb.RecordHeader(key=k, value=v.encode()) for k, v in headers.items()],
        )
        timeout_seconds = self._settings.rpc_timeout_seconds
        with send_span(topic, request.cluster):
            metadata = tracing.headers()
            for name, context in metadata:
                request.headers.add(key=name, value=context.encode())
            await self.call(
                "Produce", lambda: self._pixy.Produce(request, timeout=timeout_seconds, metadata=metadata or None)
            )

    async def report_page(self, headers: PageHeaders, candles: int, calls: int) -> bool:
        """Report an acknowledged page to the relay; return whether the dispatch is still wanted.

        Args:
            calls: Calls of the exchange that the dispatch has made so far.

        Raises:
            Unavailable: The relay refuses the report, or is unavailable for ``publish_timeout_seconds``.
        """
        request = relay_pb.ReportPageRequest(
            job_id=headers.dispatch_id,
            start_ns=headers.span.start_ns,
            end_ns=headers.span.end_ns,
            candles=candles,
            empty=encode_ranges(headers.empty),
            calls=calls,
        )
        answer = await self.call(
            "ReportPage", lambda: self.relay.ReportPage(request, timeout=self._settings.rpc_timeout_seconds)
        )
        return answer.current

    async def report_delay(self, dispatch_id: str, delay: Delay | None) -> None:
        """Report a dispatch's delay to the relay, in one attempt; a failure is ignored: the next report follows."""
        request = relay_pb.ReportDelayRequest(job_id=dispatch_id, delay=encode_delay(delay))
        with suppress(grpc.aio.AioRpcError):
            await self.relay.ReportDelay(request, timeout=self._settings.rpc_timeout_seconds)

    async def report_instruments(self, listed: InstrumentList) -> None:
        """Report the instruments of an exchange and the candles that it offers to the relay, in one attempt.

        Raises:
            Refused: The relay does not know this call, or rejects the report.
            Unavailable: The relay is unavailable.
        """
        request = relay_pb.ReportInstrumentsRequest(
            exchange=listed.venue,
            instruments=map(encode_instrument, listed.markets),
            fetched_ns=listed.fetched_ns,
            candles=encode_candle_offer(listed.candles) if listed.candles else None,
        )
        try:
            await self.relay.ReportInstruments(request, timeout=self._settings.rpc_timeout_seconds)
        except grpc.aio.AioRpcError as error:
            raise failure("ReportInstruments", error) from error

    async def call(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call until it succeeds.

        Raises:
            Refused: The server refuses it.
            Unavailable: The server is unavailable for ``publish_timeout_seconds``.
        """

        def log_retry(state: tenacity.RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome else None
            code = code_of(error).name if error else "UNKNOWN"
            self._metrics.publish_retries.labels(name, code).inc()
            log.info("call repeated", call=name, code=code)

        async def attempt() -> T:
            with self._metrics.publish_seconds.labels(name).time():
                return await call()

        loop = asyncio.get_running_loop()
        end = loop.time() + self._settings.publish_timeout_seconds
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(lambda e: isinstance(e, grpc.aio.AioRpcError) and not is_refused(e)),
            stop=lambda _: loop.time() >= end,
            wait=random_wait(self._random, 0.1, 2.0),
            before_sleep=log_retry,
            sleep=asyncio.sleep,
            reraise=True,
        )
        try:
            return await retrying(attempt)
        except grpc.aio.AioRpcError as error:
            raise failure(name, error) from error


def failure(name: str, error: grpc.aio.AioRpcError) -> Unavailable:
    """Return the error of a failed call."""
    kind = CallRefused if is_refused(error) else Unavailable
    return kind(f"{name} failed: {error_text(error)}")
