"""History of a dataset without periods, from its request to its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dexorder.client.inputs import check_ticker, read_exact_range
from dexorder.client.moments import Moment
from dexorder.client.requests import AsyncRequests, OnProgress, history_span, new_request_id
from dexorder.client.table_rows import AsyncTableRows, check_ended
from dexorder_common.model.datasets import Dataset
from dexorder_common.model.history import HistoryRequest, RequestStatus

if TYPE_CHECKING:
    from dexorder.rows.table import Rows


class AsyncPoints:
    """History of one dataset, for asyncio."""

    def __init__(self, dataset: Dataset, requests: AsyncRequests, rows: AsyncTableRows) -> None:
        self._dataset = dataset
        self._requests = requests
        self._rows = rows

    async def fetch(
        self,
        ticker: str,
        since: Moment,
        until: Moment = "now",
        *,
        request_id: str | None = None,
        client_id: str = "",
        refresh: bool = False,
        on_progress: OnProgress | None = None,
        timeout: float | None = None,
    ) -> Rows:
        """Return the rows of ``[since, until)``, ascending by time. Missing ranges are fetched first.

        Args:
            since: As in ``history``, but not rounded, because these rows are not on a grid.
            until: Like ``since``; exclusive.
            request_id: Repeating a call with the same id and times repeats the same request; default a new id.
            client_id: The caller, for ``list_requests``.
            refresh: Fetch the whole range from the exchange again.
            on_progress: Called at each change; it counts hours of the range.
            timeout: Longest wait for the end, in seconds; None waits as long as the relay does.

        Raises:
            RequestRefused: The relay refuses the request; the message names the field and its value.
            HistoryError: The request ended without all rows; ``record.missing`` has the ranges. HistoryNotFound: The
                exchange has no rows in the range.
            WaitEnded: ``timeout`` passed; the request continues under its id.
            RelayUnreachable: The relay did not answer for ``patience_seconds``.
        """
        check_ticker(ticker)
        span = read_exact_range(since, until)
        request = HistoryRequest(
            request_id or new_request_id(),
            ticker,
            span.start_ns,
            span.end_ns,
            0,
            client_id=client_id,
            refresh=refresh,
            dataset=self._dataset,
        )
        with history_span(request):
            ended = await self._requests.fetch(request, on_progress=on_progress, timeout=timeout)
            check_ended(ended, partial=ended.record.status is RequestStatus.OK)
            return await self._rows.points(request.series, span)
