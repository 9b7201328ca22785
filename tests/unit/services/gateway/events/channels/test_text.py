"""Texts are cut to size, between characters and never in the midst of one."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from services.gateway.events.channels.text import cut, utf8_bytes, utf16_units


@given(st.text(max_size=60), st.integers(3, 70), st.sampled_from([utf8_bytes, utf16_units]))
def test_a_text_fits_and_keeps_as_much_as_there_is_room_for(text: str, most: int, size: Callable[[str], int]) -> None:
    short = cut(text, most, size)
    assert sum(map(size, short)) <= most
    if sum(map(size, text)) <= most:
        assert short == text
    else:
        kept = short.removesuffix("…")
        assert short != kept and text.startswith(kept)
        dropped = text[len(kept) :]
        more = len(dropped) - len(dropped.lstrip()) + 1
        assert sum(map(size, text[: len(kept) + more])) + size("…") > most
