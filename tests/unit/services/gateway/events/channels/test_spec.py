"""Truncation to a size, between characters."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from dexorder_gateway.events.channels.spec import truncate, utf8_bytes, utf16_units


@given(st.text(max_size=60), st.integers(3, 70), st.sampled_from([utf8_bytes, utf16_units]))
def test_a_text_fits_and_keeps_as_much_as_there_is_room_for(text: str, limit: int, size: Callable[[str], int]) -> None:
    short = truncate(text, limit, size)
    assert sum(map(size, short)) <= limit
    if sum(map(size, text)) <= limit:
        assert short == text
    else:
        kept = short.removesuffix("…")
        assert short != kept and text.startswith(kept)
        dropped = text[len(kept) :]
        more = len(dropped) - len(dropped.lstrip()) + 1
        assert sum(map(size, text[: len(kept) + more])) + size("…") > limit
