"""The rule of keys: which claim is first, until when, and what a caller can do to the keys of others."""

from __future__ import annotations

from typing import Any

import pytest

from dexorder_common.model.errors import InvalidRequest, Uncertain
from dexorder_gateway.keys.claims import (
    KEPT_MS,
    KEY_SECONDS,
    MAX_KEY_CHARACTERS,
    MAX_KEYS,
    Claim,
    KnownKeys,
    Outcome,
    RecordKey,
    Result,
    decode,
    encode,
    refuse_repeated,
)


def claim(number: int, caller: bytes = b"me") -> Claim:
    return Claim(number.to_bytes(16), caller.ljust(32), b"r" * 32)


def is_first(known: KnownKeys, key: bytes, number: int, at_ms: int = 0, caller: bytes = b"me") -> bool:
    own = claim(number, caller)
    return known.claim(key, own, at_ms).claim is own


def test_the_first_claim_is_the_entry_until_its_record_is_refused() -> None:
    known = KnownKeys()
    first = claim(1)
    assert known.claim(b"k", first, 0).claim is first
    assert known.claim(b"k", claim(2), 0).claim is first
    known.end(b"k", Outcome(claim(2).token, Result.REFUSED))
    assert known.claim(b"k", claim(3), 0).claim is first, "the outcome of another claim counts for nothing"
    placed = Outcome(first.token, Result.PLACED, 2, 7)
    known.end(b"k", placed)
    assert known.claim(b"k", claim(4), 0).outcome == placed
    known.end(b"k", Outcome(first.token, Result.REFUSED))
    assert is_first(known, b"k", 5)
    known.end(b"other", placed)
    assert len(known) == 1


def test_a_claim_that_kafka_has_twice_is_no_second_one() -> None:
    known = KnownKeys()
    first, again = claim(1), claim(1)
    known.claim(b"k", first, 0)
    assert known.claim(b"k", again, 0).claim is first is not again


def test_a_key_is_known_for_so_long_that_a_claim_that_waited_for_kafka_finds_it() -> None:
    """First call at 0, the other just before its time is over, and its claim waits for as long as one may."""
    latest_ms = int((KEY_SECONDS - 0.001) * 1_000 + (KEY_SECONDS - 0.001) * 1_000)
    known = KnownKeys()
    assert is_first(known, b"k", 1)
    assert not is_first(known, b"k", 2, latest_ms)
    assert is_first(known, b"k", 3, KEPT_MS)
    assert len(known) == 1, "what is too old is forgotten"


def test_a_caller_with_many_keys_forgets_its_own_and_none_of_another_caller() -> None:
    known = KnownKeys()
    assert is_first(known, b"mine", 0)
    for number in range(MAX_KEYS + 1):
        assert is_first(known, b"%d" % number, 1 + number, caller=b"flood")
    assert len(known) == MAX_KEYS + 1
    assert not is_first(known, b"mine", MAX_KEYS + 2)
    assert not is_first(known, b"%d" % MAX_KEYS, MAX_KEYS + 3, caller=b"flood")
    assert is_first(known, b"0", MAX_KEYS + 4, caller=b"flood"), "the oldest was forgotten"
    assert len(known._callers) == 2
    assert is_first(known, b"later", MAX_KEYS + 5, KEPT_MS)
    assert len(known) == 1 == len(known._callers)


def test_keys_differ_by_caller_topic_and_text() -> None:
    names = [("a", "b", "c"), ("ab", "", "c"), ("a", "bc", ""), ("", "ab", "c"), ("b", "a", "c"), ("a", "b", "d")]
    assert len({RecordKey(*each).digest() for each in names}) == len(names)


def test_a_long_key_is_refused_without_its_text() -> None:
    RecordKey("", "t", "k" * MAX_KEY_CHARACTERS).checked()
    with pytest.raises(InvalidRequest, match=r"^idempotency_key 'k{32}'\.\.\. has 129 characters"):
        RecordKey("", "t", "k" * 129).checked()


@pytest.mark.parametrize(
    "record",
    [claim(5), Outcome(b"t" * 16, Result.PLACED, 3, 1 << 40), *(Outcome(b"t" * 16, each) for each in Result)],
)
def test_records_are_read_as_they_were_written(record: Claim | Outcome) -> None:
    assert decode(encode(record)) == record


@pytest.mark.parametrize("value", [b"", b"\1", b"\5" + b"x" * 28, b"\2" + b"x" * 80, encode(claim(1)) + b"x"])
def test_records_of_nobody_are_no_records(value: bytes) -> None:
    assert decode(value) is None


@pytest.mark.parametrize(
    ("metadata", "repeated"),
    [
        (None, False),
        ([("x-envoy-attempt-count", "1"), ("x-request-id", "5")], False),
        ([("x-envoy-attempt-count", "2")], True),
        ([("grpc-previous-rpc-attempts", "1")], True),
        ([("grpc-previous-rpc-attempts", "0")], False),
        ([("x-envoy-attempt-count", "-2"), ("grpc-previous-rpc-attempts", "many")], False),
    ],
)
def test_a_repeated_attempt_is_one_that_a_proxy_or_grpc_has_numbered(metadata: Any, repeated: bool) -> None:
    if not repeated:
        refuse_repeated(metadata, "give a key")
        return
    with pytest.raises(Uncertain, match="an earlier attempt of this call may have been carried out; give a key"):
        refuse_repeated(metadata, "give a key")
