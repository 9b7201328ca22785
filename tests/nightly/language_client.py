"""A client of another language beside a test: the relay is restored or killed, or a proxy resets the streams."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Self

from tests.fakes.mesh_proxy import ResettingProxy
from tests.fakes.tcp_proxy import in_a_thread
from tests.nightly.suite_lives import SuiteLives
from tests.rig.processes import until

ANNOUNCED = 20
"""Notifications before the backup, after it, and after it was restored."""
RESETS = 6
"""Streams that a proxy resets after a notification, at most."""
KILLS = 20
CALLS_A_KILL, ANSWERED_BEFORE = 500, 20
"""Calls that the client is given before each kill, and how many are answered by then."""
PATIENCE_S = 120.0
RESET, REPEATED = "all that is stored follows", "waiting for the relay: "
"""What the programs write on stderr."""


class Restored(NamedTuple):
    """What a client saw that follows notifications across a restored database."""

    resets: int
    announced: int
    missed: int


class Killed(NamedTuple):
    """What became of a client's calls while the relay was killed; ``repeats`` are by the program, not by gRPC."""

    calls: int
    failed: int
    repeats: int


class LanguageClient:
    """Program whose lines are read; a context manager that kills it with its children."""

    def __init__(self, *arguments: str, folder: Path) -> None:
        self._log = folder / "stderr.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                arguments,
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self.lines = list[str]()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:  # waits for it and closes its pipes
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
            self._reader.join()

    def write(self, *lines: str) -> None:
        """Write lines to its stdin."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.writelines(f"{line}\n" for line in lines)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise AssertionError(f"the client has ended: {self.tail()}") from None

    def logged(self, text: str) -> int:
        """Return the number of lines of stderr with a text."""
        return sum(text in line for line in self._log.read_text().splitlines())

    def wait(self, done: Callable[[], bool]) -> None:
        """Wait for what it has written."""
        until(lambda: done() or self._process.poll() is not None, PATIENCE_S, self.tail)
        assert done(), f"the client has ended: {self.tail()}"

    def wait_lines(self, count: int) -> None:
        """Wait until it has written so many lines."""
        self.wait(lambda: len(self.lines) >= count)

    def end(self) -> int:
        """Close its stdin and return its exit status."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        status = self._process.wait(PATIENCE_S)
        self._reader.join()
        return status

    def tail(self) -> str:
        """Return the end of its output."""
        return f"{len(self.lines)} lines, the last: {self.lines[-1:]}\n{self._log.read_text()[-3000:]}"

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.strip())


def follow_restored(suite: SuiteLives, *program: str, folder: Path) -> Restored:
    """Let the client read notifications beyond a backup, restore the backup, and compare all that is announced."""
    made, client_id = set[str](), folder.name
    with LanguageClient(*program, suite.address, "follow", f"RESPONSE:{client_id}", folder=folder) as client:

        def announce() -> None:
            made.update(f"{suite.submit(client_id)} OK" for _ in range(ANNOUNCED))
            client.wait(lambda: made <= set(client.lines))

        announce()
        copy = suite.backup()
        announce()
        assert sorted(client.lines) == sorted(made), "across a restart each is announced once"
        assert client.logged(RESET) == 0, "a restart is no reset"
        suite.restore(copy)
        announce()
        assert set(client.lines) == made
        return Restored(client.logged(RESET), len(made), len(made - set(client.lines)))


def follow_reset(suite: SuiteLives, *program: str, folder: Path) -> int:
    """Let the client read notifications behind a proxy, each of them once; return the streams that the proxy reset."""
    proxy, client_id = ResettingProxy(int(suite.address.rpartition(":")[2])), f"{folder.name}-reset"
    proxy.after = [2] * RESETS  # `opened`, and one notification
    with in_a_thread(proxy) as port:
        follow = (f"127.0.0.1:{port}", "follow", f"RESPONSE:{client_id}")
        with LanguageClient(*program, *follow, folder=folder) as client:
            made = {f"{suite.submit(client_id)} OK" for _ in range(ANNOUNCED)}
            client.wait(lambda: made <= set(client.lines))
            assert sorted(client.lines) == sorted(made), "each is announced once"
            assert client.logged(RESET) == 0, "a reset of the stream is none of the cursor"
    return proxy.resets


def call_killed(suite: SuiteLives, *program: str, folder: Path) -> Killed:
    """Kill the relay while the client makes calls, a number of times."""
    known = suite.submit(folder.name)
    suite.wait_ended(known)
    with LanguageClient(*program, suite.address, "states", folder=folder) as client:
        for kill in range(KILLS):
            client.write(*[known] * CALLS_A_KILL)
            client.wait_lines(kill * CALLS_A_KILL + ANSWERED_BEFORE)
            suite.kill()
        client.wait_lines(KILLS * CALLS_A_KILL)
        assert client.end() == 0, client.tail()
        assert set(client.lines) == {f"{known} REQUEST_STATE_FINISHED"}
        return Killed(KILLS * CALLS_A_KILL, KILLS * CALLS_A_KILL - len(client.lines), client.logged(REPEATED))
