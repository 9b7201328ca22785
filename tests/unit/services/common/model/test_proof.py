"""Proofs of pages and their JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.proof import (
    NO_PROOF,
    SETTLED_AFTER_NS,
    SPREAD_NS,
    Proof,
    ProofKind,
    describe_evidence,
    encode_proofs,
    join_evidence,
    join_proofs,
    parse_proofs,
)
from dexorder_common.model.time_range import TimeRange

numbers = st.integers(0, 2**63 - 1)
pairs = st.tuples(numbers, numbers).map(sorted)
proofs = st.builds(
    lambda span, kind, answers, times: Proof(TimeRange(*span), kind, answers, *times),
    pairs,
    st.sampled_from(ProofKind),
    st.integers(1, 2**31 - 1),
    pairs,
)


@given(st.lists(proofs, max_size=5))
def test_round_trip(made: list[Proof]) -> None:
    assert parse_proofs(encode_proofs(made)) == tuple(made)


@pytest.mark.parametrize(
    "row",
    [
        [0, 1, "checksum", 1, 0],
        [0, 1, "belief", 1, 0, 0],
        [0, 1, "odds", 0, 0, 0],
        [0, 1, "odds", True, 0, 0],
        [0, 1, "odds", 1, 2, 1],
        [1, 0, "odds", 1, 0, 0],
        [0, 2**63, "odds", 1, 0, 0],
        [0, 1, {}, 1, 0, 0],
        7,
    ],
)
def test_malformed_proof_is_refused(row: object) -> None:
    with pytest.raises(InvalidRequest):
        parse_proofs(json.dumps([row]))


def test_adjacent_checksums_are_one_proof_and_odds_keep_their_times() -> None:
    asked_ns = SETTLED_AFTER_NS + 10
    sums = [Proof(TimeRange(n, n + 1), ProofKind.CHECKSUM, 1, asked_ns - n, asked_ns) for n in range(4)]
    odds = Proof(TimeRange(4, 5), ProofKind.ODDS, 5, asked_ns, asked_ns + SPREAD_NS - 1)
    later = odds._replace(span=TimeRange(5, 6), last_ns=odds.last_ns + 1)
    text = join_evidence(encode_proofs(sums[:2]), encode_proofs([*sums[2:], odds, later]))
    joined = Proof(TimeRange(0, 4), ProofKind.CHECKSUM, 4, asked_ns - 3, asked_ns)
    assert parse_proofs(text) == (joined, odds, later)
    assert [proof.is_provisional for proof in parse_proofs(text)] == [True, True, False]
    assert describe_evidence(text, [TimeRange(4, 6)]) == "checksum, odds, provisional"
    assert describe_evidence(text, [TimeRange(5, 6)]) == "checksum, odds"


@pytest.mark.parametrize(
    ("kind", "age_ns", "spread_ns", "provisional"),
    [
        (ProofKind.CHECKSUM, SETTLED_AFTER_NS, SPREAD_NS, False),
        (ProofKind.CHECKSUM, SETTLED_AFTER_NS, SPREAD_NS - 1, True),
        (ProofKind.CHECKSUM, SETTLED_AFTER_NS - 1, SETTLED_AFTER_NS, True),
        (ProofKind.CHECKSUM, -5, 0, True),
        (ProofKind.ODDS, SETTLED_AFTER_NS, SPREAD_NS, False),
        (ProofKind.ODDS, SETTLED_AFTER_NS, SPREAD_NS - 1, True),
        (ProofKind.ODDS, SETTLED_AFTER_NS - 1, SPREAD_NS, True),
        (ProofKind.TRADE_IDS, 0, 0, False),
        (ProofKind.REFILL, SETTLED_AFTER_NS, 0, False),
    ],
)
def test_young_proofs_are_provisional(kind: ProofKind, age_ns: int, spread_ns: int, provisional: bool) -> None:
    end_ns = 2 * SETTLED_AFTER_NS
    last_ns = end_ns + age_ns
    proof = Proof(TimeRange(0, end_ns), kind, 2, last_ns - spread_ns, last_ns)
    assert proof.is_provisional is provisional


def test_final_proof_stays_apart_from_a_provisional_one() -> None:
    hour_ns, now_ns = SETTLED_AFTER_NS, 10 * SETTLED_AFTER_NS
    hours = [TimeRange(n * hour_ns, (n + 1) * hour_ns) for n in range(10)]
    proofs = [Proof(hour, ProofKind.CHECKSUM, 2, now_ns - SPREAD_NS, now_ns) for hour in hours]
    spans = [(p.span, p.is_provisional) for p in join_proofs(proofs)]
    assert spans == [(TimeRange(0, 9 * hour_ns), False), (TimeRange(9 * hour_ns, now_ns), True)]


def test_pages_without_proofs_say_nothing_about_others() -> None:
    text = encode_proofs([Proof(TimeRange(0, 1), ProofKind.TRADE_IDS, 1, 0, 0)])
    assert join_evidence(NO_PROOF, NO_PROOF) == describe_evidence(NO_PROOF, []) == NO_PROOF
    assert join_evidence(NO_PROOF, text) == join_evidence(text, NO_PROOF) == text
