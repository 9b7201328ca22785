"""Checks of triggers' texts, in separate processes with little CPU time and memory.

The compilation of a text must not delay the relay's other callers, even if an attacker finds a text that is expensive
within the compiler's own limits. Such a text ends its process and is refused; the next text gets a new process.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from dexorder_cep import InvalidSql
from dexorder_common.model.errors import Exhausted, SuiteError, Unavailable
from dexorder_relay.fair_semaphore import FairSemaphore
from dexorder_relay.triggers.text_worker import LENGTH, MAX_CPU_SECONDS, MAX_MEMORY_BYTES

WORKERS = 2
TEXTS_AT_ONCE = 50
"""Texts of a call that a process gets at a time; then the texts of other clients have their turn."""
MAX_COSTLY = 3
"""Texts of a call that may need too much; later ones are not compiled."""
MAX_SECONDS = 60.0
"""Wall-clock time of a part: far more than its CPU time, because the machine may be busy."""
_TOO_MUCH = (
    f"to compile the text takes more than {MAX_CPU_SECONDS:g} s of CPU time or {MAX_MEMORY_BYTES >> 20} MiB; "
    "make it shorter, with fewer columns or nested queries"
)
_NOT_CHECKED = f"it is not compiled: {MAX_COSTLY} triggers before it in the call need too much; leave them out"
Text: TypeAlias = tuple[str, Mapping[str, str]]
"""SQL text and parameters of a trigger."""


class TextChecks:
    """Processes that compile texts; each is kept for the next text.

    Args:
        module: Module that a process runs.
    """

    def __init__(self, module: str = "dexorder_relay.triggers.text_worker") -> None:
        self._module = module
        self._semaphore = FairSemaphore(WORKERS)
        self._idle: list[asyncio.subprocess.Process] = []

    async def periods(self, texts: Sequence[Text], client_id: str = "") -> list[int | SuiteError]:
        """Return for each text, in order, the period that it reads, 0 for trades; or why it is refused.

        Args:
            client_id: Who gave the texts; clients take turns.

        Raises:
            Unavailable: The machine is too busy.
        """
        keys = [(sql, tuple(sorted(parameters.items()))) for sql, parameters in texts]
        different = dict(zip(keys, texts, strict=True))
        verdicts = dict(zip(different, await self._periods([*different.values()], client_id), strict=True))
        return [verdicts[each] for each in keys]

    async def differences(self, old: Text, new: Text, client_id: str = "") -> list[str]:
        """Return the differences of two texts that keep one from continuing with the other's state; both compile.

        Raises:
            InvalidSql: Both together need too much.
            Unavailable: The machine is too busy.
        """
        async with self._semaphore.place(client_id):
            verdicts = await self._verdicts([(*new, *old)])
        if not verdicts:
            raise InvalidSql(1, 1, _TOO_MUCH)
        if isinstance(problem := _period_or_refusal(verdicts[0]), SuiteError):
            raise problem
        return list(verdicts[0]["differences"])

    async def _periods(self, texts: Sequence[Text], client_id: str) -> list[int | SuiteError]:
        found: list[int | SuiteError] = []
        costly = 0
        while len(found) < len(texts):
            if costly == MAX_COSTLY:
                return found + [Exhausted(_NOT_CHECKED)] * (len(texts) - len(found))
            part = texts[len(found) : len(found) + TEXTS_AT_ONCE]
            async with self._semaphore.place(client_id):  # others have their turn after each part
                verdicts = await self._verdicts(part)
            found += map(_period_or_refusal, verdicts)
            if len(verdicts) < len(part):
                found.append(InvalidSql(1, 1, _TOO_MUCH))
                costly += 1
        return found

    async def _verdicts(self, texts: Sequence[Sequence[Any]]) -> list[Any]:
        """Return the verdicts of a process, up to and without the text that needs too much."""
        process = await self._take()
        verdicts: list[Any] = []
        try:
            async with asyncio.timeout(MAX_SECONDS):
                await _ask(process, texts)
                for _ in texts:
                    verdicts.append(await _answer(process))
        except TimeoutError:
            raise Unavailable("the check of a trigger's text takes too long now; try again") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            return verdicts
        finally:
            if len(verdicts) == len(texts):
                self._idle.append(process)
            else:
                await _end(process)
        return verdicts

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


def _period_or_refusal(verdict: Any) -> int | SuiteError:
    if "reason" in verdict:
        return InvalidSql(verdict["line"], verdict["column"], verdict["reason"])
    if "failure" in verdict:
        raise RuntimeError(verdict["failure"])
    return int(verdict["period_seconds"])


async def _ask(process: asyncio.subprocess.Process, question: object) -> None:
    assert process.stdin
    data = json.dumps(question).encode()
    process.stdin.write(LENGTH.pack(len(data)) + data)
    await process.stdin.drain()


async def _answer(process: asyncio.subprocess.Process) -> Any:
    assert process.stdout
    header = await process.stdout.readexactly(LENGTH.size)
    return json.loads(await process.stdout.readexactly(LENGTH.unpack(header)[0]))


async def _end(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()
