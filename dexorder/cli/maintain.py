"""``dexorder maintain``: compact the tables and expire their snapshots, now."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict

from dexorder.cli import output
from dexorder.maintenance import TableCare, maintain


def run(spark: str | None, tables: Sequence[str], dry_run: bool, as_json: bool) -> None:
    """Print what was done, a row or an object a table."""
    done = asyncio.run(_all(spark, tables, dry_run))
    if as_json:
        output.print_json([asdict(care) for care in done])
        return
    columns = ("table", "data files", "delete files", "snapshots expired", "kept", "files removed", "took")
    output.stdout().print(output.plain_table(columns, map(_cells, done)))
    if dry_run:
        output.stderr().print("nothing was done; the table says what would be")


async def _all(spark: str | None, tables: Sequence[str], dry_run: bool) -> list[TableCare]:
    err = output.stderr()
    done = []
    async for care in maintain(spark, tables, dry_run=dry_run):
        err.print(f"{care.table}: looked after in {care.took_ms / 1_000:.1f} s", markup=False)
        done.append(care)
    return done


def _cells(care: TableCare) -> tuple[str, ...]:
    return (
        care.table,
        _change(care.data_files_before, care.data_files_after),
        _change(care.delete_files_before, care.delete_files_after),
        f"{care.expired_snapshots:,}",
        f"{care.kept_snapshots:,}",
        f"{care.removed_files:,}",
        f"{care.took_ms / 1_000:.1f} s",
    )


def _change(before: int, after: int) -> str:
    return f"{before:,}" if before == after else f"{before:,} -> {after:,}"
