"""``dexorder coverage --why``: the facts about one candle, or about the trades of one moment, and their sources."""

from __future__ import annotations

import asyncio
from typing import Any

from dexorder.cli.history.queries import find_coverage
from dexorder.cli.terminal import output
from dexorder.client.inputs import covered_dataset, read_part
from dexorder_common.model.coverage import Coverage, CoverageKind, CoveragePage
from dexorder_common.model.periods import next_open
from dexorder_common.model.proof import Proof, ProofKind, proofs_of
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import iso

_KINDS = {
    CoverageKind.ROWS: "the table has this candle",
    CoverageKind.EMPTY: "the exchange has no such candle",
    CoverageKind.PROVISIONAL: "the exchange has had no such candle so far; it is queried again",
    CoverageKind.PROVISIONAL_ROWS: "the table has this candle, but only one source says that no trade of it is missing",
    CoverageKind.MISSING: "not known: no page that counts covers it; `dexorder history` fetches it",
}


_RANGES = {
    CoverageKind.ROWS: "all rows of this time are in the table",
    CoverageKind.EMPTY: "the exchange has no row there",
    CoverageKind.PROVISIONAL: "the exchange has had no row there so far; it is queried again",
    CoverageKind.PROVISIONAL_ROWS: "the table has what is known, but only one source says that nothing is missing",
    CoverageKind.MISSING: "not known: nothing that counts covers this time",
}
"""The same of a dataset without periods."""


def why(ticker: str, period: str, time: str, as_json: bool, relay: str | None) -> None:
    """Print whether a candle, or the rows of a time, are stored, absent or unknown, and the pages that say so."""
    dataset = covered_dataset(period)
    seconds, open_ns, _ = read_part(period, time, None, dataset=dataset)
    assert open_ns is not None
    span = TimeRange(open_ns, next_open(open_ns, seconds) if dataset.has_periods else open_ns + 1)
    found = asyncio.run(
        find_coverage(
            ticker, seconds if dataset.has_periods else period, span.start_ns, span.end_ns, detail=True, relay=relay
        )
    )
    kind = kind_of(found, span)
    pages = [page for page in found.pages if page.span.overlaps(span)]
    if as_json:
        answer = {"kind": str(kind), "open_ns": open_ns, "open": iso(open_ns)}
        output.print_json({**answer, "pages": [page_json(page, span) for page in pages]})
        return
    out = output.stdout()
    repeated = kind is CoverageKind.EMPTY and not any(is_final(page, span) for page in pages)
    kinds = _KINDS if dataset.has_periods else _RANGES
    said = f"{kinds[kind]}{', as a later query has confirmed' * repeated}"
    out.print(f"{ticker} {dataset.period_name(seconds)} {iso(open_ns)}: {said}")
    for page in sorted(pages, key=lambda page: page.committed_ns):
        out.print(f"- {page_text(page, span)}")


def kind_of(found: Coverage, span: TimeRange) -> CoverageKind:
    """Return what coverage says of one candle."""
    return next((each.kind for each in found.known if each.span.overlaps(span)), CoverageKind.MISSING)


def proof_of(page: CoveragePage, span: TimeRange) -> Proof | None:
    """Return the proof of a page that speaks about a candle; None if the page is of an older ingestor."""
    return next((proof for proof in proofs_of(page.evidence) if proof.span.overlaps(span)), None)


def is_final(page: CoveragePage, span: TimeRange) -> bool:
    """Return whether a page by itself proves for good that a candle is absent."""
    proof = proof_of(page, span)
    return proof is not None and not proof.is_provisional


def page_text(page: CoveragePage, span: TimeRange) -> str:
    """Return a sentence on a candle from one page."""
    absent = any(each.overlaps(span) for each in page.empty)
    retracted = any(each.overlaps(span) for each in page.retracted)
    said = "no candle" if absent else "a candle"
    text = f"page {page.span}, fetched {iso(page.fetched_ns)}, committed {iso(page.committed_ns)}: {said}"
    text += f"; {proof_text(proof_of(page, span), absent=absent)}"
    return f"{text}; retracted later" if retracted else text


def proof_text(proof: Proof | None, *, absent: bool) -> str:
    """Return a proof that a candle is absent, or has its values, as text."""
    if proof is None:
        return "without a proof"
    times = f"asked from {iso(proof.first_ns)} to {iso(proof.last_ns)}"
    if proof.kind is ProofKind.TRADE_IDS:
        return f"proven by trade ids: none is missing in {proof.span}, {times}"
    text = f"{proof.answers:,} equal answers for {proof.span}"
    if proof.kind is ProofKind.CHECKSUM:
        text = f"proven by checksum: the exchange's coarser candles of {proof.span} agree with its candles"
    open_end = absent and proof.is_provisional
    return f"{text}, {times}{'; provisional, as it was asked too early or too briefly' if open_end else ''}"


def page_json(page: CoveragePage, span: TimeRange) -> dict[str, Any]:
    """Return the fields of a page of ``coverage --json``, with the proof about one candle."""
    proof = proof_of(page, span)
    fields = proof and {
        "kind": str(proof.kind),
        "answers": proof.answers,
        "first_asked": iso(proof.first_ns),
        "last_asked": iso(proof.last_ns),
        "provisional": proof.is_provisional,
    }
    return {**page.as_json(), "proof": fields}
