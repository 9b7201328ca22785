"""Points and batches that an agent sends, put together from its messages."""

from __future__ import annotations

from typing import Any

from dexorder_protos.udf import udf_pb2 as pb
from dexorder_udf import messages
from dexorder_udf.point_layouts import PointLayouts
from dexorder_udf.points import Batch, Point
from dexorder_udf.session import Edge, MessageKind


class ReceivedItems:
    """Complete items, and the unfinished batch. The caller checks the order of the messages."""

    def __init__(self, edge: Edge) -> None:
        """Take the edge of the output: points alone or in batches."""
        self._layouts = PointLayouts(in_batch=edge is Edge.BATCH)
        self._items: list[Point | Batch] = []
        self._begin: pb.BeginBatch | None = None
        self._batch: list[Point] = []

    def add_known(self, body: bytes) -> bool:
        """Add a point of a known layout; return False for any other message, which `add` takes when it is decoded."""
        found = self._layouts.decode(body)
        if found is None:
            return False
        target: list[Any] = self._items if self._begin is None else self._batch
        target.append(found[0])
        return True

    def add(self, body: bytes, response: pb.Response) -> bool:
        """Add a decoded message; return False if it is no point, and no begin or end of a batch."""
        match messages.kind_of(response):
            case MessageKind.POINT:
                target: list[Any] = self._items if self._begin is None else self._batch
                target.append(self._layouts.learn(body, response.point))
            case MessageKind.BEGIN:
                self._begin = response.begin
            case MessageKind.END:
                assert self._begin is not None
                self._items.append(messages.decode_batch(self._begin, self._batch, response.end))
                self._begin, self._batch = None, []
            case _:
                return False
        return True

    def take(self) -> list[Point | Batch]:
        """Return the complete items, and forget them."""
        taken, self._items = self._items, []
        return taken
