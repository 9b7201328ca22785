"""Journal of the triggers: snapshots of the engine, each followed by a log of the batches after it.

A batch is one record of the log: the engine's inputs (rows and changes), the places in the topics, and the events. It
is synced before anything of the batch leaves the process. After a crash the newest whole snapshot is loaded,
the batches after it are evaluated again, and the events of the last one are published again, with the same ids. A batch
without a whole record has published nothing.

    NNN.snapshot    magic, one record: JSON of batch, cursor, positions, recent trades and the engine's state
    NNN.log         records of the batches after NNN
    record          length and CRC-32 of what follows, compressed JSON and events
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from dexorder_cep import EngineState
from dexorder_common.model.cursor import Cursor
from dexorder_spark.cep.files import Files
from dexorder_spark.cep.inputs import Input, decode, encode

log = structlog.get_logger(__name__)
_MAGIC = b"dexorder-cep-3\r\n"
_HEAD = struct.Struct(">QI")
_NUMBER = struct.Struct(">I")
_SNAPSHOT, _LOG, _UNFINISHED = ".snapshot", ".log", ".tmp"
_KEPT = 2
"""Snapshots that stay, with their logs: if the newest is damaged, the batches after the one before are evaluated."""


class Damaged(Exception):
    """A file of the journal is not whole."""


@dataclass(frozen=True)
class TopicPosition:
    """Place in a topic: next offset of each partition, in the log with this id."""

    offsets: Mapping[int, int]
    topic_id: str = ""


@dataclass(frozen=True)
class JournalBatch:
    """One micro-batch.

    Attributes:
        number: Number; each is one more than the one before.
        cursor: Last change of triggers that takes part; None for none.
        positions: Places after the batch, by topic.
        inputs: Input of the engine, in order.
        events: Serialized ReportedTriggerEvent of the batch, in order.
    """

    number: int
    cursor: Cursor | None
    positions: Mapping[str, TopicPosition]
    inputs: tuple[Input, ...] = ()
    events: tuple[bytes, ...] = ()

    def encode(self) -> bytes:
        """Return the content of a record."""
        values = [self.number, str(self.cursor or ""), _encode_positions(self.positions), encode(self.inputs)]
        return _pack(values, self.events)

    @staticmethod
    def decode(content: bytes) -> JournalBatch:
        """Return the batch in a record."""
        (number, cursor, positions, inputs), events = _unpack(content)
        return JournalBatch(number, Cursor.parse(cursor), _decode_positions(positions), decode(inputs), tuple(events))


@dataclass(frozen=True)
class Snapshot:
    """State after a batch, of which everything is published.

    Attributes:
        number: Number of the batch; 0 before the first one.
        recent: Trades that may come again, by ticker: id and time in nanoseconds.
        state: The engine.
    """

    number: int
    cursor: Cursor | None
    positions: Mapping[str, TopicPosition]
    recent: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    state: EngineState | None = None

    def encode(self) -> bytes:
        """Return the content of a file."""
        tickers = list(self.state.tickers) if self.state else None
        parts = [self.state.triggers, *self.state.tickers.values()] if self.state else []
        positions = _encode_positions(self.positions)
        return _MAGIC + _record(_pack([self.number, str(self.cursor or ""), positions, self.recent, tickers], parts))

    @staticmethod
    def decode(data: bytes) -> Snapshot:
        """Return the snapshot in a file; Damaged if it is not whole."""
        records = list(_records(data[len(_MAGIC) :]))
        if not data.startswith(_MAGIC) or len(records) != 1 or len(data) != len(_MAGIC) + records[0][1]:
            raise Damaged("it is cut off or its checksum is wrong")
        (number, cursor, positions, recent, tickers), parts = _unpack(records[0][0])
        state = EngineState(parts[0], dict(zip(tickers, parts[1:], strict=True))) if tickers is not None else None
        return Snapshot(number, Cursor.parse(cursor), _decode_positions(positions), recent, state)


class Journal:
    """Files of a folder, used by one process."""

    def __init__(self, files: Files) -> None:
        """Remove files that were not completed."""
        self._files = files
        self._log: str | None = None
        for unfinished in self._named(_UNFINISHED):
            files.remove(unfinished)

    def read(self) -> tuple[Snapshot, list[JournalBatch]] | None:
        """Return the newest whole snapshot and the batches after it; None without a snapshot.

        New batches are appended to the last one that was read.
        """
        for name in reversed(self._named(_SNAPSHOT)):
            try:
                snapshot = Snapshot.decode(self._files.read(name))
            except (Damaged, ValueError, zlib.error, struct.error) as error:
                log.error("a snapshot of the triggers is damaged; the one before is used", file=name, error=str(error))
                continue
            return snapshot, self._batches_after(snapshot.number)
        return None

    def _batches_after(self, number: int) -> list[JournalBatch]:
        found: list[JournalBatch] = []
        for name in [each for each in self._named(_LOG) if _number(each) >= number]:
            data, end = self._files.read(name), 0
            for content, after in _records(data):
                batch = JournalBatch.decode(content)
                if batch.number != number + len(found) + 1:
                    break
                found.append(batch)
                end = after
            if end < len(data):
                log.warning("the log of the triggers ends with a batch that is not whole", file=name, at=end)
            self._open(name, end)
        if self._log is None:  # a crash between a snapshot and its log
            self._open(f"{number:020d}{_LOG}", 0)
            self._files.sync_names()
        return found

    def append(self, batch: JournalBatch) -> None:
        """Store a batch; it is on disk when this returns. There must be a snapshot."""
        assert self._log is not None
        self._files.append(self._log, _record(batch.encode()))
        self._files.sync(self._log)

    def snapshot(self, snapshot: Snapshot) -> None:
        """Store a snapshot, on disk when this returns, and remove files that are not needed any more."""
        name = f"{snapshot.number:020d}"
        unfinished = name + _UNFINISHED
        self._files.truncate(unfinished, 0)
        self._files.append(unfinished, snapshot.encode())
        self._files.sync(unfinished)
        self._files.rename(unfinished, name + _SNAPSHOT)
        self._open(name + _LOG, 0)
        self._files.sync_names()
        for old in self._named(_SNAPSHOT)[:-_KEPT]:
            self._files.remove(old)
        first = _number(self._named(_SNAPSHOT)[0])
        for old in self._named(_LOG):
            if _number(old) < first:
                self._files.remove(old)

    def _open(self, name: str, size: int) -> None:
        """Append to a log, behind its first bytes."""
        self._files.truncate(name, size)
        self._files.sync(name)
        self._log = name

    def _named(self, suffix: str) -> list[str]:
        return [each for each in self._files.names() if each.endswith(suffix)]


def _number(name: str) -> int:
    return int(name.partition(".")[0])


def _record(content: bytes) -> bytes:
    return _HEAD.pack(len(content), zlib.crc32(content)) + content


def _records(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield the contents of whole records, each with the place after it, up to the first that is not whole."""
    place = 0
    while place + _HEAD.size <= len(data):
        size, checksum = _HEAD.unpack_from(data, place)
        content = data[place + _HEAD.size : place + _HEAD.size + size]
        place += _HEAD.size + size
        if len(content) != size or zlib.crc32(content) != checksum:
            return
        yield content, place


def _pack(values: Any, parts: tuple[bytes, ...] | list[bytes]) -> bytes:
    """Return JSON values and parts of bytes as one compressed content."""
    header = json.dumps([values, [len(each) for each in parts]], separators=(",", ":")).encode()
    packer = zlib.compressobj(1)
    packed = [packer.compress(each) for each in (_NUMBER.pack(len(header)), header, *parts)]
    return b"".join([*packed, packer.flush()])


def _unpack(content: bytes) -> tuple[Any, list[bytes]]:
    data = zlib.decompress(content)
    place = _NUMBER.size + _NUMBER.unpack_from(data)[0]
    values, sizes = json.loads(data[_NUMBER.size : place])
    parts = []
    for size in sizes:
        parts.append(data[place : place + size])
        place += size
    return values, parts


def _encode_positions(positions: Mapping[str, TopicPosition]) -> dict[str, Any]:
    return {topic: [list(map(list, each.offsets.items())), each.topic_id] for topic, each in positions.items()}


def _decode_positions(values: Mapping[str, Any]) -> dict[str, TopicPosition]:
    return {topic: TopicPosition(dict(offsets), topic_id) for topic, (offsets, topic_id) in values.items()}
