"""Options of ``format("udsource")`` for ``read`` and ``readStream``. Pure. docs/spark-source.md explains each."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

from dexorder_common.model.errors import InvalidRequest

Word: TypeAlias = Literal["committed", "earliest", "latest"]
Position: TypeAlias = Word | Mapping[int, int]
Replay: TypeAlias = Literal["auto", "always", "never"]
_WORDS: tuple[Word, ...] = ("committed", "earliest", "latest")
_REPLAYS: tuple[Replay, ...] = ("auto", "always", "never")
_TRUTHS = {"true": True, "false": False}


@dataclass(frozen=True)
class SourceOptions:
    """Validated options."""

    address: str
    max_records: int | None = None
    starting: Position | None = None
    ending: Position = "latest"
    drain: bool = False
    retry_seconds: float = 60.0
    replay: Replay = "auto"
    max_bytes: int = 256 * 1024 * 1024
    read_timeout_ms: int = 500
    min_partitions: int = 1
    ack: bool = False
    fail_on_data_loss: bool = True
    group: str = ""

    @staticmethod
    def parse(options: Mapping[str, str]) -> SourceOptions:
        """Parse Spark's options (their names are case-insensitive); InvalidRequest names an option at fault."""
        given = {name.lower(): text for name, text in options.items()}
        if not given.get("address"):
            raise InvalidRequest("option address is missing; set it to host:port or unix: of a source.v1 server")
        values = {
            field: parse(name, given[name.lower()])
            for name, (field, parse) in _OPTIONS.items()
            if name.lower() in given
        }
        return SourceOptions(given["address"], **{"ack": "group" in values, **values})

    @property
    def start(self) -> Position:
        """Position at which a new query starts."""
        return self.starting or ("committed" if self.ack else "earliest")

    def check_plain(self) -> None:
        """Check that no option needs replay; InvalidRequest if one names a position in the log."""
        if self.drain:
            raise InvalidRequest(
                f"option drain=true needs a source that can replay; {self.address} is read without replay: let a query"
                " with a processing-time trigger run until it is idle"
            )
        for name, value, usual in (
            ("address with #topic", self.address.partition("#")[2], ("",)),
            ("startingOffsets", self.starting, (None, "committed")),
            ("endingOffsets", self.ending, ("latest",)),
            ("group", self.group, ("",)),
        ):
            if value not in usual:
                raise InvalidRequest(
                    f"option {name} needs a source that can replay; {self.address} is read without replay"
                )


def _positive(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise InvalidRequest(f"option {name} {text!r} is not a whole number above 0")
    return int(text)


def _group(name: str, text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,200}", text):
        raise InvalidRequest(f"option {name} {text!r} is not 1 to 200 letters, digits, dots, dashes and underscores")
    return text


def _truth(name: str, text: str) -> bool:
    if text.lower() not in _TRUTHS:
        raise InvalidRequest(f"option {name} {text!r} is neither true nor false")
    return _TRUTHS[text.lower()]


def _replay(name: str, text: str) -> Replay:
    for word in _REPLAYS:
        if text.lower() == word:
            return word
    raise InvalidRequest(f"option {name} {text!r} is not one of {', '.join(_REPLAYS)}")


def _position(name: str, text: str, words: Sequence[Word] = _WORDS) -> Position:
    for word in words:
        if text.lower() == word:
            return word
    try:
        offsets = {int(partition): int(offset) for partition, offset in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):
        raise InvalidRequest(
            f'option {name} {text!r} is neither one of {", ".join(words)} nor JSON such as {{"0": 17}}'
        ) from None
    if any(offset < 0 for offset in offsets.values()):
        raise InvalidRequest(f"option {name} {text!r} has a negative offset")
    return offsets


_OPTIONS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "maxRecordsPerBatch": ("max_records", _positive),
    "startingOffsets": ("starting", _position),
    "endingOffsets": ("ending", partial(_position, words=("latest",))),
    "drain": ("drain", _truth),
    "retrySeconds": ("retry_seconds", _positive),
    "replay": ("replay", _replay),
    "maxBytesPerBatch": ("max_bytes", _positive),
    "readTimeoutMs": ("read_timeout_ms", _positive),
    "minPartitions": ("min_partitions", _positive),
    "ack": ("ack", _truth),
    "failOnDataLoss": ("fail_on_data_loss", _truth),
    "group": ("group", _group),
}
"""Field and parser of each option."""
