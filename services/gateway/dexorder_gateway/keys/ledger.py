"""Calls with keys of one Kafka cluster: each claims its key, and the one that was first writes the record."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import structlog

from dexorder_common.model.errors import AlreadyExists, Exhausted, InvalidRequest, SuiteError, Unavailable, Uncertain
from dexorder_common.rpc.streams import retrieved
from dexorder_gateway.keys.claims import (
    KEY_SECONDS,
    TOKEN_BYTES,
    Claim,
    Entry,
    KnownKeys,
    Outcome,
    RecordKey,
    Result,
    decode,
    encode,
)

log = structlog.get_logger(__name__)
Placed = tuple[int, int]
"""Partition and offset."""
Placing = asyncio.Future[Placed]
MAX_CALLS = 10_000
"""Calls with keys that wait in a gateway; one more is refused."""
_LIFE_BYTES = 8


class Read(NamedTuple):
    """Record of the topic of keys, with the time of Kafka's log."""

    key: bytes
    value: bytes
    at_ms: int


class Reader:
    """Reader of the topic of keys; see `dexorder_gateway.keys.topic`.

    Attributes:
        failure: Why the topic can't be read; empty while it can.
    """

    failure = ""

    async def close(self) -> None:
        """Stop reading."""


Take = Callable[[Iterable[Read]], None]


@dataclass(eq=False, slots=True)
class _Call:
    produce: Callable[[], Placing]
    decided: asyncio.Future[Placing | Entry]
    until_s: float


