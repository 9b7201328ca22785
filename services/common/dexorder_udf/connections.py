"""Connections of the host to a UDF: pipes to a child process, a unix socket, or gRPC.

Each is a pair of file descriptors, so that one loop serves all of them.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from dexorder_udf.errors import UdfError, UdfStopped, UdfUnreachable
from dexorder_udf.spec import UdfSpec

Log = Callable[[str], None]

_PIPE_BYTES = 1024 * 1024
_LINE_BYTES = 4096
_LAST_LINES = 8
_POLL_SECONDS = 0.01
_LOOK_MS = 200


class UdfConnection(Protocol):
    """Open connection. ``read_fd`` and ``write_fd`` do not block; they are the same for a socket.

    ``pid`` is the id of the process, if it is our child.
    """

    read_fd: int
    write_fd: int
    pid: int | None = None
    pid_fd: int = -1
    """Readable once the process has ended; -1 without a process."""

    def half_close(self) -> None:
        """Tell the UDF that the input has ended; its output can still be read."""

    def ending(self) -> str:
        """Return how the UDF ended, for an error, once reading or writing has failed."""

    def was_killed(self) -> bool:
        """Return whether a signal has ended its process, as far as it can be known; asked after ``ending``."""
        return False

    def is_away(self) -> bool:
        """Return whether no server is at the address; asked after ``ending``."""
        return False

    def close(self, grace_seconds: float) -> None:
        """Close everything. A process that still runs gets the grace, SIGTERM, the grace again, and SIGKILL."""


def open_connection(spec: UdfSpec, on_log: Log, stop: threading.Event) -> UdfConnection:
    """Start the process, or connect to the socket or the gRPC server.

    Raises:
        UdfError: The program can't be started, or a setting of gRPC is invalid.
        UdfUnreachable: No server listens within ``connect_seconds``.
        UdfStopped: ``stop`` was set.
    """
    if spec.prog:
        return ProcessConnection(spec, on_log)
    if spec.socket:
        return SocketConnection(spec, stop)
    from dexorder_udf.grpc_connection import GrpcConnection

    return GrpcConnection(spec, stop)


class ProcessConnection(UdfConnection):
    """A child process with its stdin and stdout. Lines of its stderr go to ``on_log``, and the last ones into errors.

    It is the leader of a process group, so that its children end with it and Ctrl-C in a terminal does not reach it.
    """

    def __init__(self, spec: UdfSpec, on_log: Log) -> None:
        assert spec.prog
        try:
            self._process = subprocess.Popen(
                [spec.prog, *spec.args],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **spec.env},
                bufsize=0,
                process_group=0,
            )
        except (OSError, ValueError) as error:
            raise UdfError(spec.name, f"{spec.prog} can't be started: {error}") from None
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self.pid: int | None = self._process.pid
        self.pid_fd = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else -1
        self._on_log = on_log
        self._is_closing = False
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self.write_fd = self._process.stdin.fileno()
        self.read_fd = self._process.stdout.fileno()
        for each in (self.write_fd, self.read_fd):
            os.set_blocking(each, False)
            with suppress(OSError):  # the user's limit of pipe memory is reached; the default size works, too
                fcntl.fcntl(each, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._stderr = threading.Thread(target=self._read_stderr, name=f"stderr of UDF {spec.name}", daemon=True)
        self._stderr.start()

    def half_close(self) -> None:
        """Close stdin."""
        assert self._process.stdin
        with suppress(OSError):
            self._process.stdin.close()

    def ending(self) -> str:
        """Return the exit code or signal, and the last line on stderr."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5)
            self._stderr.join(0.3)  # its last lines before it died; a child of it may keep stderr open
        code = self._process.returncode
        if code is None:
            text = "it closed its stdout"
        elif code < 0:
            text = f"its process was ended by {_signal_name(-code)}"
        else:
            text = f"its process ended with exit code {code}"
        return f"{text}; its last line on stderr: {self._last_lines[-1]}" if self._last_lines else text

    def was_killed(self) -> bool:
        """Return whether the process was ended by a signal."""
        return (self._process.returncode or 0) < 0

    def close(self, grace_seconds: float) -> None:
        """Close stdin, then end the process within twice the grace."""
        self.half_close()
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                self._signal(number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_seconds if number is not signal.SIGKILL else None)
                break
        self._signal(signal.SIGKILL)  # children that it left running
        if self.pid_fd >= 0:
            os.close(self.pid_fd)
            self.pid_fd = -1
        assert self._process.stdout and self._process.stderr
        self._process.stdout.close()
        self._is_closing = True
        self._stderr.join(1)
        if not self._stderr.is_alive():
            self._process.stderr.close()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _read_stderr(self) -> None:
        assert self._process.stderr
        fd, rest = self._process.stderr.fileno(), b""
        os.set_blocking(fd, False)  # the last look of a closing one may find no output
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        while True:
            if not poll.poll(_LOOK_MS) and not self._is_closing:
                continue
            try:
                data = os.read(fd, 65536)
            except OSError:
                data = b""
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > _LINE_BYTES or (rest and not data):
                lines.append(rest)
                rest = b""
            for each in lines:
                text = each[:_LINE_BYTES].decode("utf-8", "replace").rstrip()
                if text:
                    self._last_lines.append(text)
                    self._on_log(text)
            if not data:
                return


class SocketConnection(UdfConnection):
    """A connection to a unix socket. Until a server listens, connecting is tried again, at growing intervals."""

    def __init__(self, spec: UdfSpec, stop: threading.Event) -> None:
        assert spec.socket
        deadline = time.monotonic() + spec.connect_seconds
        tries = 0
        while True:
            self._socket = socket.socket(socket.AF_UNIX)
            try:
                self._socket.settimeout(max(_POLL_SECONDS, deadline - time.monotonic()))
                self._socket.connect(spec.socket)
                break
            except OSError as error:
                self._socket.close()
                tries += 1
                pause = min(spec.backoff(tries), 1.0)
                if time.monotonic() + pause >= deadline:
                    raise UdfUnreachable(
                        spec.name,
                        f"no server accepts connections at {spec.socket} within {spec.connect_seconds:g} s: {error}",
                    ) from None
                if stop.wait(max(pause, _POLL_SECONDS)):
                    raise UdfStopped(spec.name, "it was stopped") from None
        self._socket.setblocking(False)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            self._socket.setsockopt(socket.SOL_SOCKET, option, _PIPE_BYTES)
        self.read_fd = self.write_fd = self._socket.fileno()

    def half_close(self) -> None:
        """End our direction."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def ending(self) -> str:
        """Say that the UDF closed the connection; a socket does not give an exit code."""
        return "it closed the connection"

    def close(self, grace_seconds: float) -> None:
        """Close the socket."""
        self._socket.close()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
