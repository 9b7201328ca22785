"""Receipts in a table's metadata: a tag, which keeps the snapshot, and a property, which names the owner. Blocking.

Tag and property come and go in one commit, so neither is ever there alone. Expiry leaves snapshots with a tag that is
not its own, and an orphan's search leaves their files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TypeVar

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import (
    RemovePropertiesUpdate,
    RemoveSnapshotRefUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
)
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from dexorder_common.lake.commit import commit_updates
from dexorder_common.lake.tables import IcebergTable, table_of
from dexorder_common.model.datasets import DATASETS
from dexorder_common.model.errors import AlreadyExists, Conflict, Exhausted, NotFound, Unavailable
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange

PREFIX = "dexorder.receipt."
"""Start of the names of the properties."""
TAG_PREFIX = "receipt-"
MAX_RECEIPTS = 1_000
"""Receipts of a table. Each commit writes all of them, 300 bytes each, with the rest of the table's metadata."""
_ATTEMPTS = 20
_NEVER_MS = 2**63 - 1
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KeptReceipt:
    """A receipt in the table's metadata.

    Attributes:
        document_sha256: Hash of the document that the client has.
        client_id: Who made it; empty without identity.
    """

    receipt_id: str
    series: Series
    span: TimeRange
    snapshot_id: int
    document_sha256: str
    client_id: str
    created_ns: int

    def encode(self) -> str:
        """Return the property's value."""
        known = {name: value for name, value in asdict(self).items() if name not in ("receipt_id", "series", "span")}
        key = self.series.encode()
        return json.dumps({**known, **key, "span": [self.span.start_ns, self.span.end_ns]}, separators=(",", ":"))

    @classmethod
    def decode(cls, receipt_id: str, text: str) -> KeptReceipt:
        """Read a property's value."""
        found = json.loads(text)
        series = Series.decode(found.pop("ticker"), found.pop("period_seconds"), found.pop("dataset", None) or "")
        return cls(receipt_id=receipt_id, series=series, span=TimeRange(*found.pop("span")), **found)


def receipts_in(table: Table) -> list[KeptReceipt]:
    """Return the receipts of a table by id."""
    found = ((name.removeprefix(PREFIX), text) for name, text in table.properties.items() if name.startswith(PREFIX))
    return sorted((KeptReceipt.decode(*each) for each in found), key=lambda each: each.receipt_id)


def all_receipts(catalog: Catalog) -> list[KeptReceipt]:
    """Return the receipts of all tables by id."""
    tables = (declared.load(catalog) for declared in _tables())
    found = (each for table in tables if table is not None for each in receipts_in(table))
    return sorted(found, key=lambda each: each.receipt_id)


def keep(catalog: Catalog, wanted: KeptReceipt, check_room: Callable[[int], None]) -> KeptReceipt:
    """Commit a receipt; return it, or the equal one that is there.

    Args:
        check_room: Called with the number of the client's receipts before one is added.

    Raises:
        AlreadyExists: The id belongs to another receipt.
        Conflict: The snapshot is not kept any more.
        Exhausted: The table has ``MAX_RECEIPTS``, or ``check_room`` raises it.
        NotFound: The table does not exist.
    """

    def attempt() -> KeptReceipt:
        known = all_receipts(catalog)
        for each in known:
            if each.receipt_id == wanted.receipt_id:
                if each == replace(wanted, created_ns=each.created_ns):
                    return each
                raise AlreadyExists(f"receipt_id {wanted.receipt_id!r} belongs to another receipt; choose another id")
        check_room(sum(each.client_id == wanted.client_id for each in known))
        declared = table_of(wanted.series.dataset)
        table = declared.load(catalog)
        if table is None:
            raise NotFound(f"the catalog does not contain the table {declared.name} yet")
        if len(receipts_in(table)) >= MAX_RECEIPTS:
            raise Exhausted(f"{declared.name} has {MAX_RECEIPTS:,} receipts, the most that it may have; drop one first")
        if table.snapshot_by_id(wanted.snapshot_id) is None:
            raise Conflict(
                f"snapshot {wanted.snapshot_id} of {declared.name} is not kept any more; make the receipt again"
            )
        name = f"{TAG_PREFIX}{wanted.receipt_id}"
        tag = {
            "ref-name": name,
            "type": SnapshotRefType.TAG,
            "snapshot-id": wanted.snapshot_id,
            "max-ref-age-ms": _NEVER_MS,  # otherwise the table's history.expire.max-ref-age-ms counts
        }
        property_update = SetPropertiesUpdate(updates={f"{PREFIX}{wanted.receipt_id}": wanted.encode()})
        commit_updates(table, [SetSnapshotRefUpdate.model_validate(tag), property_update])
        return wanted

    return _again(attempt)


def drop(catalog: Catalog, receipt: KeptReceipt) -> None:
    """Remove a receipt; do nothing if it is gone."""

    def attempt() -> None:
        table = table_of(receipt.series.dataset).load(catalog)
        if table is None or f"{PREFIX}{receipt.receipt_id}" not in table.properties:
            return
        name = f"{TAG_PREFIX}{receipt.receipt_id}"
        updates: list[TableUpdate] = [RemovePropertiesUpdate(removals=[f"{PREFIX}{receipt.receipt_id}"])]
        if name in table.metadata.refs:
            updates.append(RemoveSnapshotRefUpdate.model_validate({"ref-name": name}))
        commit_updates(table, updates)

    _again(attempt)


def _tables() -> Sequence[IcebergTable]:
    return [table_of(each) for each in DATASETS if each.is_covered]


def _again(attempt: Callable[[], T]) -> T:
    """Return the result of an attempt, repeated while other writers are faster."""
    attempts = Retrying(
        retry=retry_if_exception_type(CommitFailedException),
        stop=stop_after_attempt(_ATTEMPTS),
        wait=wait_random_exponential(0.05, max=2),
        reraise=True,
    )
    try:
        return attempts(attempt)
    except CommitFailedException as error:
        raise Unavailable("other writers were faster at the table each time; try again", retry_seconds=2.0) from error
