"""RPCs of receipts: each keeps a snapshot of a table, and the hash of the document that its client has."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import structlog

from dexorder_common.lake import receipts
from dexorder_common.lake.receipts import KeptReceipt
from dexorder_common.lake.tables import OHLC
from dexorder_common.model.errors import InvalidRequest, NotFound
from dexorder_common.model.time_range import TimeRange
from dexorder_common.rpc.common_messages import decode_series, encode_series
from dexorder_common.rpc.identity import current_caller
from dexorder_protos.dexorder.relay.v1 import rows_service_pb2 as pb
from dexorder_relay import access
from dexorder_relay.engine import RelayEngine
from dexorder_relay.fair_semaphore import FairSemaphore
from dexorder_relay.reading.rows import accessible
from dexorder_relay.requests.queries import page_by_name
from dexorder_relay.service.turns import MAX_WAITING_READS
from dexorder_relay.state.request import check_rows

log = structlog.get_logger(__name__)
_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
T = TypeVar("T")


@dataclass(frozen=True)
class ReceiptRpcs:
    """RPCs of ``dexorder receipt``. One is at work at a time, of each client in turn: each reads or commits the
    metadata of tables.
    """

    engine: RelayEngine
    _one: FairSemaphore = field(default_factory=lambda: FairSemaphore(1, MAX_WAITING_READS))

    async def CreateReceipt(self, request: pb.CreateReceiptRequest, _: object) -> pb.CreateReceiptResponse:
        """Keep a snapshot until the receipt is deleted."""
        caller, context = current_caller(), self.engine.context
        wanted = self._decode(request.receipt, caller.client_id if caller else "", context.clock.wall_ns())
        context.quotas.submit(caller, now_ns=context.clock.monotonic_ns())
        kept = await self._run(
            lambda: receipts.keep(self.engine.tables, wanted, lambda count: context.quotas.make_receipt(caller, count))
        )
        log.info("receipt kept", receipt_id=kept.receipt_id, snapshot_id=kept.snapshot_id, client_id=kept.client_id)
        return pb.CreateReceiptResponse(receipt=_encode(kept))

    async def GetReceipt(self, request: pb.GetReceiptRequest, _: object) -> pb.GetReceiptResponse:
        """Return a receipt."""
        return pb.GetReceiptResponse(receipt=_encode(await self._find(request.receipt_id)))

    async def ListReceipts(self, request: pb.ListReceiptsRequest, _: object) -> pb.ListReceiptsResponse:
        """Return a page of the caller's receipts."""
        caller = current_caller()
        found = await self._run(lambda: receipts.all_receipts(self.engine.tables))
        own = [each for each in found if access.owns(caller, each.client_id)]
        page, token = page_by_name(own, lambda each: each.receipt_id, _encode, request.page_size, request.page_token)
        return pb.ListReceiptsResponse(receipts=page, next_page_token=token)

    async def DeleteReceipt(self, request: pb.DeleteReceiptRequest, _: object) -> pb.DeleteReceiptResponse:
        """Delete a receipt; its snapshot may expire."""
        context = self.engine.context
        context.quotas.submit(current_caller(), now_ns=context.clock.monotonic_ns())
        found = await self._find(request.receipt_id)
        await self._run(lambda: receipts.drop(self.engine.tables, found))
        log.info("receipt deleted", receipt_id=found.receipt_id, client_id=found.client_id)
        return pb.DeleteReceiptResponse()

    async def _find(self, receipt_id: str) -> KeptReceipt:
        caller, known = current_caller(), await self._run(lambda: receipts.all_receipts(self.engine.tables))
        for each in known:
            if each.receipt_id == receipt_id and access.owns(caller, each.client_id):
                return each
        raise NotFound(f"receipt_id {receipt_id[:64]!r} is not known")

    async def _run(self, work: Callable[[], T]) -> T:
        def guarded() -> T:
            with accessible(OHLC, "read or changed"):
                return work()

        return await self._one.in_thread(guarded)

    def _decode(self, message: pb.Receipt, client_id: str, now_ns: int) -> KeptReceipt:
        if not _ID.fullmatch(message.receipt_id):
            raise InvalidRequest(
                f"receipt.receipt_id {message.receipt_id!r} is not up to 64 of a-z, 0-9 and -, the first of them a "
                "letter or digit"
            )
        if not _SHA256.fullmatch(message.document_sha256):
            raise InvalidRequest(f"receipt.document_sha256 {message.document_sha256!r} is not 64 hexadecimal digits")
        series = decode_series(message.series)
        if not series.dataset.is_covered:
            raise InvalidRequest(
                f"receipt.series.dataset {series.dataset.name!r} is stored without coverage; a receipt needs it"
            )
        check_rows(series, message.start_ns, message.end_ns, self.engine.context.venues)
        span = TimeRange(message.start_ns, message.end_ns)
        return KeptReceipt(
            message.receipt_id, series, span, message.snapshot_id, message.document_sha256, client_id, now_ns
        )


def _encode(kept: KeptReceipt) -> pb.Receipt:
    return pb.Receipt(
        receipt_id=kept.receipt_id,
        series=encode_series(kept.series),
        start_ns=kept.span.start_ns,
        end_ns=kept.span.end_ns,
        snapshot_id=kept.snapshot_id,
        document_sha256=kept.document_sha256,
        client_id=kept.client_id,
        created_ns=kept.created_ns,
    )
