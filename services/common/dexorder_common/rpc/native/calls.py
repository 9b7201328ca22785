"""One call: from its request through its handler to its status.

    request whole, or its first bytes -> handler, at once -> answer
                                            | it waits: goes on in a callback
                                            `- reset, lost connection, deadline: it is cancelled

A call has ended for its client when its status was sent or its stream is gone; it ends here when its handler has left.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import structlog
from grpc.aio import AbortError

from dexorder_common.model.errors import Code, Exhausted, InvalidRequest, SuiteError
from dexorder_common.rpc.native.context import CallContext, Head
from dexorder_common.rpc.native.framing import (
    Deframer,
    check_encoding,
    expanded,
    frame,
    frames,
    only_message,
    too_large,
)
from dexorder_common.rpc.native.inline_task import InlineTask
from dexorder_common.rpc.native.line import CallerLeft, Line
from dexorder_common.rpc.native.metadata import parse_timeout
from dexorder_common.rpc.native.methods import Method

log = structlog.get_logger(__name__)
_UNREAD = "too many bytes of answers on this connection wait for their client to read"


class _Expired(SuiteError):
    code = Code.DEADLINE_EXCEEDED


class Call(CallContext):
    """A call with one request message; `streaming.StreamingCall` has many."""

    # Values of most calls, which need none of their own.
    _deframer: Deframer | None = None
    _is_gzip = False
    _task: InlineTask[Any] | None = None
    _timer: asyncio.TimerHandle | None = None
    _has_head = False
    _is_gone = False
    """Whether the client no longer waits for the call."""
    _unread = 0
    """Bytes of sent data that has not left; the next has to wait for that."""
    _room: asyncio.Future[None] | None = None
    _requests: Sequence[bytes] = ()
    _held = 0

    def __init__(self, stream: int, head: Head, method: Method, line: Line, loop: asyncio.AbstractEventLoop) -> None:
        self._stream = stream
        self._head = head
        self._method = method
        self._line = self._caller = line
        self._loop = loop

    # ---- reports of the connection

    def start(self, body: bytes, *, ended: bool) -> None:
        """Take the head of a request and the part of its body that has arrived."""
        try:
            if (timeout := self._head.get("grpc-timeout")) is not None:
                self._deadline_s = self._loop.time() + parse_timeout(timeout)
            self._is_gzip = check_encoding(self._head.get("grpc-encoding"))
            self.invocation_metadata()
            self._take_first(body, ended=ended)
        except SuiteError as error:
            self.refuse(error)

    def start_whole(self, message: bytes, timeout: float | None) -> None:
        """Take a request that the session has found to be one valid message, with valid fields."""
        try:
            if timeout is not None:
                self._deadline_s = self._loop.time() + timeout
            self._run(message)
        except SuiteError as error:
            self.refuse(error)

    def feed(self, body: bytes, *, ended: bool) -> None:
        """Take more of the request's body."""
        if self._is_gone:
            return
        try:
            self._take(body, ended=ended)
        except SuiteError as error:
            self.refuse(error)

    def leave(self) -> None:
        """Note that the client has left: it has reset the stream, or the connection is lost."""
        if self._is_gone:
            return
        self._is_cancelled = True
        self._drop()

    def writable(self) -> None:
        """Note that the sent data has left."""
        self._note_unread(0)
        resolve(self._room)
        if self._task is None and not self._is_gone:  # the answer was sent, its status waited for it
            self._finish()
            self._close()

    # ---- the request

    def _take_first(self, body: bytes, *, ended: bool) -> None:
        message = only_message(body, self._line.limits.max_message_bytes) if ended else None
        if message is not None:
            self._run(message)
            return
        self._deframer = Deframer(self._line.limits.max_message_bytes)
        self._set_timer(self._line.limits.request_seconds)
        self._take(body, ended=ended)

    def _take(self, body: bytes, *, ended: bool) -> None:
        assert self._deframer is not None
        self._deframer.feed(body)
        while (message := self._deframer.take()) is not None:
            found = expanded(message, self._line.limits.max_message_bytes, is_gzip=self._is_gzip)
            self._requests = *self._requests, found
            if len(self._requests) > 1:
                raise InvalidRequest("the request has more than one message; the method takes one")
        self._hold(self._deframer.pending)
        if not ended:
            self._line.consume(self._stream)
            return
        self._deframer.finish()
        if not self._requests:
            raise InvalidRequest("the request message is missing")
        whole, self._requests = self._requests[0], ()
        self._run(whole)

    def _hold(self, size: int) -> None:
        """Note how many bytes of a message that is not whole the call holds."""
        more, self._held = size - self._held, size
        if more and not self._line.hold(more) and more > 0:
            raise Exhausted("too many bytes of unfinished requests on this connection")

    def _run(self, message: bytes) -> None:
        deserialize = self._method.deserialize
        self._begin(deserialize(message) if deserialize else message)

    # ---- the handler

    def _begin(self, request: Any) -> None:
        if self._deadline_s is not None and self.time_remaining() == 0:
            self._expire()
            return
        answers = self._method.behavior(request, self)
        if self._method.response_streaming:
            answers = self._send_all(answers)
        task = InlineTask(answers, self._loop, self._line.context(), self._left)
        try:
            is_done, result = task.first()
        except (Exception, asyncio.CancelledError) as error:
            self._fail(error)
            return
        if is_done:
            self._succeed(result)
            return
        self._task = task
        self._set_timer(None)
        if self._is_gone:  # the deadline, or the client, was faster than the first wait
            task.cancel()

    def _left(self, result: Any, error: BaseException | None) -> None:
        self._task = None
        if error is None:
            self._succeed(result)
        else:
            self._fail(error)

    async def _send_all(self, answers: Any) -> None:
        if inspect.isawaitable(answers):  # a handler that writes to the context itself
            await answers
            return
        async with aclosing(answers):
            async for answer in answers:
                await self.write(answer)
        while self._unread and not self._is_gone:
            await self._until_writable()  # the status follows the answers, and the client can still leave

    def _succeed(self, answer: Any) -> None:
        if not self._is_gone and not (self._method.response_streaming or self._code):
            if not self._answer(answer):
                return  # `writable` continues
        elif not self._is_gone:
            self._finish()
        self._close()

    def _answer(self, answer: Any) -> bool:
        """Send the answer of a unary method; False if its status has to wait."""
        message = self._serialized(answer)
        if len(message) > self._line.limits.max_message_bytes:
            self.refuse(too_large(len(message), self._line.limits.max_message_bytes))
            return False
        if not self._line.has_room(len(message)):
            self.refuse(Exhausted(_UNREAD))
            return False
        if not (self._has_head or self._initial or self._trailing or self._details):
            self._has_head = True
            sent = self._line.respond(self._stream, message)
            self._is_gone, self._is_done, self._is_cancelled = sent is not False, sent is True, sent is None
        else:
            self._send_head()
            sent = self._line.data(self._stream, frame(message))
            if sent:
                self._finish()
        if sent is False:
            self._note_unread(len(message))
        return sent is not False

    def _fail(self, error: BaseException) -> None:
        if not self._is_gone:
            if isinstance(error, asyncio.CancelledError):
                self._code = self._code or Code.CANCELLED
            elif isinstance(error, SuiteError):  # an answer that is too large; the policy maps errors of handlers
                self._code, self._details = error.code, str(error)
            elif not isinstance(error, AbortError):
                log.error("call failed in its transport", exc_info=error)
                self._code, self._details = Code.UNKNOWN, f"Unexpected {type(error)}: {error}"
            self._finish()
        self._close()

    # ---- its end

    def refuse(self, error: SuiteError) -> None:
        """End the call with a status of the transport."""
        if not self._is_gone:
            self._line.finish(self._stream, error.code, str(error), (), has_head=self._has_head)
        self._drop()

    def _expire(self) -> None:
        self._timer = None
        if self._unread:  # a status would wait behind the data that the client does not read
            self._line.reset(self._stream)
            self._drop()
        elif self.time_remaining() == 0:
            self.refuse(_Expired("Deadline Exceeded"))
        else:
            self.refuse(_Expired(f"the request was not whole after {self._line.limits.request_seconds:g} s"))

    def _finish(self) -> None:
        """Send the status that the handler has given."""
        self._is_done = self._is_gone = True
        self._line.finish(self._stream, self._code, self._details, self._trailing, has_head=self._has_head)

    def _drop(self) -> None:
        """Let the handler leave."""
        self._is_gone = True
        resolve(self._room)
        if self._task is None:
            self._close()
        else:
            self._task.cancel()

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._held:
            self._line.hold(-self._held)
            self._held = 0
        if self._unread:
            self._note_unread(0)
        self._line.ended(self._stream)
        callbacks, self._callbacks = self._callbacks, ()
        for callback in callbacks:
            try:
                callback(self)
            except Exception as error:
                log.error("a call's done callback failed", exc_info=error)

    def _set_timer(self, seconds: float | None) -> None:
        """End the call at its deadline, or after some seconds if that is earlier; None for the deadline alone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        times_s = [] if self._deadline_s is None else [self._deadline_s]
        if seconds is not None:
            times_s.append(self._loop.time() + seconds)
        if times_s:
            self._timer = self._loop.call_at(min(times_s), self._expire)

    # ---- what handlers send

    async def send_initial_metadata(self, initial_metadata: Any) -> None:
        """Send metadata before the first answer; with a unary method's answer, in one write."""
        if self._is_gone:
            raise CallerLeft("the call has ended")
        self._initial = tuple((key, value) for key, value in initial_metadata)
        if self._method.response_streaming:
            self._send_head()

    def _send_head(self) -> None:
        if not self._has_head:
            self._has_head = True
            self._line.head(self._stream, self._initial)

    async def write(self, message: Any) -> None:
        """Send one answer; wait while an earlier one has not left."""
        await self.write_all((message,))

    async def write_all(self, messages: Sequence[Any]) -> None:
        """Send many answers in one write."""
        framed = [self._serialized(each) for each in messages]
        largest, limit = max(map(len, framed), default=0), self._line.limits.max_message_bytes
        if largest > limit:
            raise too_large(largest, limit)
        while self._unread and not self._is_gone:
            await self._until_writable()
        if self._is_gone:
            raise CallerLeft("the caller has left")
        self._send_head()
        data = frames(framed)
        if not self._line.has_room(len(data)):
            raise Exhausted(_UNREAD)
        if framed and not self._line.data(self._stream, data):
            self._note_unread(len(data))

    def _note_unread(self, size: int) -> None:
        """Note how many bytes of answers wait for the client."""
        more, self._unread = size - self._unread, size
        self._line.note_unread(more)

    async def _until_writable(self) -> None:
        if self._room is None or self._room.done():
            self._room = self._loop.create_future()
        await asyncio.shield(self._room)

    def _serialized(self, answer: Any) -> bytes:
        serialize = self._method.serialize
        data: bytes = serialize(answer) if serialize else answer
        return data


def resolve(future: asyncio.Future[None] | None) -> None:
    """Continue the coroutine that waits for a future."""
    if future is not None and not future.done():
        future.set_result(None)
