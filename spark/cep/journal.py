"""Journal of the triggers' micro-batches: one file each, with the state after the batch and the events of the batch.

The engine's state has the registrations, so a file is everything: what was read, what takes part, what was matched so
far, and what fired. It is written beside, synced and renamed before anything of the batch leaves the process. After a
crash the newest file that is whole is read, and its events are published again, with the same ids. A batch whose file
was not written has published nothing, and is evaluated again.

    magic                        16 bytes
    length of the header         4 bytes
    header                       JSON: batch, change, positions, lengths of the state and of each event
    state                        the engine's, compressed
    events                       serialized messages, one after the other
    CRC-32 of all before it      4 bytes
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

log = structlog.get_logger(__name__)
_MAGIC = b"dexorder-cep-1\r\n"
_NUMBER = struct.Struct(">I")
_SUFFIX = ".batch"
_KEPT = 2
"""Files that stay: if the newest is damaged, the batch is evaluated again from the one before."""


class Damaged(Exception):
    """A file of the journal is not whole."""


@dataclass(frozen=True)
class TopicPosition:
    """Place in a topic: next offset of each partition, in the log with this id."""

    offsets: Mapping[int, int]
    topic_id: str = ""


@dataclass(frozen=True)
class Entry:
    """One micro-batch.

    Attributes:
        batch: Number, from 0.
        change: Last change of triggers that takes part.
        positions: Places after the batch, by topic.
        recent: Trades that may come again, by ticker: pairs of id and time in nanoseconds.
        state: The engine after the batch.
        events: Serialized ReportedTriggerEvent of the batch, in order.
    """

    batch: int
    change: int
    positions: Mapping[str, TopicPosition]
    recent: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    state: bytes = b""
    events: tuple[bytes, ...] = ()

    def encode(self) -> bytes:
        """Return the content of a file."""
        state = zlib.compress(self.state, 1)
        header = json.dumps(
            {
                "batch": self.batch,
                "change": self.change,
                "positions": {
                    topic: {"offsets": {str(p): o for p, o in each.offsets.items()}, "topic_id": each.topic_id}
                    for topic, each in self.positions.items()
                },
                "recent": self.recent,
                "state": len(state),
                "events": [len(each) for each in self.events],
            },
            separators=(",", ":"),
        ).encode()
        body = b"".join([_MAGIC, _NUMBER.pack(len(header)), header, state, *self.events])
        return body + _NUMBER.pack(zlib.crc32(body))

    @staticmethod
    def decode(data: bytes) -> Entry:
        """Return the batch in a file; Damaged if it is not whole."""
        body = data[: -_NUMBER.size]
        if not data.startswith(_MAGIC) or data[-_NUMBER.size :] != _NUMBER.pack(zlib.crc32(body)):
            raise Damaged("its checksum is wrong")
        start = len(_MAGIC) + _NUMBER.size
        end = start + _NUMBER.unpack_from(body, len(_MAGIC))[0]
        header: dict[str, Any] = json.loads(body[start:end])
        state = zlib.decompress(body[end : end + header["state"]])
        place, events = end + header["state"], []
        for size in header["events"]:
            events.append(body[place : place + size])
            place += size
        positions = {
            topic: TopicPosition({int(p): o for p, o in each["offsets"].items()}, each["topic_id"])
            for topic, each in header["positions"].items()
        }
        return Entry(header["batch"], header["change"], positions, header["recent"], state, tuple(events))


class Journal:
    """Files of a folder, used by one process."""

    def __init__(self, folder: Path) -> None:
        """Create the folder if necessary, and remove files that were not completed."""
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for unfinished in folder.glob("*.tmp"):
            unfinished.unlink()

    def read(self) -> Entry | None:
        """Return the newest batch that is whole; None if there is none."""
        for path in reversed(list(self._files())):
            try:
                return Entry.decode(path.read_bytes())
            except (Damaged, ValueError, KeyError, zlib.error, struct.error) as error:
                log.error(
                    "a file of the triggers' journal is damaged; the one before is used",
                    path=str(path),
                    error=str(error),
                )
        return None

    def write(self, entry: Entry) -> None:
        """Store a batch, which is on disk when this returns, and remove files that are not needed any more."""
        path = self._folder / f"{entry.batch:020d}{_SUFFIX}"
        unfinished = path.with_suffix(".tmp")
        with unfinished.open("wb") as file:
            file.write(entry.encode())
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(path)
        self._sync()
        for old in list(self._files())[:-_KEPT]:
            old.unlink()

    def _files(self) -> Iterator[Path]:
        return iter(sorted(self._folder.glob(f"*{_SUFFIX}")))

    def _sync(self) -> None:
        handle = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
