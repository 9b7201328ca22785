"""Words of a UDF in an error."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dexorder_udf.errors import MAX_REASON, UdfError


@given(
    st.one_of(st.text(max_size=50), st.sampled_from(["\x1b]0;title\a" * 1_000, "\u202eevil", "a\nb\0c", "x" * 10**6]))
)
def test_words_of_a_udf_are_cut_and_printable(words: str) -> None:
    error = UdfError("mine", words)
    assert str(error).isprintable() and str(error) == f'UDF "mine": {error.reason}'
    assert len(error.reason) <= 10 * MAX_REASON + 50
    if words.isprintable() and len(words) <= MAX_REASON:
        assert error.reason == words


def test_what_was_cut_is_said() -> None:
    assert UdfError("mine", "x" * 3_000).reason == f"{'x' * MAX_REASON}... (3,000 characters)"
