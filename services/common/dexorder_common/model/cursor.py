"""Positions in streams that can be resumed. Pure."""

from __future__ import annotations

from typing import NamedTuple

from dexorder_common.model.errors import InvalidRequest


class Cursor(NamedTuple):
    """Position of an item in a log. People store and type its text, ``EPOCH:SEQUENCE``.

    Attributes:
        epoch: Id of the log, another one for another file.
        sequence: Number of the item; 0 for the position before the first one.
    """

    epoch: str
    sequence: int

    @classmethod
    def parse(cls, text: str) -> Cursor | None:
        """Return the cursor that a text stands for; None for an empty text. InvalidRequest if it is none."""
        if not text:
            return None
        epoch, colon, sequence = text.rpartition(":")
        if not (colon and epoch and sequence.isascii() and sequence.isdigit()):
            raise InvalidRequest(f"cursor {text[:64]!r} is not EPOCH:SEQUENCE; pass one that an answer had")
        return cls(epoch, int(sequence))

    def __str__(self) -> str:
        return f"{self.epoch}:{self.sequence}"


class StreamStart(NamedTuple):
    """Where a stream starts.

    Attributes:
        cursor: Position after which items follow.
        is_reset: Whether the position that was asked for is not valid, so that all stored items follow.
        oldest_sequence: Sequence of the oldest stored item; None without any.
    """

    cursor: Cursor
    is_reset: bool = False
    oldest_sequence: int | None = None


def start_of_stream(
    after: Cursor | None, epoch: str, forgotten: int, *, is_known: bool, oldest: int | None
) -> StreamStart:
    """Return where a stream starts that is to continue after a cursor.

    The cursor is not valid if it is of another log, if retention has deleted items after it, or if its item is neither
    stored nor deleted: then it was given before the file was replaced by an older copy.

    Args:
        after: None for all stored items.
        forgotten: Largest sequence that retention has deleted.
        is_known: Whether the cursor's item is stored.
        oldest: Sequence of the oldest item that is stored, if any.
    """
    if after is None:
        return StreamStart(Cursor(epoch, 0), oldest_sequence=oldest)
    is_stored = is_known and after.sequence > forgotten
    if after.epoch == epoch and (is_stored or after.sequence == forgotten):
        return StreamStart(after, oldest_sequence=oldest)
    return StreamStart(Cursor(epoch, 0), is_reset=True, oldest_sequence=oldest)
