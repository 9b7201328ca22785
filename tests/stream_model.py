"""What a client of a resumable stream may see, whatever happens to the file that has the stream's items.

A client keeps a cursor and knows all items up to it. When it resumes, either it gets every stored item that it does not
know, or it sees a reset and gets every stored item.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from dexorder_common.model.cursor import Cursor

EXACT_IN_JAVASCRIPT = 2**53
"""Smallest integer at which a double does not have all integers."""


class Place(NamedTuple):
    """A cursor that a client has stored (None: it never had one), and the items that the client knows then."""

    cursor: Cursor | None
    known: frozenset[str] = frozenset()


class Resumed(NamedTuple):
    """Start of a stream, and its items in the order in which they came: sequence and name."""

    cursor: Cursor
    is_reset: bool
    items: Sequence[tuple[int, str]]


class StreamModel:
    """Every place that a client may resume from, and every sequence that an item ever had.

    Attributes:
        may_reset: Whether a file was replaced or items were deleted; otherwise a reset is an error.
    """

    def __init__(self) -> None:
        self.places = [Place(None)]
        self.may_reset = False
        self._items: dict[Cursor, str] = {}

    def place(self, number: int) -> Place:
        """Return a place by any number."""
        return self.places[number % len(self.places)]

    def item_at(self, cursor: Cursor) -> str | None:
        """Return the item that a client has seen at a cursor; None for none."""
        return self._items.get(cursor)

    def given(self, cursor: Cursor, item: str) -> None:
        """Check that no other item ever had the sequence of an item."""
        assert 0 < cursor.sequence < EXACT_IN_JAVASCRIPT
        assert self._items.setdefault(cursor, item) == item, f"{cursor} is given twice"

    def resumed(self, place: Place, stream: Resumed, stored: Collection[str], ever: Collection[str]) -> Place:
        """Check what a client got that resumed from a place; return its place before the items that it got.

        Args:
            stored: Items that the file has and that a client without a cursor must get.
            ever: Items that the file has or had before retention deleted them; not those that only another copy has.
        """
        start, is_reset, items = stream
        assert not is_reset or (self.may_reset and place.cursor is not None), "reset for no reason"
        assert is_reset or place.cursor in (None, start)
        has_item = place.cursor is not None and place.cursor.sequence > 0  # a cursor before all items fits any copy
        assert is_reset or not has_item or place.known <= set(ever), "the cursor's item is not of this file"
        sequences = [sequence for sequence, _ in items]
        assert sequences == sorted(set(sequences)) and all(start.sequence < each for each in sequences)
        is_new = is_reset or place.cursor is None  # then what is not stored any more is not missed
        found = [Place(start, frozenset(ever) - frozenset(stored) if is_new else place.known)]
        for sequence, item in items:
            self.given(Cursor(start.epoch, sequence), item)
            found.append(Place(Cursor(start.epoch, sequence), found[-1].known | {item}))
        missed = set(ever) - found[-1].known
        assert not missed, f"{missed} are missed after {place.cursor}"
        self.places += found
        return found[0]
