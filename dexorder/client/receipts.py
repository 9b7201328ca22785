"""Receipts, ``client.receipts``: make, verify, list and drop them."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dexorder import errors
from dexorder.client.connection import RelayConnection
from dexorder.client.inputs import read_series
from dexorder.client.moments import Moment
from dexorder.client.series import AsyncSeries
from dexorder.client.table_rows import AsyncTableRows
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_common.rpc.common_messages import decode_series, encode_series
from dexorder_protos.dexorder.relay.v1 import rows_service_pb2 as pb

if TYPE_CHECKING:
    from dexorder.receipts.receipt import Receipt
    from dexorder.receipts.row_hash import RowHash

_ATTEMPTS = 5
"""Attempts to read rows and coverage that say the same: a batch may be committed between them."""
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class ListedReceipt:
    """A receipt in the relay's list."""

    receipt_id: str
    series: Series
    span: TimeRange
    snapshot_id: int
    client_id: str
    created_ns: int


@dataclass(frozen=True, slots=True)
class ReceiptCheck:
    """Result of a verification.

    Attributes:
        faults: Differences from the receipt, a sentence each; empty if the rows agree.
        changed_days: Days with different rows in the table now, for example because a candle has turned up. The
            receipt is still good: its own rows are kept.
    """

    receipt_id: str
    faults: tuple[str, ...]
    changed_days: tuple[str, ...]

    @property
    def well(self) -> bool:
        """Whether rows, holes and document are as the receipt says."""
        return not self.faults


class AsyncReceipts:
    """Receipts of one relay, for asyncio."""

    def __init__(self, connection: RelayConnection, rows: AsyncTableRows, series: AsyncSeries) -> None:
        self._connection = connection
        self._rows = rows
        self._series = series

    async def make(self, ticker: str, period: str | int, since: Moment, until: Moment = "now") -> Receipt:
        """Make a receipt for the rows of a complete range, and keep their snapshot until the receipt is dropped.

        In place of a period, ``trades`` and ``funding`` stand for these rows. ``str(receipt)`` is the document to keep.

        Raises:
            ReceiptFailed: The range is not complete, or the table has rows that it must not have.
            RequestRefused: A value is invalid.
            QuotaReached: The caller, or the table, has too many receipts.
        """
        from dexorder.receipts.receipt import Receipt, proven_holes, provisional_parts

        series, span = read_series(ticker, period, since, until)
        span = TimeRange(span.start_ns // 1_000 * 1_000, span.end_ns // 1_000 * 1_000)  # as precise as the table
        dataset = series.dataset
        for attempt in range(_ATTEMPTS):
            snapshot_id = await self._rows.snapshot_id(series, span)
            if snapshot_id is None:
                raise errors.ReceiptFailed(f"{dataset.table} is still empty")
            found = await self._series.coverage(ticker, period, span.start_ns, span.end_ns, detail=dataset.has_periods)
            rows = await self._hash(series, span, snapshot_id)
            holes = None if rows is None else proven_holes(found, rows, span)
            if rows is not None and holes is not None:
                break
            await asyncio.sleep(0.2 * 2**attempt)
        else:
            raise errors.ReceiptFailed(
                f"rows and coverage of {ticker} {period} do not agree; `dexorder verify {ticker} {period}` says where"
            )
        receipt = Receipt(
            uuid.uuid4().hex[:16],
            series,
            span,
            snapshot_id,
            time.time_ns(),
            rows,
            holes,
            provisional_parts(found, holes),
        )
        message = pb.Receipt(
            receipt_id=receipt.receipt_id,
            series=encode_series(series),
            start_ns=span.start_ns,
            end_ns=span.end_ns,
            snapshot_id=snapshot_id,
            document_sha256=receipt.document_sha256,
        )
        call = self._connection.call
        await call(self._connection.stub.rows.CreateReceipt, pb.CreateReceiptRequest(receipt=message))
        return receipt

    async def verify(self, receipt: Receipt | str | Path) -> ReceiptCheck:
        """Compare a receipt, or the file of one, with the relay and the rows of its snapshot, and with the table now.

        Raises:
            ReceiptFailed: The document was changed after it was made.
            RequestRefused: The file can't be read, or is no receipt.
        """
        from dexorder.receipts.receipt import Receipt

        known = Receipt.load(receipt) if isinstance(receipt, str | Path) else receipt
        faults = await self._faults_of_document(known)
        rows = await self._hash(known.series, known.span, known.snapshot_id)
        faults = (*faults, *_faults_of_rows(known, rows))
        current = await self._rows.snapshot_id(known.series, known.span)
        changed = None
        if current is not None and current != known.snapshot_id:
            now = await self._hash(known.series, known.span, current)
            changed = None if now is None else known.rows.differing_days(now)
        return ReceiptCheck(known.receipt_id, faults, tuple(changed or ()))

    async def list(self) -> list[ListedReceipt]:
        """Return the caller's receipts by id; all receipts for an admin."""
        pages = self._connection.pages(self._connection.stub.rows.ListReceipts, pb.ListReceiptsRequest(page_size=1_000))
        return [_listed(each) async for answer in pages for each in answer.receipts]

    async def drop(self, receipt_id: str) -> None:
        """Drop a receipt: its snapshot may expire. RequestUnknown if no receipt has this id."""
        request = pb.DeleteReceiptRequest(receipt_id=receipt_id)
        await self._connection.call(self._connection.stub.rows.DeleteReceipt, request)

    async def _faults_of_document(self, known: Receipt) -> tuple[str, ...]:
        request = pb.GetReceiptRequest(receipt_id=known.receipt_id)
        try:
            answer = await self._connection.call(self._connection.stub.rows.GetReceipt, request)
        except errors.RequestUnknown:
            return ("the relay does not know it: it was dropped, or belongs to another client",)
        kept: pb.Receipt = answer.receipt
        if kept.document_sha256 != known.document_sha256:
            return ("its document is not the one that was made: the relay has another hash of it",)
        return ()

    async def _hash(self, series: Series, span: TimeRange, snapshot_id: int) -> RowHash | None:
        """Return the hash of the rows at a snapshot; None if it is not kept."""
        from dexorder.receipts.row_hash import hash_rows

        source = await self._rows.source()

        def read() -> RowHash | None:
            batches = source.at(series, span, snapshot_id)
            return None if batches is None else hash_rows(batches, series, span)

        return await asyncio.to_thread(read)


def _faults_of_rows(known: Receipt, rows: RowHash | None) -> list[str]:
    """Return what differs between a receipt and the rows of its snapshot."""
    if rows is None:
        return [f"snapshot {known.snapshot_id} is not kept any more"]
    faults = list[str]()
    if rows.count != known.rows.count:
        faults.append(f"the snapshot has {rows.count:,} rows, not {known.rows.count:,}")
    if days := known.rows.differing_days(rows):
        more = f" and {len(days) - _SHOWN:,} more" if len(days) > _SHOWN else ""
        faults.append(f"rows differ on {', '.join(days[:_SHOWN])}{more}")
    if holes := set(rows.holes) ^ {each.span for each in known.holes}:
        faults.append(f"holes differ: {min(holes)}" + (f" and {len(holes) - 1:,} more" if len(holes) > 1 else ""))
    return faults


def _listed(message: pb.Receipt) -> ListedReceipt:
    return ListedReceipt(
        message.receipt_id,
        decode_series(message.series),
        TimeRange(message.start_ns, message.end_ns),
        message.snapshot_id,
        message.client_id,
        message.created_ns,
    )
