"""A user-defined source made with pynumaflow: numbered records from memory, as its own example does it but with an end.

Runs with the interpreter of ``peer_python("numaflow")``. Record n of ``--records`` is offset n // partitions of
partition n % partitions; its payload is the number in decimal, filled up with dots. Acked records never come again,
nacked ones do; what is in flight comes again to a new ReadFn only with ``--redeliver``. PendingFn tells how many are
not acked. With ``--report`` each ack and nack writes how many there were, as JSON:

    {"acked": records, "acks": AckFn requests, "nacked": records, "unknown": offsets that were not in flight}

The server-info file is written once it listens (``--info``, default sourcer-server-info beside the socket).
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import deque
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from pynumaflow.shared.asynciter import NonBlockingIterator
from pynumaflow.sourcer import (
    AckRequest,
    Message,
    NackRequest,
    Offset,
    PartitionsResponse,
    PendingResponse,
    ReadRequest,
    SourceAsyncServer,
    Sourcer,
)
from pynumaflow.sourcer.servicer.async_servicer import AsyncSourceServicer

FIRST = datetime(2024, 1, 1, tzinfo=timezone.utc)  # noqa: UP017 - the peer may be older than datetime.UTC
KEYS, HEADERS = ["key"], {"header": "value"}
IDLE_SLICE_S = 0.01


class MemorySource(Sourcer):
    """The records. ``flying`` and ``due`` hold numbers of records that are not acked."""

    def __init__(self, records: int, payload_bytes: int, partitions: int, report: Path | None) -> None:
        self._records = records
        self._payload_bytes = payload_bytes
        self._partitions = partitions
        self._report = report
        self._next = 0
        self._due: deque[int] = deque()
        self._flying: set[int] = set()
        self._counts = {"acked": 0, "acks": 0, "nacked": 0, "unknown": 0}

    def restart(self) -> None:
        """A new client: all that is in flight is due, lowest first."""
        self._due = deque(sorted({*self._due, *self._flying}))
        self._flying.clear()

    async def read_handler(self, datum: ReadRequest, output: NonBlockingIterator) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + datum.timeout_in_ms / 1000
        while not (self._due or self._next < self._records) and loop.time() < until:  # noqa: ASYNC110
            await asyncio.sleep(IDLE_SLICE_S)
        for _ in range(datum.num_records):
            if self._due:
                number = self._due.popleft()
            elif self._next < self._records:
                number = self._next
                self._next = self._next + 1
            else:
                return
            self._flying.add(number)
            await output.put(self._message(number))

    def _message(self, number: int) -> Message:
        offset, partition = divmod(number, self._partitions)
        return Message(
            payload=(b"%d" % number).ljust(self._payload_bytes, b"."),
            offset=Offset(b"%d" % offset, partition),
            event_time=FIRST + timedelta(milliseconds=number),
            keys=KEYS,
            headers=HEADERS,
        )

    async def ack_handler(self, ack_request: AckRequest) -> None:
        self._counts["acks"] += 1
        self._counts["acked"] += self._answered(ack_request.offsets)
        self._tell()

    async def nack_handler(self, nack_request: NackRequest) -> None:
        before = self._flying.copy()
        self._counts["nacked"] += self._answered(nack_request.offsets)
        self._due.extend(sorted(before - self._flying))
        self._tell()

    def _answered(self, offsets: list[Offset]) -> int:
        """Take them out of the flight; how many were in it."""
        before = len(self._flying)
        for offset in offsets:
            number = int(offset.offset) * self._partitions + offset.partition_id
            if number in self._flying:
                self._flying.remove(number)
            else:
                self._counts["unknown"] += 1
        return before - len(self._flying)

    def _tell(self) -> None:
        if self._report is not None:
            fresh = self._report.with_name(f"{self._report.name}.new")
            fresh.write_text(json.dumps(self._counts))
            fresh.replace(self._report)

    async def pending_handler(self) -> PendingResponse:
        return PendingResponse(count=self._records - self._counts["acked"])

    async def active_partitions_handler(self) -> PartitionsResponse:
        return PartitionsResponse(partitions=list(range(self._partitions)))

    async def partitions_handler(self) -> PartitionsResponse:
        """The name in older releases."""
        return await self.active_partitions_handler()

    async def total_partitions_handler(self) -> int:
        return self._partitions


class Redelivering(AsyncSourceServicer):
    """A ReadFn that begins means a new client. The step through here costs time, so it is there only on demand."""

    async def ReadFn(self, request_iterator: Any, context: Any) -> Any:
        self.source_handler.restart()
        async for response in super().ReadFn(request_iterator, context):
            yield response


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--socket", type=Path, required=True, help="unix socket to listen on, an absolute path")
    parser.add_argument("--tcp", default="", help="host:port to listen on in place of the socket; not port 0")
    parser.add_argument("--info", type=Path, help="the server-info file; default sourcer-server-info beside the socket")
    parser.add_argument("--records", type=int, default=1_000)
    parser.add_argument("--payload-bytes", type=int, default=0, help="at least so many; default no filling")
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--redeliver", action="store_true", help="deliver unacked records again to a new ReadFn")
    parser.add_argument("--report", type=Path, help="file that counts acks and nacks; slows down a bench")
    given = parser.parse_args()
    source = MemorySource(given.records, given.payload_bytes, given.partitions, given.report)
    info = given.info or given.socket.with_name("sourcer-server-info")
    server = SourceAsyncServer(source, sock_path=str(given.socket), server_info_file=str(info))
    if given.tcp:
        server.sock_path = given.tcp
    if given.redeliver:
        server.servicer = Redelivering(source_handler=source)
    server.start()


if __name__ == "__main__":
    main()
