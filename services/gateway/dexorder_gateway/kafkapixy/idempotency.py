"""Records that callers name by a key: a repeated Produce writes its record once. Bounded memory, for one event loop.

    the key is         of a record that                    answer of the repeated call
    not known          -                                   the record is written, but a marked repetition is refused
                                                           where another gateway may know the key (`has_all`)
    known              waits for Kafka, or is written      that record's place
    known              may have been written or not        Uncertain again
    known              was refused                         the record is written: the first one is not
    known              has other contents                  AlreadyExists

Also whether an attempt is a repeated one, as far as proxies and gRPC say so.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from dexorder_common.model.errors import AlreadyExists, InvalidRequest, Uncertain

Placed = tuple[int, int]
"""Partition and offset."""
Placing = asyncio.Future[Placed]
MAX_KEY_CHARACTERS = 128
MAX_KEYS = 10_000
"""Keys of one caller that are known; one more forgets the oldest."""
KEY_SECONDS = 600.0
"""Time after which a key is forgotten."""
_ATTEMPT_HEADERS = {"x-envoy-attempt-count": 1, "grpc-previous-rpc-attempts": 0}
"""Metadata in which Envoy and gRPC number attempts, with the number of a first one."""


class RecordKey(NamedTuple):
    """Key that a caller has given a record of one topic."""

    cluster: str
    topic: str
    text: str


class _Known(NamedTuple):
    digest: bytes
    placed: Placing
    until_s: float


class KnownRecords:
    """Records by caller and key."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._since_s = now()
        self._callers: dict[str, OrderedDict[RecordKey, _Known]] = {}

    @property
    def has_all(self) -> bool:
        """Return whether no key that this gateway ever had can be missing because it has restarted."""
        return self._now() >= self._since_s + KEY_SECONDS

    def once(self, caller: str, key: RecordKey, record: bytes, produce: Callable[[], Placing]) -> Placing:
        """Return the future of the record with this key, which ``produce`` queues unless the key is known.

        Args:
            caller: ``client_id``, whose keys are its own; empty without identity.
            record: The whole request, to tell that a key is used for another record.

        Raises:
            InvalidRequest: The key is too long.
            AlreadyExists: The key belongs to another record.
        """
        if len(key.text) > MAX_KEY_CHARACTERS:
            raise InvalidRequest(
                f"idempotency_key {key.text[:32]!r}... has {len(key.text)} characters; "
                f"at most {MAX_KEY_CHARACTERS} are accepted"
            )
        keys = self._callers.setdefault(caller, OrderedDict())
        while keys and next(iter(keys.values())).until_s <= self._now():
            keys.popitem(last=False)
        digest = hashlib.sha256(record).digest()
        if (known := keys.get(key)) is not None:
            if known.digest != digest:
                raise AlreadyExists(f"idempotency_key {key.text!r} belongs to another record of topic {key.topic!r}")
            return known.placed
        placed = produce()
        if len(keys) >= MAX_KEYS:
            keys.popitem(last=False)
        keys[key] = _Known(digest, placed, self._now() + KEY_SECONDS)
        placed.add_done_callback(lambda done: self._note(keys, key, done))
        return placed

    @staticmethod
    def _note(keys: OrderedDict[RecordKey, _Known], key: RecordKey, placed: Placing) -> None:
        refused = placed.cancelled() or ((error := placed.exception()) is not None and not isinstance(error, Uncertain))
        if refused and (known := keys.get(key)) is not None and known.placed is placed:
            del keys[key]


def refuse_repeated(metadata: Iterable[tuple[str, str | bytes]] | None, what: str) -> None:
    """Raise Uncertain for a call that a proxy or gRPC has repeated: its first attempt may have been carried out."""
    for name, value in metadata or ():
        first = _ATTEMPT_HEADERS.get(name)
        if first is not None and str(value).isdecimal() and int(value) > first:
            raise Uncertain(f"{name} {int(value)}: an earlier attempt of this call may have been carried out; {what}")
