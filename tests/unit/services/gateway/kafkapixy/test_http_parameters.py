"""Parameters of HTTP requests: bytes stay what they were, whatever they are."""

from __future__ import annotations

from urllib.parse import quote_from_bytes, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.model.errors import InvalidRequest
from dexorder_gateway.kafkapixy.http_parameters import MAX_PARAMETERS, Parameters


@pytest.mark.parametrize(
    ("query", "form", "value"),
    [
        (b"key=%FF%00%FE", b"", b"\xff\x00\xfe"),
        (b"key=\xff\x00\xfe", b"", b"\xff\x00\xfe"),
        (b"", b"key=%ff\xfe", b"\xff\xfe"),
        (b"key=a+b%2Bc", b"", b"a b+c"),
        (b"key=a%26b%3Dc=d", b"", b"a&b=c=d"),
        (b"key=of+the+query", b"key=of+the+body", b"of the body"),
        (b"key=of+the+query", b"keys=of+the+body", b"of the query"),
        (b"key=1&key=2", b"", b"1"),
        (b"sync&key&x=1", b"", b""),
        (b"&&key=&", b"", b""),
        (b"%6B%65%79=named", b"", b"named"),
        (b"key=a;b", b"", b"a;b"),
        (b"Key=1", b"", None),
        (b"", b"", None),
    ],
)
def test_values_are_those_of_gos_form(query: bytes, form: bytes, value: bytes | None) -> None:
    assert Parameters(query, form).value("key") == value


@given(st.binary(), st.booleans())
def test_every_key_arrives_as_it_was(key: bytes, as_form: bool) -> None:
    sent = b"a=1&key=" + quote_from_bytes(key).encode() + b"&b=%FF"
    assert (Parameters(form=sent) if as_form else Parameters(sent)).value("key") == key
    sent = b"key=" + quote_plus(key).encode()
    assert Parameters(sent).value("key") == key


def test_flags_count_if_they_are_present_in_query_or_form() -> None:
    of = Parameters(b"sync=false&noAck", b"withConfig")
    assert [name in of for name in ("sync", "noAck", "withConfig", "withPartitions")] == [True, True, True, False]


@pytest.mark.parametrize(
    ("query", "text"),
    [
        (b"key=100%", "key has the escape '%'; a percent sign is written as %25"),
        (b"key=%zz1", "key has the escape '%zz'"),
        (b"key=%f", "key has the escape '%f'"),
    ],
)
def test_a_value_that_go_would_drop_is_refused(query: bytes, text: str) -> None:
    """Kafka-Pixy would write the record without its key, to any partition."""
    with pytest.raises(InvalidRequest) as caught:
        Parameters(query).value("key")
    assert str(caught.value).startswith(text)


def test_a_group_is_one_text() -> None:
    assert Parameters(b"group=%D0%BA").group() == "\u043a"
    for query, text in (
        (b"group=%FF", "group b'.xff' is not UTF-8"),
        (b"group=a&group=a", "but 2 provided"),
        (b"", "but 0 provided"),
    ):
        with pytest.raises(InvalidRequest, match=text):
            Parameters(query).group()


@pytest.mark.parametrize("text", ["-1", "+1", "1e3", "\u0661", "2147483648", "", "9" * 5_000])
def test_numbers_have_no_sign_and_fit(text: str) -> None:
    assert Parameters(b"n=2147483647").number("n", 32) == 2_147_483_647
    with pytest.raises(InvalidRequest, match="is not a number of at most 32 bits without a sign"):
        Parameters(b"n=" + quote_plus(text).encode()).number("n", 32)


def test_number_of_parameters_is_limited() -> None:
    assert Parameters(b"a&" * (MAX_PARAMETERS - 2) + b"key=1", b"").value("key") == b"1"
    with pytest.raises(InvalidRequest, match="1001 parameters are given; at most 1000"):
        Parameters(b"a=1", b"&" * (MAX_PARAMETERS - 1))
