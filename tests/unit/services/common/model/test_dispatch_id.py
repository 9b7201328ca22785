import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.model.dispatch_id import MAX_NUMBER, new_dispatch_id, number_of
from dexorder_common.model.errors import InvalidRequest


@given(st.integers(1, MAX_NUMBER), st.text("0123456789abcdef", min_size=16, max_size=64))
def test_an_id_begins_with_its_number(number: int, token: str) -> None:
    assert number_of(new_dispatch_id(number, token)) == number


@pytest.mark.parametrize(
    "dispatch_id",
    [
        "",
        "6f1f0d9c4b3a4c1c8a6f2f2f2f2f2f2f",  # before numbers were issued
        "1",
        "1-",
        "-0123456789abcdef",
        "0-0123456789abcdef",
        "01-0123456789abcdef",
        "+1-0123456789abcdef",
        "1-0123456789abcde",
        "1-0123456789ABCDEF",
        "1-0123456789abcdef\n",
        "1-" + "0" * 65,
        "\u0661-0123456789abcdef",
        f"{MAX_NUMBER + 1}-0123456789abcdef",
        "9" * 5_000 + "-0123456789abcdef",
    ],
)
def test_any_other_id_has_no_number(dispatch_id: str) -> None:
    with pytest.raises(InvalidRequest, match="is not NUMBER-TOKEN"):
        number_of(dispatch_id)


@pytest.mark.parametrize(("number", "token"), [(0, "0" * 16), (MAX_NUMBER + 1, "0" * 16), (1, "0" * 15), (1, "guess")])
def test_no_other_id_is_made(number: int, token: str) -> None:
    with pytest.raises(InvalidRequest):
        new_dispatch_id(number, token)
