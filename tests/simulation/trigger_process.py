"""The triggers' process of a run: the product's loop, whose waits and calls let virtual time pass.

The loop blocks, so it is the main program of the run: while it waits for time, the relay or the source, everybody else
goes on. A kill during a wait raises `Killed` in it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any, cast

import grpc

from dexorder_common.model.datasets import TRADES
from dexorder_common.model.errors import Unavailable
from dexorder_common.rpc.common_messages import encode_cursor
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as ppb
from dexorder_spark.cep.evaluator import RegistrationChanges
from dexorder_spark.cep.journal import Journal
from dexorder_spark.cep.relay import TriggerRelay, decode_changes
from dexorder_spark.cep.runner import Runner
from dexorder_spark.config import SparkSettings
from dexorder_spark.source.offsets import OffsetRange, SourceState
from dexorder_spark.source.records import Result
from tests.simulation.loop import SECOND_NS, Process
from tests.simulation.memory_files import MemoryFiles
from tests.simulation.run import Run
from tests.simulation.sqlite_disk import Killed

SETTINGS = SparkSettings(poll_ms=1_000, trigger_batch_seconds=0.5)
SILENCE_SECONDS = 30.0
_FOR_EVER_NS = 10**9 * SECOND_NS


class Trades:
    """The topic of trades: one partition, whose records never go away.

    Attributes:
        is_down: The source does not answer.
    """

    def __init__(self) -> None:
        self.records: list[Result] = []
        self.is_down = False

    def append(self, payload: bytes, headers: dict[str, str], now_ns: int) -> None:
        """Add a record, written at a time."""
        record = Result(payload=payload, headers=headers)
        record.event_time.FromMilliseconds(now_ns // 1_000_000)
        record.offset.offset = str(len(self.records)).encode()
        self.records.append(record)


class TriggerProcess:
    """One life of the process."""

    def __init__(
        self,
        run: Run,
        process: Process,
        files: MemoryFiles,
        trades: Trades,
        on_heard: Callable[[RegistrationChanges], None] = lambda changes: None,
    ) -> None:
        """Start a life; ``on_heard`` gets the changes of triggers before the process has them."""
        self.run = run
        self._on_heard = on_heard
        self.process = process
        self._trades = trades
        self._random = run.generator(f"triggers {run.loop.now_ns}")
        self.inbox: asyncio.Queue[ppb.WatchTriggersResponse | None] = asyncio.Queue()
        stop = cast(threading.Event, _Stop(self))
        relay = _Relay(self, stop)
        self._runner = Runner(
            SETTINGS,
            Journal(files),
            relay,
            lambda series: (),
            stop=stop,
            clock=run.clock(process),
            open_source=lambda address: _Source(self, address.endswith(f"#{TRADES.topic}")),
            start=lambda follow: None,
        )

    def main(self) -> None:
        """Run until the process is killed, or ends because there is no trigger."""
        with suppress(Killed):
            self.run.loop.spawn(self.process, self._follow())
            self._runner.run()
            self.run.note("triggers: the process ends, as there are none")
        self.process.is_alive = False

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        loop, process = self.run.loop, self.process
        loop.run_until(lambda: not process.is_alive, limit_ns=loop.now_ns + round(seconds * SECOND_NS))
        while process.is_alive and process.is_frozen:
            loop.run_until(lambda: not process.is_alive or not process.is_frozen, limit_ns=loop.now_ns + SECOND_NS)
        if not process.is_alive:
            raise Killed

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Return the result of a call, for which it waits."""
        process, task = self.process, self.run.loop.spawn(self.process, work)
        self.run.loop.run_until(lambda: task.done() or not process.is_alive, limit_ns=_FOR_EVER_NS)
        if not process.is_alive:
            raise Killed
        return task.result()

    def trades(self, first: int, end: int) -> list[Result]:
        """Return records of the source."""
        self.state()
        return self._trades.records[first:end]

    def state(self) -> int:
        """Return the end of the source's log."""
        self.wait(self._random.uniform(0.001, 0.02))
        if self._trades.is_down:
            raise Unavailable("the source does not answer")
        return len(self._trades.records)

    def remote(self, method: str) -> Callable[..., Any]:
        """Return a blocking RPC of the relay."""
        network = self.run.network
        return lambda request, timeout: self.call(network.call("relay", method, request, timeout=timeout))

    async def _follow(self) -> None:
        after, network = self._runner.cursor, self.run.network
        while True:
            self.inbox = asyncio.Queue()
            with suppress(grpc.aio.AioRpcError, TimeoutError):
                request = ppb.WatchTriggersRequest(after=encode_cursor(after))
                await network.call("relay", "WatchTriggers", request, timeout=5.0)
                while True:
                    async with asyncio.timeout(SILENCE_SECONDS):
                        answer = await self.inbox.get()
                    if answer is None:
                        break
                    changes = decode_changes(answer)
                    after = changes.cursor
                    if changes.is_reset:
                        self.run.note(f"triggers: reset, {len(changes.changes)} triggers run")
                    self._on_heard(changes)
                    self._runner.take(changes)
            await asyncio.sleep(self._random.uniform(0.1, 2.0))


class _Stop:
    """Stands for the event that is never set."""

    def __init__(self, process: TriggerProcess) -> None:
        self._process = process

    def is_set(self) -> bool:
        """Return False."""
        return False

    def wait(self, timeout: float) -> bool:
        """Let time pass."""
        self._process.wait(timeout)
        return False


class _Relay(TriggerRelay):
    """The relay's client, with its repetitions, over the simulated network."""

    def __init__(self, process: TriggerProcess, stop: threading.Event) -> None:
        self._stop = stop
        self._what = "the triggers' batch"
        self._on_failure = lambda failed, code: None
        self._random = process.run.generator(f"waits {process.run.loop.now_ns}")
        self.stub = _Stub(process)


class _Stub:
    def __init__(self, process: TriggerProcess) -> None:
        self.ReportTriggerEvents = process.remote("ReportTriggerEvents")
        self.DescribeDispatches = process.remote("DescribeDispatches")


class _Source:
    def __init__(self, process: TriggerProcess, has_trades: bool) -> None:
        self._process = process
        self._has_trades = has_trades

    def state(self) -> SourceState:
        """See `SourceClient`."""
        end = self._process.state() if self._has_trades else 0
        return SourceState({0: 0}, {0: end}, {}, topic_id="t")

    def read(self, part: OffsetRange, *, retry_seconds: float) -> Iterator[list[Result]]:
        """See `SourceClient`."""
        yield self._process.trades(part.start, part.end)
