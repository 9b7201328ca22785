"""One connection to a UDF in use: frames out, responses in, keepalive. Runs only inside the caller's calls.

There is no thread: a caller that waits for the UDF also reads from it, so its output is taken all the time in which its
silence counts. Between calls the pipe or socket bounds the bytes under way.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from dexorder_protos.udf import udf_pb2 as pb
from dexorder_udf import messages
from dexorder_udf.connections import UdfConnection
from dexorder_udf.errors import ProtocolError, UdfError, UdfGone, UdfKilled, UdfStopped, UdfUnreachable
from dexorder_udf.framing import FrameSplitter, shown, text_hint
from dexorder_udf.pace import PIECE_BYTES, Pace, cut
from dexorder_udf.points import Batch, Point
from dexorder_udf.received import ReceivedItems
from dexorder_udf.session import Edge, HostSession, MessageKind
from dexorder_udf.spec import UdfSpec

_READ_BYTES = 256 * 1024
_WAIT_SECONDS = 0.5
_SILENCE = 1.2
"""Times ``timeout_seconds`` that a UDF may be silent: two keepalives were not answered then."""
_KEEPALIVE_SECONDS = 0.5
"""Longest time between two keepalives while the host waits: a write shows that a socket takes no more."""
_LAST_WORDS_SECONDS = 0.5
"""Time in which a UDF that takes no more input may say why, or end."""
_ITEM_BYTES = 500
"""Memory of an output in addition to its bytes on the wire."""
T = TypeVar("T")


class Link:
    """A connection with the state of its session and the output that has arrived."""

    def __init__(
        self,
        spec: UdfSpec,
        connection: UdfConnection,
        stop: threading.Event,
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        """Take a connection; ``on_wait`` is called twice a second while the UDF is waited for."""
        self._spec = spec
        self._stop = stop
        self._on_wait = on_wait
        self._told_at = time.monotonic()
        self._connection = connection
        self._session = HostSession()
        self._splitter = FrameSplitter(spec.frame_limit_bytes, messages.FIRST_BYTES)
        self._chunks: deque[bytes] = deque()
        self._written = 0  # bytes of the first chunk that are already written
        self._outputs = ReceivedItems(Edge.STREAM)
        self._output_bytes = 0
        self._answers: dict[MessageKind, pb.Response] = {}
        self._keepalive_at = time.monotonic()
        self._alive_at = self._progress_at = self._keepalive_at
        self._pace = Pace(spec.timeout_seconds)
        self._mark = self._unasked = 0

    # Requests

    def info(self) -> messages.UdfInfo:
        """Ask for the UDF's description; see `init` for the errors."""
        answer = self._ask(MessageKind.INFO, messages.encode_message(pb.InfoRequest()))
        return self._checked(lambda: messages.read_info(answer.info))

    def init(self, request: bytes, info: messages.UdfInfo) -> None:
        """Initialise the UDF.

        Raises:
            UdfError: It refuses, with its own words, or breaks the protocol.
            UdfGone: It ends or does not answer.
        """
        self._session.provides(info.provides)
        self._outputs = ReceivedItems(info.provides)
        answer = self._ask(MessageKind.INIT, request).init
        if not answer.success:
            raise UdfError(self._spec.name, f"init failed: {answer.error or 'it gave no reason'}")

    def restore(self, snapshot: bytes) -> None:
        """Give back a state; see `init` for the errors."""
        request = messages.encode_message(pb.RestoreRequest(snapshot=snapshot))
        answer = self._ask(MessageKind.RESTORE, request).restore
        if not answer.success:
            raise UdfError(self._spec.name, f"restore failed: {answer.error or 'it gave no reason'}")

    def feed(self, chunk: bytes) -> None:
        """Write a chunk of whole data frames at the UDF's pace, and take its answers."""
        self._session.sends(MessageKind.POINT)
        while chunk:
            self._run(lambda: self._pace.room > 0, "take its input", "answer_seconds", keepalive=True)
            piece, chunk = cut(chunk, min(self._pace.room, PIECE_BYTES))
            self._mark = max(self._mark + 1, time.time_ns())
            self._pace.sends(self._mark, len(piece), time.monotonic())
            self._chunks.append(piece + messages.encode_message(pb.KeepaliveRequest(time=self._mark)))
            self._run(lambda: not self._chunks, "take its input", "answer_seconds", keepalive=True)

    def settle(self) -> None:
        """Wait until the UDF has taken the input under way. Of an agent that answers in order, all output is there."""
        self._run(lambda: not self._pace.is_under_way, "take its input", "answer_seconds", keepalive=True)

    def look(self) -> None:
        """Take what has arrived, without a wait; UdfGone if the UDF has ended."""
        if self._has_ended(0.0):
            raise self._ended()

    def snapshot(self) -> tuple[list[Point | Batch], bytes]:
        """Return the outputs of everything that was fed, and the state after it."""
        request = messages.encode_message(pb.SnapshotRequest())
        answer = self._ask(MessageKind.SNAPSHOT, request, "answer_seconds", keepalive=True)
        return self.take_outputs(), answer.snapshot.snapshot

    def drain(self, seconds: float) -> bool:
        """End the input and read until the UDF ends its output; return False if it has not within this time."""
        self._connection.half_close()
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if self._has_ended(left):
                return True
        return False

    @property
    def output_bytes(self) -> int:
        """Memory of the outputs that have arrived, about."""
        return self._output_bytes

    def take_outputs(self) -> list[Point | Batch]:
        """Return the outputs that are complete, and forget them."""
        self._output_bytes = 0
        return self._outputs.take()

    # The loop

    def _ask(
        self, kind: MessageKind, request: bytes, setting: str = "start_seconds", *, keepalive: bool = False
    ) -> pb.Response:
        """Send a request and return its answer; see `_run`."""
        self._session.sends(kind)
        self._chunks.append(request)
        self._answers.pop(kind, None)
        self._run(lambda: kind in self._answers, f"answer {kind.name.lower()}", setting, keepalive=keepalive)
        return self._answers.pop(kind)

    def _run(self, done: Callable[[], bool], act: str, setting: str, *, keepalive: bool) -> None:
        """Write and read until ``done``.

        Args:
            done: Whether the wait is over.
            act: Awaited act, for the error.
            setting: Name of the setting with the longest time for it.
            keepalive: Whether silence is an error, too, and output and the acceptance of input prolong the time.
        """
        seconds: float = getattr(self._spec, setting)
        # The time before this call was ours: the UDF may have been blocked by us.
        self._alive_at = self._progress_at = now = time.monotonic()
        deadline = now + seconds
        poll = select.poll()
        read_fd, write_fd, pid_fd = self._connection.read_fd, self._connection.write_fd, self._connection.pid_fd
        if pid_fd >= 0:
            poll.register(pid_fd, select.POLLIN)
        while not done():
            poll.register(read_fd, select.POLLIN | (select.POLLOUT if self._chunks and read_fd == write_fd else 0))
            if write_fd != read_fd:  # without a chunk it only says that the other end is closed
                poll.register(write_fd, select.POLLOUT if self._chunks else 0)
            events = dict(poll.poll(max(0.0, min(_WAIT_SECONDS, deadline - now)) * 1000))
            if events.get(read_fd, 0) & ~select.POLLOUT and self._read() < 0:
                raise self._ended()
            if pid_fd in events:
                self._read_rest()
                if done():
                    return
                raise self._ended()
            if self._chunks and events.get(write_fd, 0) & ~select.POLLIN:
                self._write()
            elif write_fd != read_fd and events.get(write_fd, 0) & select.POLLERR and not done():
                raise self._input_closed()
            if self._stop.is_set():
                raise UdfStopped(self._spec.name, "it was stopped")
            now = time.monotonic()
            if now - self._told_at >= _WAIT_SECONDS:
                deadline += self._tell(now)
                now = self._told_at
            if keepalive:
                deadline = self._progress_at + seconds
            if now > deadline:
                reason = f"it did not {act} within {seconds:g} s ({setting})"
                raise UdfGone(self._spec.name, reason + self._unfinished())
            if keepalive:
                self._watch(now)

    def _tell(self, now: float) -> float:
        """Call ``on_wait`` without counting its time for the UDF, and return the time."""
        self._on_wait()
        self._told_at = time.monotonic()
        spent = self._told_at - now
        self._alive_at += spent
        self._progress_at += spent
        return spent

    def _ended(self) -> UdfGone:
        reason = self._connection.ending() + self._unfinished()
        if self._connection.is_away():
            return UdfUnreachable(self._spec.name, reason)
        return (UdfKilled if self._connection.was_killed() else UdfGone)(self._spec.name, reason)

    def _watch(self, now: float) -> None:
        silence = _SILENCE * self._spec.timeout_seconds
        if now - self._alive_at > silence:
            raise UdfGone(self._spec.name, f"keepalive: it was silent for {silence:g} s{self._unfinished()}")
        if (
            now - self._keepalive_at >= min(self._spec.timeout_seconds / 2, _KEEPALIVE_SECONDS)
            and len(self._chunks) < 2
        ):
            self._keepalive_at = now
            # after the chunk that is partly written, before the others
            request = messages.encode_message(pb.KeepaliveRequest(time=time.time_ns()))
            self._chunks.insert(1 if self._written else 0, request)

    def _write(self) -> None:
        while self._chunks:
            chunk = memoryview(self._chunks[0])[self._written :]
            try:
                count = os.write(self._connection.write_fd, chunk)
            except BlockingIOError:
                return
            except OSError:
                raise self._input_closed() from None
            if count < len(chunk):
                self._written += count
                return
            self._chunks.popleft()
            self._written = 0

    def _input_closed(self) -> UdfGone:
        """Return why no more input is taken. An error that the UDF sent before it ended is raised."""
        deadline = time.monotonic() + _LAST_WORDS_SECONDS
        while (left := deadline - time.monotonic()) > 0 and not self._stop.is_set():
            if self._has_ended(left):
                return self._ended()
        return UdfGone(self._spec.name, "it closed its input" + self._unfinished())

    def _has_ended(self, seconds: float) -> bool:
        """Wait this long for output or the end of the process, and take the output; return whether it is the last."""
        poll = select.poll()
        for fd in (self._connection.read_fd, self._connection.pid_fd):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        events = dict(poll.poll(seconds * 1000))
        if self._connection.pid_fd in events:
            self._read_rest()
            return True
        return bool(events) and self._read() < 0

    def _read_rest(self) -> None:
        """Take the output that has arrived of a process that has ended; a child of it may still hold the other end."""
        while self._read() > 0:
            pass

    def _read(self) -> int:
        """Take the arrived bytes; return their number, -1 at the end of the stream."""
        try:
            data = os.read(self._connection.read_fd, _READ_BYTES)
        except BlockingIOError:
            return 0
        except ConnectionError:
            return -1
        if not data:
            return -1
        self._alive_at = time.monotonic()
        self.take(data)
        return len(data)

    def take(self, data: bytes) -> None:
        """Take bytes that the UDF sent.

        Raises:
            UdfError: It reports an error or breaks the protocol.
        """
        self._checked(lambda: self._take(self._splitter.feed(data)))
        self._checked(self._splitter.check)

    def _take(self, bodies: Sequence[bytes]) -> None:
        add_known, takes_points, unasked = self._outputs.add_known, self._session.takes_points, self._unasked
        for body in bodies:
            self._output_bytes += len(body)
            if not (takes_points and add_known(body)):
                self._take_response(body)
                takes_points = self._session.takes_points
        count = len(bodies) - (self._unasked - unasked)
        self._output_bytes += count * _ITEM_BYTES
        if count:
            self._progress_at = self._alive_at
        if self._output_bytes > self._spec.output_limit_bytes:
            raise ProtocolError(f"it sent more than {self._spec.output_limit_bytes:,} bytes since its last snapshot")

    def _take_response(self, body: bytes) -> None:
        response = messages.decode_response(body)
        kind = messages.kind_of(response)
        self._session.receives(kind, response.begin.size if kind is MessageKind.BEGIN else 0)
        if self._outputs.add(body, response):
            return
        if kind is MessageKind.ERROR:
            raise UdfError(self._spec.name, f"it reports: {response.error.error or 'an error without a reason'}")
        if kind is not MessageKind.KEEPALIVE:
            self._answers[kind] = response
        else:
            self._unasked += 1
            if self._pace.takes(response.keepalive.time, time.monotonic()):
                self._progress_at = self._alive_at

    def _checked(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except ProtocolError as error:
            raise UdfError(self._spec.name, str(error)) from None

    def _unfinished(self) -> str:
        pending = self._splitter.pending
        if not pending:
            return ""
        return f"; a frame is incomplete, it starts with {shown(pending)}{text_hint(pending)}"
