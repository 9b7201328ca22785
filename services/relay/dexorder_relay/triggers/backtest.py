"""Backtests: a trigger over stored candles or trades, in its own process, so that no text can delay the relay.

The process reads a pickled ``Backtest`` from its standard input and writes answers to its standard output, each after
its length. It is killed when the call ends, or takes too long.
"""

from __future__ import annotations

import asyncio
import pickle
import struct
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from typing import BinaryIO, NamedTuple

from pyiceberg.catalog import Catalog

from dexorder_cep import Firing, Suspension, backtest, compile_trigger, periods_read
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.market_rows import Row, stored_rows
from dexorder_common.model.errors import Exhausted, InvalidRequest, Unavailable
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.triggers import Trigger
from dexorder_common.rpc.trigger_messages import encode_event
from dexorder_protos.dexorder.relay.v1 import trigger_service_pb2 as pb
from dexorder_relay.config import RelaySettings
from dexorder_relay.fair_semaphore import FairSemaphore
from dexorder_relay.triggers.text_worker import limit_memory

EVENTS_IN_AN_ANSWER = 100
MAX_MEMORY_BYTES = 1 << 30
"""Memory of a process beyond the rows of a market: the trigger's state, and its firings."""
_LENGTH = struct.Struct(">I")


class Backtest(NamedTuple):
    """Work of a process.

    Attributes:
        max_rows: Largest number of rows of one market.
    """

    catalog: CatalogSettings
    trigger: Trigger
    span: TimeRange
    max_rows: int


class TooManyRows(Exception):
    """A market has more rows in the range than a backtest may read."""


def answers(work: Backtest) -> Iterator[pb.BacktestTriggerResponse]:
    """Yield the firings of each market, then the summary."""
    compiled = compile_trigger(work.trigger.sql, work.trigger.parameters)
    catalog = work.catalog.load()
    markets, period_seconds = [], compiled.period_seconds
    for ticker in work.trigger.tickers:
        rows, *others = (
            _rows(work, catalog, ticker, period) for period in periods_read(period_seconds, compiled.given)
        )
        limit_memory(MAX_MEMORY_BYTES)
        outputs = backtest(compiled, ticker, rows, *others, since_ns=work.span.start_ns)
        events = [
            pb.BacktestEvent(
                ticker=ticker,
                event=encode_event(
                    work.trigger.trigger_id,
                    each.time_ns,
                    [(column.name, column.type) for column in each.columns],
                    each.rows,
                    each.context,
                ),
            )
            for each in outputs
            if isinstance(each, Firing)
        ]
        suspended = next((each.reason for each in outputs if isinstance(each, Suspension)), "")
        for first in range(0, len(events), EVENTS_IN_AN_ANSWER):
            yield pb.BacktestTriggerResponse(events=events[first : first + EVENTS_IN_AN_ANSWER])
        markets.append(pb.BacktestMarket(ticker=ticker, rows=len(rows), firings=len(events), suspended=suspended))
    yield pb.BacktestTriggerResponse(markets=markets, period_seconds=period_seconds)


def _rows(work: Backtest, catalog: Catalog, ticker: str, period_seconds: int) -> list[Row]:
    rows = stored_rows(catalog, Series.decode(ticker, period_seconds), work.span)
    if len(rows) > work.max_rows:
        raise TooManyRows(
            f"{ticker} has {len(rows)} rows in the range, and backtest_rows is {work.max_rows}; take a shorter one"
        )
    return rows


class Backtests:
    """Runs backtests, a few at a time; clients that wait take turns."""

    def __init__(self, catalog: CatalogSettings, settings: RelaySettings) -> None:
        self._catalog = catalog
        self._semaphore = FairSemaphore(settings.parallel_backtests)
        self._max_rows = settings.backtest_rows
        self._seconds = settings.backtest_seconds

    async def run(
        self, trigger: Trigger, span: TimeRange, client_id: str = ""
    ) -> AsyncGenerator[pb.BacktestTriggerResponse, None]:
        """Yield the answers of a trigger that compiles.

        Args:
            client_id: Who asks for it.

        Raises:
            InvalidRequest: A market has too many rows.
            Exhausted: It takes too long, or too much memory.
            Unavailable: The tables can't be read.
        """
        async with self._semaphore.place(client_id):
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "dexorder_relay.triggers.backtest",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            assert process.stdin and process.stdout and process.stderr
            try:
                async with asyncio.timeout(self._seconds):
                    process.stdin.write(pickle.dumps(Backtest(self._catalog, trigger, span, self._max_rows)))
                    process.stdin.close()
                    while header := await process.stdout.read(_LENGTH.size):
                        header += await process.stdout.readexactly(_LENGTH.size - len(header))
                        data = await process.stdout.readexactly(_LENGTH.unpack(header)[0])
                        yield pb.BacktestTriggerResponse.FromString(data)
                    problem = (await process.stderr.read()).decode(errors="replace").strip()
                    await process.wait()
            except TimeoutError:
                raise Exhausted(
                    f"the backtest takes longer than backtest_seconds, {self._seconds:g}; take a shorter range"
                ) from None
            except asyncio.IncompleteReadError:
                raise Unavailable("the backtest's process died") from None
            finally:
                if process.returncode is None:
                    with suppress(ProcessLookupError):
                        process.kill()
                    await process.wait()
            if process.returncode == TOO_MANY_ROWS:
                raise InvalidRequest(problem)
            if process.returncode == TOO_MUCH_MEMORY:
                raise Exhausted(
                    f"the backtest takes more than {MAX_MEMORY_BYTES >> 20} MiB; take a shorter range or fewer columns"
                )
            if process.returncode:
                raise Unavailable(f"the backtest failed: {problem.splitlines()[-1] if problem else 'no reason'}")


TOO_MANY_ROWS, TOO_MUCH_MEMORY = 3, 4
"""Status of a process with a backtest that would read too many rows, or take too much memory."""


def main(source: BinaryIO, target: BinaryIO) -> None:
    """Run one backtest."""
    work: Backtest = pickle.load(source)  # noqa: S301 - the relay wrote it
    try:
        for answer in answers(work):
            data = answer.SerializeToString()
            target.write(_LENGTH.pack(len(data)) + data)
            target.flush()
    except TooManyRows as error:
        print(error, file=sys.stderr)
        sys.exit(TOO_MANY_ROWS)
    except MemoryError:
        sys.exit(TOO_MUCH_MEMORY)


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
