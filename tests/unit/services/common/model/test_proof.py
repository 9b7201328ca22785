"""Proofs of pages and their JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.model.errors import InvalidRequest
from services.common.model.proof import (
    NO_PROOF,
    SETTLED_AFTER_NS,
    Proof,
    ProofKind,
    describe_evidence,
    encode_proofs,
    join_evidence,
    parse_proofs,
)
from services.common.model.time_range import TimeRange

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
    sums = [Proof(TimeRange(n, n + 1), ProofKind.CHECKSUM, 1, 10 - n, 10) for n in range(4)]
    odds = Proof(TimeRange(4, 5), ProofKind.ODDS, 5, 0, SETTLED_AFTER_NS - 1)
    later = odds._replace(span=TimeRange(5, 6), last_ns=SETTLED_AFTER_NS)
    text = join_evidence(encode_proofs(sums[:2]), encode_proofs([*sums[2:], odds, later]))
    assert parse_proofs(text) == (Proof(TimeRange(0, 4), ProofKind.CHECKSUM, 4, 7, 10), odds, later)
    assert [proof.is_provisional for proof in parse_proofs(text)] == [False, True, False]
    assert describe_evidence(text) == "checksum, odds, provisional"


def test_pages_without_proofs_say_nothing_about_others() -> None:
    text = encode_proofs([Proof(TimeRange(0, 1), ProofKind.TRADE_IDS, 1, 0, 0)])
    assert join_evidence(NO_PROOF, NO_PROOF) == describe_evidence(NO_PROOF) == NO_PROOF
    assert join_evidence(NO_PROOF, text) == join_evidence(text, NO_PROOF) == text
