"""Proofs that a page has all candles of its ranges: by which means, and when the exchange was asked. Pure.

The header ``dx-proofs`` of a page and the column ``evidence`` of ``trading.coverage`` hold them as JSON,
``[[start_ns, end_ns, kind, answers, first_ns, last_ns], …]``. docs/completeness.md describes the kinds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.time_range import TimeRange, joined, subtract
from dexorder_common.model.times import MAX_TIME_NS, SECOND_NS

MAX_PROOFS = 10_000
"""Largest number of proofs of a page."""
MAX_ANSWERS = 2**31 - 1
SPREAD_NS = 600 * SECOND_NS
"""Time between the first and the last answer from which on an absence counts as final."""
SETTLED_AFTER_NS = 3_600 * SECOND_NS
"""Age of a range's end after which its absences may be final: no replica is so far behind."""
NO_PROOF = "page"
"""Evidence of pages without proofs, which older ingestors send."""


class ProofKind(StrEnum):
    """Means of a proof."""

    CHECKSUM = "checksum"
    """Coarser candles of the exchange equal the range's candles in open, high, low, close and volume."""
    TRADE_IDS = "trade-ids"
    """The exchange numbers its trades, and no number is missing."""
    ODDS = "odds"
    """A number of answers agree."""
    REFILL = "refill"
    """Two answers about the trades since the last settled time agree; for exchanges that do not number them."""


class Proof(NamedTuple):
    """Proof about all periods of a range, with and without candles.

    Attributes:
        answers: Number of answers that support it.
        first_ns: Time of the first of them, by the ingestor's clock.
        last_ns: Time of the last of them.
    """

    span: TimeRange
    kind: ProofKind
    answers: int
    first_ns: int
    last_ns: int

    @property
    def is_provisional(self) -> bool:
        """Whether an absent candle may still turn up: the range had ended less than an hour before the last answer, or
        all answers were given within ten minutes. Coarser candles too: an exchange may compute them at each call."""
        if self.kind is ProofKind.TRADE_IDS:
            return False
        young = self.last_ns - self.span.end_ns < SETTLED_AFTER_NS
        return young or (self.kind is not ProofKind.REFILL and self.last_ns - self.first_ns < SPREAD_NS)


def provisional_ranges(proofs: Iterable[Proof], empty: Iterable[TimeRange]) -> list[TimeRange]:
    """Return the part of verified-empty ranges that no final proof covers; all of it without proofs."""
    return subtract(empty, [proof.span for proof in proofs if not proof.is_provisional])


def join_proofs(proofs: Iterable[Proof]) -> list[Proof]:
    """Return proofs in time order; adjacent ones of arithmetic are joined, but not provisional with final ones."""
    return joined(sorted(proofs), _join)


def _join(one: Proof, other: Proof) -> Proof | None:
    """Return two adjacent proofs as one, or None if it would say something else."""
    if one.kind is not other.kind or one.kind is ProofKind.ODDS or one.span.end_ns != other.span.start_ns:
        return None
    times_ns = min(one.first_ns, other.first_ns), max(one.last_ns, other.last_ns)
    answers = min(one.answers + other.answers, MAX_ANSWERS)
    both = Proof(TimeRange(one.span.start_ns, other.span.end_ns), one.kind, answers, *times_ns)
    return both if one.is_provisional == other.is_provisional == both.is_provisional else None


def encode_proofs(proofs: Iterable[Proof]) -> str:
    """Return the proofs as JSON."""
    rows = [[p.span.start_ns, p.span.end_ns, p.kind.value, p.answers, p.first_ns, p.last_ns] for p in proofs]
    return json.dumps(rows, separators=(",", ":"))


def parse_proofs(text: str) -> tuple[Proof, ...]:
    """Parse the JSON of proofs; InvalidRequest names the part at fault."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"proofs {text[:40]!r} are not JSON: {error}") from error
    if not isinstance(found, list) or len(found) > MAX_PROOFS:
        raise InvalidRequest(f"proofs {text[:40]!r} are not a list of at most {MAX_PROOFS}")
    return tuple(map(_parse_proof, found))


def proofs_of(evidence: str) -> tuple[Proof, ...]:
    """Return the proofs in a text of evidence; none in texts of older ingestors."""
    return parse_proofs(evidence) if evidence.startswith("[") else ()


def join_evidence(one: str, other: str) -> str:
    """Return the evidence of two adjacent ranges as one text."""
    known = [text for text in (one, other) if text != NO_PROOF]
    return encode_proofs(join_proofs(p for text in known for p in parse_proofs(text))) if known else NO_PROOF


def describe_evidence(text: str, empty: Iterable[TimeRange]) -> str:
    """Return the kinds of proofs in a text of evidence, and that some of the empty ranges are provisional; other texts
    unchanged."""
    if not text.startswith("["):
        return text
    proofs = parse_proofs(text)
    kinds = dict.fromkeys(str(proof.kind) for proof in proofs)
    return ", ".join([*kinds, *(["provisional"] if provisional_ranges(proofs, empty) else [])])


def _parse_proof(row: object) -> Proof:
    kinds = {kind.value: kind for kind in ProofKind}
    if isinstance(row, list) and list(map(type, row)) == [int, int, str, int, int, int] and row[2] in kinds:
        start_ns, end_ns, kind, answers, first_ns, last_ns = row
        if 0 < answers <= MAX_ANSWERS and 0 <= first_ns <= last_ns <= MAX_TIME_NS:
            return Proof(TimeRange(start_ns, end_ns), kinds[kind], answers, first_ns, last_ns)
    raise InvalidRequest(f"proof {row!r:.120} is not [start_ns, end_ns, kind, answers, first_ns, last_ns]")
