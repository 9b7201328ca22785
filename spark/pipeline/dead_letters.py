"""Append of records that could not be used; a replay does not duplicate them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg import expressions
from pyiceberg.catalog import Catalog

from services.common.lake.commit import CommitLost, append_rows
from services.common.lake.tables import DEAD_LETTERS

_ex: Any = expressions  # see upsert.py


@dataclass(frozen=True)
class DeadLetter:
    """A record that could not be used, unchanged."""

    partition: int
    offset: int
    reason: str
    key: str | None
    headers: dict[str, str]
    payload: bytes | None


def append_dead_letters(catalog: Catalog, source: str, letters: Sequence[DeadLetter], *, now_ns: int) -> int:
    """Write one row for each record that has none yet; return their number."""
    if not letters:
        return 0
    offsets = [letter.offset for letter in letters]
    candidates = _ex.And(
        _ex.EqualTo("source", source),
        _ex.In("partition", {letter.partition for letter in letters}),
        _ex.GreaterThanOrEqual("offset", min(offsets)),
        _ex.LessThanOrEqual("offset", max(offsets)),
    )
    while True:
        target = catalog.load_table(DEAD_LETTERS.name)
        found = target.scan(row_filter=candidates, selected_fields=DEAD_LETTERS.key).to_arrow()
        seen = {(row["partition"], row["offset"]) for row in found.to_pylist()}
        fresh = {place: each for each in letters if (place := (each.partition, each.offset)) not in seen}
        if not fresh:
            return 0
        rows = [
            vars(each) | {"source": source, "headers": list(each.headers.items()), "seen_at": now_ns // 1_000}
            for each in fresh.values()
        ]
        data = pa.Table.from_pylist(rows, schema=DEAD_LETTERS.arrow)
        with suppress(CommitLost):  # another driver may have written the same records: look again
            append_rows(target, data)
            return len(fresh)
