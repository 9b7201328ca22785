"""Looks at a table from kept manifests find the files that a scan of pyiceberg finds."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table

from dexorder_common.lake.commit import commit_files
from dexorder_common.lake.tables import OHLC
from dexorder_spark.pipeline import known_manifests
from dexorder_spark.pipeline.known_manifests import KnownManifests
from dexorder_spark.pipeline.ranges import KeyRange, ScanRange, row_filter, scan_ranges
from dexorder_spark.tables.ohlc import CANDLES
from tests.examples import first_in_gate
from tests.fakes.pages import control, span
from tests.fakes.staged import files_of_pages, load_new

NAMES = [f"{base}/USDT.SIM" for base in ("A", "AB", "B", "X" * 18, "X" * 18 + "Y", "ÄÖ", "Z")]
"""Two of them are longer than what a file keeps of its bounds, and alike as far as that goes."""


def drawn(random: Random) -> list[ScanRange]:
    """Return the ranges of a batch: few series or all, near or far."""
    pages = [
        KeyRange((random.choice(NAMES), random.choice([60, 60, 300])), span(random.randrange(40) * 50, 50))
        for _ in range(random.choice([1, 3, 60]))
    ]
    return scan_ranges(pages, random.choice([1, 4, 32]))


def by_pyiceberg(target: Table, ranges: list[ScanRange]) -> list[tuple[str, list[str]]]:
    return _named(target.scan(row_filter=row_filter(CANDLES, ranges)).plan_files())


def _named(tasks: Any) -> list[tuple[str, list[str]]]:
    return sorted((t.file.file_path, sorted(d.file_path for d in t.delete_files)) for t in tasks)


def found(known: KnownManifests, target: Table, ranges: list[ScanRange]) -> list[tuple[str, list[str]]]:
    return _named(known.plan(CANDLES, target, ranges, row_filter(CANDLES, ranges)))


@pytest.mark.parametrize(
    ("most", "seed"),
    first_in_gate([(5, 0), (known_manifests.MAX_KEPT_FILES, 1), (5, 1), (known_manifests.MAX_KEPT_FILES, 0)], 2),
)
def test_looks_find_what_a_scan_of_pyiceberg_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, most: int
) -> None:
    monkeypatch.setattr(known_manifests, "MAX_KEPT_FILES", most)
    random, load, known, hits = Random(seed), load_new(tmp_path, OHLC.name), KnownManifests(), 0
    assert found(known, load(), drawn(random)) == []
    for batch in range(14):
        target = load()
        heads = [
            control(random.randrange(40) * 50, 50, job=batch + 1, ticker=random.choice(NAMES))
            for _ in range(random.randrange(1, 4))
        ]
        added = files_of_pages(target, heads)
        files = [task.file for task in target.scan().plan_files()]
        removed = random.sample(files, 1) if files and random.random() < 0.3 else []
        commit_files(target, added=added, removed=removed)
        target = load()
        for ranges in (drawn(random), drawn(random)):
            expected = by_pyiceberg(target, ranges)
            assert found(known, target, ranges) == expected
            hits += bool(expected)
    assert hits > 6


def test_a_batch_costs_its_own_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load, known, decoded = load_new(tmp_path, OHLC.name), KnownManifests(), list[str]()
    fetch = ManifestFile.fetch_manifest_entry

    def counted(manifest: ManifestFile, *given: Any, **named: Any) -> Any:
        decoded.append(manifest.manifest_path)
        return fetch(manifest, *given, **named)

    monkeypatch.setattr(ManifestFile, "fetch_manifest_entry", counted)
    ranges = [ScanRange((NAMES[0],), (60,), span(0, 50))]
    for batch in range(5):
        files_of_pages(load(), [control(50 * batch, 50, ticker=NAMES[0])], commit=True)
        wanted = by_pyiceberg(load(), ranges)
        decoded.clear()
        assert found(known, load(), ranges) == wanted != []
        assert len(decoded) == 1
    kept = known._kept[load().metadata.table_uuid]
    snapshot = load().current_snapshot()
    assert snapshot and set(kept) == {each.manifest_path for each in snapshot.manifests(load().io)}
