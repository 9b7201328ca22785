"""Checks of triggers' texts, in processes of their own with little CPU time and memory.

A text that compiles must not delay the relay's other callers, whatever a stranger finds that the compiler's own limits
do not count. A text that needs too much costs its process, and is refused; the next text gets a new one.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from dexorder_cep import InvalidSql
from dexorder_common.model.errors import Unavailable
from dexorder_relay.triggers.text_worker import LENGTH, MAX_CPU_SECONDS, MAX_MEMORY_BYTES

WORKERS = 2
MAX_SECONDS = 30.0
"""Wall-clock time of a check: far more than its CPU time, as the machine may be busy."""
_TOO_MUCH = (
    f"to compile the text takes more than {MAX_CPU_SECONDS:g} s of CPU time or {MAX_MEMORY_BYTES >> 20} MiB; "
    "make it shorter, with fewer columns or nested queries"
)


class TextChecks:
    """Processes that compile texts; each is kept for the next text.

    Args:
        module: What a process runs.
    """

    def __init__(self, module: str = "dexorder_relay.triggers.text_worker") -> None:
        self._module = module
        self._room = asyncio.Semaphore(WORKERS)
        self._idle: list[asyncio.subprocess.Process] = []

    async def period_seconds(self, sql: str, parameters: Mapping[str, str]) -> int:
        """Return the period that a text reads; 0 for trades.

        Raises:
            InvalidSql: The text or a parameter is refused, or compiling needs too much.
            Unavailable: The machine is too busy.
        """
        async with self._room:
            process = await self._take()
            is_sound = False
            try:
                async with asyncio.timeout(MAX_SECONDS):
                    answer = await _ask(process, {"sql": sql, "parameters": dict(parameters)})
                is_sound = True
            except TimeoutError:
                raise Unavailable("the check of a trigger's text takes too long now; try again") from None
            except (asyncio.IncompleteReadError, ConnectionError):
                raise InvalidSql(1, 1, _TOO_MUCH) from None
            finally:
                if is_sound:
                    self._idle.append(process)
                else:
                    await _end(process)
        if "reason" in answer:
            raise InvalidSql(answer["line"], answer["column"], answer["reason"])
        if "failure" in answer:
            raise RuntimeError(answer["failure"])
        return int(answer["period_seconds"])

    async def aclose(self) -> None:
        """End the processes."""
        while self._idle:
            await _end(self._idle.pop())

    async def _take(self) -> asyncio.subprocess.Process:
        while self._idle:
            process = self._idle.pop()
            if process.returncode is None:
                return process
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            self._module,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={name: value for name, value in os.environ.items() if not name.startswith("DEXORDER_")},
        )


async def _ask(process: asyncio.subprocess.Process, question: object) -> Any:
    assert process.stdin and process.stdout
    data = json.dumps(question).encode()
    process.stdin.write(LENGTH.pack(len(data)) + data)
    await process.stdin.drain()
    header = await process.stdout.readexactly(LENGTH.size)
    return json.loads(await process.stdout.readexactly(LENGTH.unpack(header)[0]))


async def _end(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()
