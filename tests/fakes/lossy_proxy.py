"""A TCP proxy that loses answers: what the server says is dropped at times, and the connection with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

_CHUNK = 65_536


class LossyProxy:
    """From a port of loopback to another one.

    Attributes:
        cuts: Answers lost so far.
        loses: Whether it loses any now; each with ``odds``.
    """

    def __init__(self, target_port: int, odds: float, seed: int = 1) -> None:
        self.cuts = 0
        self.loses = False
        self._target_port, self._odds, self._random = target_port, odds, Random(seed)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lossy: bool) -> None:
        while data := await reader.read(_CHUNK):
            if lossy and self.loses and self._random.random() < self._odds:
                self.cuts += 1
                return
            writer.write(data)
            await writer.drain()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        pumps = {
            asyncio.create_task(self._pump(reader, there_writer, lossy=False)),
            asyncio.create_task(self._pump(there_reader, writer, lossy=True)),
        }
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in pumps:
                task.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for each in (writer, there_writer):
                each.transport.abort()

    @asynccontextmanager
    async def listening(self, port: int) -> AsyncIterator[None]:
        """Serve until the block ends."""
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(await asyncio.start_server(self._serve, "127.0.0.1", port))
            yield
            server.close()
