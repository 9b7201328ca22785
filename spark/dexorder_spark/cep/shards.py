"""The engine in several processes, each with the tickers of a hash, in step: all of them evaluate one batch.

Every row has one ticker, so one process evaluates it, with the same state as a single engine has. The outputs are
merged in the order of the inputs, so the events of a batch do not depend on the number of processes. The parent keeps
the journal, so it can start again with another number.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import zlib
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any, BinaryIO

from dexorder_cep import EngineState
from dexorder_spark.cep.evaluation import NO_NAMES, Evaluation, Names, Output, Watcher
from dexorder_spark.cep.inputs import Edit, Expire, Feed, Input, Pause, Register, Remove, Resume, SkipPauses, Suspend

COMMAND = (sys.executable, "-P", "-m", "dexorder_spark.cep.shards")
_STOP_SECONDS = 2.0


class ShardDied(Exception):
    """A process of the engine has ended; the batch is evaluated again after a restart."""


def shard_of(ticker: str, count: int) -> int:
    """Return the number of the process that has a ticker."""
    return zlib.crc32(ticker.encode()) % count


def start(state: EngineState | None, count: int) -> Evaluation | Shards:
    """Return an engine in this process, or in ``count`` others if that is more than one."""
    return Evaluation(state) if count == 1 else Shards(state, count)


class Shards:
    """The processes."""

    def __init__(self, state: EngineState | None, count: int) -> None:
        """Start them; InvalidRequest if the state is of a version that cannot be read."""
        self._count = count
        parts = [state.part(lambda ticker, n=n: shard_of(ticker, count) == n) if state else None for n in range(count)]  # type: ignore[misc]
        self._processes = [
            subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(count)
        ]
        self._call("load", [(part,) for part in parts])
        self._numbers: dict[str, int] = {}

    def watchers(self) -> dict[int, Watcher]:
        """Return the triggers by their registrations; to be called after the start."""
        found: dict[int, Watcher] = {number: each for part in self._call("watchers") for number, each in part.items()}
        self._numbers = {each.trigger_id: number for number, each in found.items()}
        return found

    def number_of(self, trigger_id: str) -> int | None:
        """Return the registration of a trigger; None if none has had the id."""
        return self._numbers.get(trigger_id)

    def run(self, inputs: Sequence[tuple[int, Input]], names: Names = NO_NAMES) -> list[Output]:
        """Take numbered inputs; return their outputs, in order. A trigger that ends in one process ends in all.

        Args:
            names: Ids of the triggers that they change, by registration.
        """
        parts: list[list[tuple[int, Input]]] = [[] for _ in range(self._count)]
        for number, each in inputs:
            for shard in shards_of(each, self._count):
                parts[shard].append((number, each))
            if isinstance(each, Register):
                self._numbers[each.trigger_id] = each.registration
            elif isinstance(each, Remove | Suspend):
                self._forget(each.registration, names.get(each.registration, ""))
        found = merged(self._call("run", [(part, names) for part in parts]))
        ended = {each.registration: each.trigger_id for each in found if each.is_end}
        if ended:
            self._call("run", [([(0, Remove(each)) for each in ended], ended)] * self._count)
            for registration, trigger_id in ended.items():
                self._forget(registration, trigger_id)
        return found

    def _forget(self, registration: int, trigger_id: str) -> None:
        if self._numbers.get(trigger_id) == registration:
            del self._numbers[trigger_id]

    def dump(self) -> EngineState:
        """Return the state. A process may have seen tickers of others because a registration names all its tickers."""
        answers: list[EngineState] = self._call("dump")
        return EngineState.joined(
            EngineState(each.triggers, {t: part for t, part in each.tickers.items() if shard_of(t, self._count) == n})
            for n, each in enumerate(answers)
        )

    def close(self) -> None:
        """End the processes."""
        for each in self._processes:
            assert each.stdin and each.stdout
            with suppress(BrokenPipeError):
                each.stdin.close()
            try:
                each.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()
            each.stdout.close()

    def _call(self, name: str, arguments: Sequence[tuple[Any, ...]] | None = None) -> list[Any]:
        """Call a method in every process at once; return the answers in their order."""
        try:
            for number, each in enumerate(self._processes):
                assert each.stdin
                pickle.dump((name, arguments[number] if arguments else ()), each.stdin)
                each.stdin.flush()
            return [pickle.load(each.stdout) for each in self._processes if each.stdout]  # noqa: S301 - from our child
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise ShardDied(f"a process of the triggers' engine has ended: {error!r}") from error


def shards_of(each: Input, count: int) -> Collection[int]:
    """Return the processes that take an input."""
    match each:
        case Feed() | Pause() | Resume() | SkipPauses():
            return [shard_of(each.ticker, count)]
        case Register():
            return sorted({shard_of(ticker, count) for ticker in each.tickers} or {0})
        case Edit() | Remove() | Suspend() | Expire():
            return range(count)


def merged(answers: Iterable[Sequence[Output]]) -> list[Output]:
    """Return the outputs of all processes in the order of the inputs, without outputs after a trigger's end."""
    found: list[Output] = []
    ended: set[int] = set()
    for each in sorted((output for answer in answers for output in answer), key=lambda output: output.input):
        if each.registration not in ended:
            found.append(each)
        if each.is_end:
            ended.add(each.registration)
    return found


def main(source: BinaryIO, target: BinaryIO) -> None:
    """Answer the calls of the parent until it closes the pipe, or dies."""
    evaluation = Evaluation()
    while True:
        try:
            name, arguments = pickle.load(source)  # noqa: S301 - from the parent
        except EOFError:
            return
        answer = None
        if name == "load":
            evaluation = Evaluation(*arguments)
        else:
            answer = getattr(evaluation, name)(*arguments)
        pickle.dump(answer, target)
        target.flush()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt, BrokenPipeError):
        main(sys.stdin.buffer, sys.stdout.buffer)
