"""Names of topics and groups, including those that librdkafka would misread."""

from __future__ import annotations

import pytest

from dexorder_common.model.errors import InvalidRequest
from dexorder_gateway.kafkapixy.service import group_name, topic_name


@pytest.mark.parametrize("name", ["g", "a b/c", "\u00e9", "\u00a0", "g ", "." * 8_000])
def test_group(name: str) -> None:
    assert group_name(name) == name


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "empty"),
        ("g\0h", "NUL"),
        ("g" * 8_001, "longer than 8000"),
        *((f"{space}{rest}", "begins with white space") for space in " \t\n\v\f\r" for rest in ("", "g")),
    ],
)
def test_bad_group(name: str, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        group_name(name)


@pytest.mark.parametrize("name", ["t", "a.b_c-D9", "t" * 249])
def test_topic(name: str) -> None:
    assert topic_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "\u00e9", "t\0", "t\n", "t" * 250])
def test_bad_topic(name: str) -> None:
    with pytest.raises(InvalidRequest, match="not a topic's name"):
        topic_name(name)