class KeyLedger:
    """Use it from one event loop.

    Args:
        prepare: Makes the topic of keys if it is missing.
        follow: Starts to pass its records to the function given, in their order.
        append: Queues a record of it.
        wait_seconds: Longest time for a claim, and for the outcome of another call.
    """

    def __init__(
        self,
        prepare: Callable[[], Awaitable[None]],
        follow: Callable[[Take], Reader],
        append: Callable[[bytes, bytes], Placing],
        *,
        wait_seconds: float,
    ) -> None:
        self._prepare = prepare
        self._follow = follow
        self._append = append
        self._wait_s = min(wait_seconds, KEY_SECONDS)
        self._life = os.urandom(_LIFE_BYTES)
        self._numbers = count()
        self._known = KnownKeys()
        self._reader: Reader | None = None
        self._is_there = False  # the topic
        self._starting = asyncio.Lock()
        self._waiting = 0
        self._calls: dict[bytes, _Call] = {}
        self._writing: set[asyncio.Task[Placed]] = set()
        self._outcomes: WeakValueDictionary[bytes, asyncio.Future[Outcome]] = WeakValueDictionary()

    async def once(self, key: RecordKey, contents: bytes, produce: Callable[[], Placing]) -> Placing:
        """Return the place of the record with this key, which ``produce`` queues if no call was earlier, anywhere.

        Args:
            contents: Content of the record, which shows that a key is used for another record.

        Raises:
            InvalidRequest: The key is too long.
            AlreadyExists: The key belongs to another record.
            Unavailable: Kafka does not take claims, or does not give them; the record is not written.
            Uncertain: An earlier call may have written the record, and does not know it or has not said so.
            Exhausted: Too many calls wait.
        """
        digest = key.checked().digest()
        if self._waiting >= MAX_CALLS:
            raise Exhausted(f"{self._waiting} calls with an idempotency_key wait already")
        self._waiting += 1
        try:
            until_s = asyncio.get_running_loop().time() + self._wait_s
            await self._start()
            while True:
                claim = Claim(self._token(), _sha256(key.caller.encode()), _sha256(contents))
                decided = await self._decision(digest, claim, produce, until_s)
                if not isinstance(decided, Entry):
                    return decided
                if decided.claim.record != claim.record:
                    raise AlreadyExists(
                        f"idempotency_key {key.text!r} belongs to another record of topic {key.topic!r}"
                    )
                outcome = await self._outcome(decided, until_s)
                if outcome.result is Result.UNCERTAIN:
                    raise Uncertain(
                        "an earlier call with this idempotency_key may have written the record or not: "
                        "Kafka did not answer it"
                    )
                if outcome.result is Result.PLACED:
                    placed: Placing = asyncio.get_running_loop().create_future()
                    placed.set_result((outcome.partition, outcome.offset))
                    return placed
        finally:
            self._waiting -= 1

    async def _start(self) -> None:
        async with self._starting:
            if not self._is_there:
                await self._prepare()
                self._is_there = True
            if self._reader is None:
                self._reader = self._follow(self.read)

    def _token(self) -> bytes:
        return self._life + next(self._numbers).to_bytes(TOKEN_BYTES - _LIFE_BYTES)

    # ---- a call

    async def _decision(
        self, key: bytes, claim: Claim, produce: Callable[[], Placing], until_s: float
    ) -> Placing | Entry:
        """Append a claim, and return its result: the record that this call writes, or the earlier call's entry."""
        loop = asyncio.get_running_loop()
        call = _Call(produce, loop.create_future(), until_s)
        call.decided.add_done_callback(retrieved)
        self._calls[claim.token] = call
        try:
            appended = self._append(key, encode(claim))
            appended.add_done_callback(lambda done: self._claim_appended(call, done))
            await asyncio.wait((call.decided,), timeout=until_s - loop.time())
        finally:
            # A caller that is gone does not write: `read` then gives its claim up.
            self._calls.pop(claim.token, None)
        if not call.decided.done():
            raise _unusable((self._reader and self._reader.failure) or f"no answer within {self._wait_s:g} s")
        return call.decided.result()

    def _claim_appended(self, call: _Call, appended: Placing) -> None:
        error = None if appended.cancelled() else appended.exception()
        if error is None:
            return
        self._is_there &= not isinstance(error, InvalidRequest)  # it was deleted
        if not call.decided.done():
            call.decided.set_exception(_unusable(str(error)))

    async def _outcome(self, entry: Entry, until_s: float) -> Outcome:
        """Wait for the outcome of an earlier call's record."""
        if entry.outcome is not None:
            return entry.outcome
        loop, token = asyncio.get_running_loop(), entry.claim.token
        said = self._outcomes.get(token)
        if said is None:
            said = self._outcomes[token] = loop.create_future()
        await asyncio.wait((said,), timeout=until_s - loop.time())
        if not said.done():
            raise Uncertain(
                f"an earlier call with this idempotency_key has not said within {self._wait_s:g} s "
                "whether it wrote the record; it may have been written or may still be"
            )
        return said.result()

    # ---- records in Kafka

    def read(self, records: Iterable[Read]) -> None:
        """Take records of the topic of keys, in their order."""
        for key, value, at_ms in records:
            record = decode(value)
            if isinstance(record, Claim):
                self._decide(key, record, at_ms)
            elif record is not None:
                self._known.end(key, record)
                if (said := self._outcomes.get(record.token)) is not None and not said.done():
                    said.set_result(record)

    def _decide(self, key: bytes, claim: Claim, at_ms: int) -> None:
        entry = self._known.claim(key, claim, at_ms)
        call = self._calls.pop(claim.token, None)
        if call is not None and (call.decided.done() or asyncio.get_running_loop().time() > call.until_s):
            call = None  # its caller has been informed, or is informed next, that its record is not written
        if entry.claim is claim:
            if call is not None:
                self._write(key, claim.token, call)
            elif claim.token.startswith(self._life):
                self._say(key, Outcome(claim.token, Result.REFUSED))
        elif call is not None:
            call.decided.set_result(entry)

    def _write(self, key: bytes, token: bytes, call: _Call) -> None:
        try:
            record = call.produce()
        except Exception as error:  # any error is this caller's
            self._say(key, Outcome(token, Result.REFUSED))
            call.decided.set_exception(error)
            return
        task = asyncio.get_running_loop().create_task(self._written(key, token, record))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        task.add_done_callback(retrieved)
        placed = asyncio.shield(task)  # a caller that goes away does not keep the outcome from the others
        placed.add_done_callback(retrieved)
        call.decided.set_result(placed)

    async def _written(self, key: bytes, token: bytes, record: Placing) -> Placed:
        """Return the record's place once every gateway can know it."""
        try:
            partition, offset = await record
        except SuiteError as error:
            result = Result.UNCERTAIN if isinstance(error, Uncertain) else Result.REFUSED
            self._say(key, Outcome(token, result))
            raise
        said = self._say(key, Outcome(token, Result.PLACED, partition, offset))
        if said is not None:
            with suppress(SuiteError):
                await said
        return partition, offset

    def _say(self, key: bytes, outcome: Outcome) -> Placing | None:
        """Append an outcome; without it a repeated call is Uncertain."""
        try:
            said = self._append(key, encode(outcome))
        except SuiteError as error:
            log.warning("the outcome of a record with a key is not kept", reason=str(error))
            return None
        said.add_done_callback(retrieved)
        return said

    # ---- the end

    async def drain(self, timeout_seconds: float) -> None:
        """Wait until the records of all decided and undecided calls, and their outcomes, are in Kafka."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_seconds
        while self._calls or self._writing:
            busy: list[asyncio.Future[Any]] = [*(call.decided for call in self._calls.values()), *self._writing]
            left_s = until_s - loop.time()
            if left_s <= 0:
                return
            await asyncio.wait(busy, timeout=left_s)

    async def close(self) -> None:
        """Stop reading."""
        if self._reader is not None:
            await self._reader.close()


def _unusable(why: str) -> Unavailable:
    return Unavailable(f"the topic of keys can't be used: {why}; the record is not written")


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
