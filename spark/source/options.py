"""Options of ``spark.readStream.format("udsource")``. Pure.

address              host:port or unix: address of the source.v1 server; required
maxRecordsPerBatch   most records in one micro-batch over all partitions (600)
startingOffsets      of a new query: ``committed`` (else earliest), ``earliest``, ``latest`` or JSON ``{"0": 17}``
endingOffsets        of a batch read: ``latest`` or JSON; exclusive
drain                true lifts maxRecordsPerBatch, for Trigger.AvailableNow (Spark takes its end once, at the start)
retrySeconds         how long a reader keeps trying to reach the server before its task fails (60)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from services.common.errors import InvalidRequest

Position = Literal["committed", "earliest", "latest"] | Mapping[int, int]
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
        )


def _positive(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise InvalidRequest(f"option {name} {text!r} is not a whole number above 0")
    return int(text)


def _truth(name: str, text: str) -> bool:
    if text.lower() not in _TRUTHS:
        raise InvalidRequest(f"option {name} {text!r} is neither true nor false")
    return _TRUTHS[text.lower()]


def _position(name: str, text: str, words: str) -> Position:
    for word in ("committed", "earliest", "latest"):
        if text.lower() == word and word in words.split():
            return word
    try:
        offsets = {int(partition): int(offset) for partition, offset in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):
        raise InvalidRequest(f'option {name} {text!r} is none of {words} or JSON like {{"0": 17}}') from None
    if any(offset < 0 for offset in offsets.values()):
        raise InvalidRequest(f"option {name} {text!r} has a negative offset")
    return offsets
