"""The document of a receipt: rows by their hash, each hole with its proofs, and the provisional ranges. Pure."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dexorder.errors import ReceiptFailed, RequestRefused
from dexorder.receipts.row_hash import COLUMNS, RowHash
from dexorder_common.model.coverage import Coverage, CoverageKind, CoveragePage
from dexorder_common.model.datasets import dataset_named
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.history import range_json
from dexorder_common.model.instrument import Series
from dexorder_common.model.periods import PERIODS, count_periods
from dexorder_common.model.proof import Proof, proofs_of
from dexorder_common.model.time_range import TimeRange, merge, subtract
from dexorder_common.model.times import iso

VERSION = 1
_KIND = "dexorder receipt"


@dataclass(frozen=True, slots=True)
class Hole:
    """A range without candles.

    Attributes:
        proofs: Of the pages that say so, as in ``dexorder coverage --why --json``.
        is_final: Whether the proofs together are final, and no candle is expected to turn up.
    """

    span: TimeRange
    proofs: tuple[Mapping[str, Any], ...]
    is_final: bool


@dataclass(frozen=True, slots=True, repr=False)
class Receipt:
    """Which rows a program has used: of a series and a range, at a snapshot that is kept.

    ``str(receipt)`` is the JSON document, ``Receipt.parse`` reads it.

    Attributes:
        provisional: Ranges in which a row may still turn up, with ``hole`` or ``rows``.
    """

    receipt_id: str
    series: Series
    span: TimeRange
    snapshot_id: int
    made_ns: int
    rows: RowHash
    holes: tuple[Hole, ...]
    provisional: tuple[tuple[TimeRange, str], ...]

    @property
    def document_sha256(self) -> str:
        """Hash of the document, which the relay keeps."""
        return _digest(self._content())

    @property
    def summary(self) -> str:
        """Series, range and numbers of rows, holes and provisional ranges, as one line."""
        period = self.series.dataset.period_name(self.series.period_seconds)
        text = f"{self.series.ticker} {period} {self.span}: {self.rows.count:,} {self.series.dataset.rows}"
        if self.holes:
            periods = sum(count_periods(each.span, self.series.period_seconds) for each in self.holes)
            text += f", {periods:,} periods in {len(self.holes):,} proven holes"
        return text + (f", {len(self.provisional):,} ranges provisional" if self.provisional else "")

    def __repr__(self) -> str:
        return f"Receipt {self.receipt_id}: {self.summary}"

    def as_json(self) -> dict[str, Any]:
        """Return the document as JSON values."""
        content = self._content()
        return {**content, "document_sha256": _digest(content)}

    def _content(self) -> dict[str, Any]:
        series, seconds = self.series, self.series.period_seconds
        return {
            "kind": _KIND,
            "version": VERSION,
            "receipt_id": self.receipt_id,
            "ticker": series.ticker,
            "dataset": series.dataset.name,
            "period": PERIODS.get(seconds),
            "period_seconds": seconds,
            **range_json(self.span),
            "table": series.dataset.table,
            "snapshot_id": self.snapshot_id,
            "made_ns": self.made_ns,
            "made_at": iso(self.made_ns),
            "rows": {
                "count": self.rows.count,
                "columns": list(COLUMNS[series.dataset]),
                "sha256": self.rows.sha256,
                "days": self.rows.days,
            },
            "holes": [
                {
                    **range_json(each.span),
                    "periods": count_periods(each.span, seconds),
                    "final": each.is_final,
                    "proofs": list(each.proofs),
                }
                for each in self.holes
            ],
            "provisional": [{**range_json(span), "of": of} for span, of in self.provisional],
        }

    def __str__(self) -> str:
        return json.dumps(self.as_json(), indent=1) + "\n"

    @classmethod
    def parse(cls, text: str) -> Receipt:
        """Read a document; RequestRefused if it is none, ReceiptFailed if it was changed after it was made."""
        try:
            found = json.loads(text)
            if found["kind"] != _KIND or found["version"] != VERSION:
                raise RequestRefused(
                    f"kind {found['kind']!r}, version {found['version']!r} is not read by this version"
                )
            series = Series(found["ticker"], found["period_seconds"], dataset_named(found["dataset"]))
            receipt = cls(
                found["receipt_id"],
                series,
                _span(found),
                found["snapshot_id"],
                found["made_ns"],
                RowHash(found["rows"]["count"], found["rows"]["days"], tuple(map(_span, found["holes"]))),
                tuple(Hole(_span(each), tuple(each["proofs"]), each["final"]) for each in found["holes"]),
                tuple((_span(each), each["of"]) for each in found["provisional"]),
            )
            same = receipt.as_json() == found
        except (ValueError, KeyError, TypeError, AttributeError, InvalidRequest) as error:
            raise RequestRefused(f"this is not a receipt: {type(error).__name__}: {error}") from None
        if not same:
            raise ReceiptFailed(f"the document of receipt {receipt.receipt_id} was changed after it was made")
        return receipt

    @classmethod
    def load(cls, path: str | Path) -> Receipt:
        """Read a file as ``parse`` does."""
        try:
            return cls.parse(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise RequestRefused(
                f"receipt {str(path)!r} can't be read: {getattr(error, 'strerror', None) or error}"
            ) from None


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _span(found: Mapping[str, Any]) -> TimeRange:
    return TimeRange(found["start_ns"], found["end_ns"])


def proven_holes(found: Coverage, rows: RowHash, span: TimeRange) -> tuple[Hole, ...] | None:
    """Return the holes of the rows with their proofs; None unless coverage says the same of each.

    Args:
        found: Coverage of the range, with its pages.

    Raises:
        ReceiptFailed: A part of the range is not covered.
    """
    if missing := found.why_incomplete(span):
        raise ReceiptFailed(f"{missing}; fetch them first (`dexorder history`), or make a receipt of a shorter range")
    if not found.dataset.has_periods:
        return ()
    absent = merge(each.span for each in found.known if each.kind in (CoverageKind.EMPTY, CoverageKind.PROVISIONAL))
    if absent != list(rows.holes):
        return None
    told = _told(rows.holes, found.pages)
    return tuple(map(_hole, rows.holes, told)) if all(told) else None


def provisional_parts(found: Coverage, holes: Iterable[Hole]) -> tuple[tuple[TimeRange, str], ...]:
    """Return the ranges in which a row may still turn up, and whether it is a hole or rows."""
    doubtful = [each.span for each in found.known if each.kind is CoverageKind.PROVISIONAL]
    parts = [(each.span, "hole") for each in holes if not each.is_final or any(map(each.span.overlaps, doubtful))]
    rows = [(each.span, "rows") for each in found.known if each.kind is CoverageKind.PROVISIONAL_ROWS]
    return tuple(sorted([*parts, *rows]))


_Told = tuple[CoveragePage, Proof | None]
"""A page that counts and says that a hole is empty, and its proof; None in a page of an older ingestor."""


def _told(holes: Sequence[TimeRange], pages: Iterable[CoveragePage]) -> list[list[_Told]]:
    """Return, for each hole, what pages say of it."""
    starts = [each.start_ns for each in holes]
    found: list[list[_Told]] = [[] for _ in holes]
    for page in pages:
        proofs = proofs_of(page.evidence)
        for empty in subtract(page.empty, page.retracted):
            for number in range(max(0, bisect_right(starts, empty.start_ns) - 1), len(holes)):
                if holes[number].start_ns >= empty.end_ns:
                    break
                if part := holes[number].intersect(empty):
                    speaking = [proof for proof in proofs if proof.span.overlaps(part)]
                    new: list[_Told] = [(page, proof) for proof in speaking] or [(page, None)]
                    found[number] += [each for each in new if each not in found[number]]
    return found


def _hole(span: TimeRange, told: Sequence[_Told]) -> Hole:
    """Return a hole. The answers of several proofs count together, because the exchange was queried again later."""
    proofs = [proof for _, proof in told if proof is not None]
    is_final = len(proofs) < len(told) or any(not each.is_provisional for each in proofs)
    if proofs and not is_final:
        last = max(proofs, key=lambda each: each.last_ns)
        is_final = not last._replace(first_ns=min(each.first_ns for each in proofs)).is_provisional
    return Hole(span, tuple(_proof_json(*each) for each in told), is_final)


def _proof_json(page: CoveragePage, proof: Proof | None) -> dict[str, Any]:
    fetched = {"fetched_at": iso(page.fetched_ns)}
    if proof is None:
        return {"kind": "page", "since": iso(page.span.start_ns), "until": iso(page.span.end_ns), **fetched}
    return {
        "kind": str(proof.kind),
        "since": iso(proof.span.start_ns),
        "until": iso(proof.span.end_ns),
        "answers": proof.answers,
        "first_asked": iso(proof.first_ns),
        "last_asked": iso(proof.last_ns),
        "provisional": proof.is_provisional,
        **fetched,
    }
