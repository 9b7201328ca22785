"""Header fields of gRPC, by literal bytes."""

from __future__ import annotations

import pytest

from dexorder_common.model.errors import InvalidRequest
from dexorder_common.rpc.native.metadata import (
    decode_metadata,
    encode_metadata,
    encode_text,
    is_grpc,
    parse_timeout,
    trailers,
)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(b"1H", 3_600), (b"2M", 120), (b"3S", 3), (b"250m", 0.25), (b"5u", 5e-6), (b"99999999n", 0.099999999), (b"0n", 0)],
)
def test_timeouts(value: bytes, seconds: float) -> None:
    assert parse_timeout(value) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "value", [b"", b"1", b"S", b"123456789S", b"-1S", b"1.5S", b"1 S", b"1s", b"1S\n", "١S".encode()]
)
def test_other_timeouts_are_refused(value: bytes) -> None:
    with pytest.raises(InvalidRequest, match="grpc-timeout"):
        parse_timeout(value)


def test_content_types() -> None:
    for given in (b"application/grpc", b"application/grpc+proto", b"application/grpc;charset=utf-8"):
        assert is_grpc(given)
    assert not is_grpc(None)
    for given in (b"", b"application/json", b"application/grpc-web", b"application/grpcx", b"text/plain"):
        assert not is_grpc(given)


def test_metadata_of_a_request() -> None:
    pairs = [("te", b"trailers"), ("grpc-timeout", b"1S"), ("user-agent", b"x"), ("k", b"1"), ("k", b"\xff")]
    assert decode_metadata(pairs) == (("user-agent", "x"), ("k", "1"), ("k", "ÿ"))
    assert decode_metadata([("a-bin", b"AP8"), ("b-bin", b"AP8=, /w")]) == (
        ("a-bin", b"\0\xff"),
        ("b-bin", b"\0\xff"),
        ("b-bin", b"\xff"),
    )
    for bad in (b"*", b"A", b"A=B"):
        with pytest.raises(InvalidRequest, match="a-bin"):
            decode_metadata([("a-bin", bad)])


def test_metadata_of_an_answer() -> None:
    assert encode_metadata([("k", "v"), ("k-bin", b"\0\xff"), ("n", b"x")]) == [
        ("k", b"v"),
        ("k-bin", b"AP8"),
        ("n", b"x"),
    ]
    for key, value in [("K", "v"), ("k y", "v"), ("k", "ü"), ("k", "a\nb: c"), ("", "v")]:
        with pytest.raises(ValueError, match="metadata"):
            encode_metadata([(key, value)])


def test_a_status_text_is_percent_encoded() -> None:
    """gRPC's interop case: special status messages."""
    text = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n"
    assert encode_text(text) == (
        b"%09%0Atest with whitespace%0D%0Aand Unicode BMP %E2%98%BA and non-BMP %F0%9F%98%88%09%0A"
    )
    assert encode_text("100% ~") == b"100%25 ~"
    assert encode_text("\ud800") == b"?"
    assert trailers(5, "no", [("k", "v")]) == [("grpc-status", b"5"), ("grpc-message", b"no"), ("k", b"v")]
    assert trailers(0, "") == [("grpc-status", b"0")]
