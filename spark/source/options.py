"""Options of ``format("udsource")``, of ``read`` and of ``readStream``. Pure.

address              host:port or unix: address of the source.v1 server; required
replay               ``auto`` (as the server can, or as the checkpoint was begun), ``always`` (an error where it cannot:
                     exactly once or not at all) or ``never`` (at least once, also where it could)
maxRecordsPerBatch   most records in one micro-batch over all partitions (600)
drain                true lifts maxRecordsPerBatch, for Trigger.AvailableNow (Spark takes its end once, at the start)
retrySeconds         how long a server may stay away before a task, or the start of a query, fails (60)

Only where ranges can be replayed:

startingOffsets      of a new query: ``committed`` (else earliest), ``earliest``, ``latest`` or JSON ``{"0": 17}``
endingOffsets        of a batch read: ``latest`` or JSON; exclusive

Only where they cannot:

maxBytesPerBatch     records of so many bytes end a batch, also with drain: they wait in memory (268435456, 256 MiB)
readTimeoutMs        how long the server may wait for records before it answers a read with none (500)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from services.common.model.errors import InvalidRequest

Position: TypeAlias = Literal["committed", "earliest", "latest"] | Mapping[int, int]
Replay: TypeAlias = Literal["auto", "always", "never"]
_POSITIONS: tuple[Literal["committed", "earliest", "latest"], ...] = ("committed", "earliest", "latest")
_REPLAYS: tuple[Replay, ...] = ("auto", "always", "never")
_TRUTHS = {"true": True, "false": False}


@dataclass(frozen=True)
class SourceOptions:
    """The options, checked; see the module's table."""

    address: str
    max_records: int = 600
    starting: Position = "committed"
    ending: Position = "latest"
    drain: bool = False
    retry_seconds: float = 60.0
    replay: Replay = "auto"
    max_bytes: int = 256 * 1024 * 1024
    read_timeout_ms: int = 500

    @staticmethod
    def parse(options: Mapping[str, str]) -> SourceOptions:
        """Read Spark's options, whose names differ in case at will.

        Raises:
            InvalidRequest: A required option is missing or a value is out of its form; names the option.
        """
        given = {name.lower(): value for name, value in options.items()}
        address = given.get("address", "")
        if not address:
            raise InvalidRequest("option address is missing: host:port of a source.v1 server")
        return SourceOptions(
            address=address,
            max_records=_positive("maxRecordsPerBatch", given.get("maxrecordsperbatch", "600")),
            starting=_position(
                "startingOffsets", given.get("startingoffsets", "committed"), "committed earliest latest"
            ),
            ending=_position("endingOffsets", given.get("endingoffsets", "latest"), "latest"),
            drain=_truth("drain", given.get("drain", "false")),
            retry_seconds=_positive("retrySeconds", given.get("retryseconds", "60")),
            replay=_replay(given.get("replay", "auto")),
            max_bytes=_positive("maxBytesPerBatch", given.get("maxbytesperbatch", str(256 * 1024 * 1024))),
            read_timeout_ms=_positive("readTimeoutMs", given.get("readtimeoutms", "500")),
        )

    def check_plain(self) -> None:
        """Refuse what only a source that can replay can do.

        Raises:
            InvalidRequest: An option asks for a place in the log.
        """
        for name, value, usual in (
            ("startingOffsets", self.starting, "committed"),
            ("endingOffsets", self.ending, "latest"),
        ):
            if value != usual:
                raise InvalidRequest(f"option {name} needs a source that can replay; {self.address} is read without")


def _positive(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise InvalidRequest(f"option {name} {text!r} is not a whole number above 0")
    return int(text)


def _truth(name: str, text: str) -> bool:
    if text.lower() not in _TRUTHS:
        raise InvalidRequest(f"option {name} {text!r} is neither true nor false")
    return _TRUTHS[text.lower()]


def _replay(text: str) -> Replay:
    for word in _REPLAYS:
        if text.lower() == word:
            return word
    raise InvalidRequest(f"option replay {text!r} is none of {' '.join(_REPLAYS)}")


def _position(name: str, text: str, words: str) -> Position:
    for word in _POSITIONS:
        if text.lower() == word and word in words.split():
            return word
    try:
        offsets = {int(partition): int(offset) for partition, offset in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):
        raise InvalidRequest(f'option {name} {text!r} is none of {words} or JSON like {{"0": 17}}') from None
    if any(offset < 0 for offset in offsets.values()):
        raise InvalidRequest(f"option {name} {text!r} has a negative offset")
    return offsets
