"""Which call with a caller's key writes its record: the first one in the order of one Kafka partition. Pure.

Each call appends a claim to the topic of keys, and is decided when its gateway reads the claim. All gateways read the
same order, so they decide alike, however many there are, come and go.

    the key has            a claim that is read     its call
    no entry               becomes the entry        writes the record, then appends the outcome
    an entry               is ignored               answers as the entry says, once it has an outcome
    an entry of another    is ignored               AlreadyExists
    record

    outcome of the entry   the calls with other claims
    PLACED                 get the record's place
    UNCERTAIN              get Uncertain: the record may have been written or not
    REFUSED                the entry is gone: they claim again
    none in time           get Uncertain: the gateway of the entry may have ended before it wrote

Also whether an attempt is a repeated one, as far as proxies and gRPC say so.
"""

from __future__ import annotations

import hashlib
import struct
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from dexorder_common.model.errors import InvalidRequest, Uncertain

MAX_KEY_CHARACTERS = 128
MAX_KEYS = 10_000
"""Keys of one caller that are known; one more forgets the oldest."""
KEY_SECONDS = 600.0
"""Time after the first call within which a repeated one does not write again, and longest time for a claim."""
KEPT_MS = 2 * int(KEY_SECONDS * 1_000)
"""Time between two claims, by Kafka's clock, within which the second finds the first.

A call's claim is written at most `KEY_SECONDS` after the call, or counts for nothing. So the claim of a call that is
repeated within `KEY_SECONDS` is written less than twice that time after the first one, without any gateway's clock.
"""
_ATTEMPT_HEADERS = {"x-envoy-attempt-count": 1, "grpc-previous-rpc-attempts": 0}
"""Metadata in which Envoy and gRPC number attempts, with the number of a first one."""
_CLAIM = 1
_CLAIM_FORMAT, _OUTCOME_FORMAT = struct.Struct("!B16s32s32s"), struct.Struct("!B16siq")
TOKEN_BYTES = 16


class RecordKey(NamedTuple):
    """Key that a caller has given a record of one topic; without identity all callers are one, ""."""

    caller: str
    topic: str
    text: str

    def checked(self) -> RecordKey:
        """Return the key; raise InvalidRequest if its text is too long."""
        if len(self.text) > MAX_KEY_CHARACTERS:
            raise InvalidRequest(
                f"idempotency_key {self.text[:32]!r}... has {len(self.text)} characters; "
                f"at most {MAX_KEY_CHARACTERS} are accepted"
            )
        return self

    def digest(self) -> bytes:
        """Return the digest of the key for Kafka, where others may read it."""
        parts = [part.encode(errors="surrogatepass") for part in self]
        return hashlib.sha256(b"".join(len(part).to_bytes(4) + part for part in parts)).digest()


@dataclass(frozen=True, slots=True)
class Claim:
    """A call that would write a record; ``token`` is of this call alone, the others are digests."""

    token: bytes
    caller: bytes
    record: bytes


class Result(IntEnum):
    """Result for the record of an entry; the numbers are in Kafka."""

    PLACED = 2
    UNCERTAIN = 3
    REFUSED = 4


_RESULTS = frozenset(Result)


@dataclass(frozen=True, slots=True)
class Outcome:
    """End of the call with this token."""

    token: bytes
    result: Result
    partition: int = -1
    offset: int = -1


def encode(record: Claim | Outcome) -> bytes:
    """Return the value of a record of the topic of keys; the record's key is the caller's key."""
    if isinstance(record, Claim):
        return _CLAIM_FORMAT.pack(_CLAIM, record.token, record.caller, record.record)
    return _OUTCOME_FORMAT.pack(record.result, record.token, record.partition, record.offset)


def decode(value: bytes) -> Claim | Outcome | None:
    """Return a record of the topic of keys; None for one that no gateway of this version has written."""
    if len(value) == _CLAIM_FORMAT.size and value[0] == _CLAIM:
        return Claim(*_CLAIM_FORMAT.unpack(value)[1:])
    if len(value) == _OUTCOME_FORMAT.size and value[0] in _RESULTS:
        result, token, partition, offset = _OUTCOME_FORMAT.unpack(value)
        return Outcome(token, Result(result), partition, offset)
    return None


@dataclass(slots=True)
class Entry:
    """A key's first claim, and its outcome; ``outcome`` is None until its gateway reports it."""

    claim: Claim
    at_ms: int
    outcome: Outcome | None = None


class KnownKeys:
    """Entries by key, from the claims and outcomes in the order of the partition."""

    def __init__(self) -> None:
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()
        self._callers: dict[bytes, OrderedDict[bytes, None]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def claim(self, key: bytes, claim: Claim, at_ms: int) -> Entry:
        """Return the key's entry; its ``claim`` is this one if it is the first.

        Args:
            at_ms: Time of Kafka's log.
        """
        while self._entries and next(iter(self._entries.values())).at_ms <= at_ms - KEPT_MS:
            self._forget(next(iter(self._entries)))
        if (found := self._entries.get(key)) is not None:
            return found
        if len(own := self._callers.get(claim.caller, ())) >= MAX_KEYS:
            self._forget(next(iter(own)))
        self._callers.setdefault(claim.caller, OrderedDict())[key] = None
        self._entries[key] = Entry(claim, at_ms)
        return self._entries[key]

    def end(self, key: bytes, outcome: Outcome) -> None:
        """Take the outcome of a key's entry; the outcome of another claim is ignored."""
        entry = self._entries.get(key)
        if entry is None or entry.claim.token != outcome.token:
            return
        entry.outcome = outcome
        if outcome.result is Result.REFUSED:
            self._forget(key)

    def _forget(self, key: bytes) -> None:
        caller = self._entries.pop(key).claim.caller
        own = self._callers[caller]
        del own[key]
        if not own:
            del self._callers[caller]


def refuse_repeated(metadata: Iterable[tuple[str, str | bytes]] | None, what: str) -> None:
    """Raise Uncertain for a call that a proxy or gRPC has repeated: its first attempt may have been carried out."""
    for name, value in metadata or ():
        first = _ATTEMPT_HEADERS.get(name)
        if first is not None and str(value).isdecimal() and int(value) > first:
            raise Uncertain(f"{name} {int(value)}: an earlier attempt of this call may have been carried out; {what}")
